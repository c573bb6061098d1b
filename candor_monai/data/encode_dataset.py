"""The images of a cohort as a dataset: decoded by bounded processes, then transformed like in any MONAI pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..utils.errors import DecodeError, UserError
from .decoding import CANONICAL_SIZE
from .image_sources import decoded_one, let_go

if TYPE_CHECKING:
    from .cohort import Cohort
    from .encode_loader import Pool, Result

Transform = Callable[[dict[str, Any]], dict[str, Any]]


class EncodeDataset(Dataset):
    """Canonical images of a cohort.

    An item is ``{"image": (3, H, W) uint8 tensor, "index": int, "ok": bool}``; an image that cannot be decoded is
    blank with ``ok`` false. :meth:`map` streams many images through the pool and is what the encoding loader uses.

    Args:
        data: the cohort.
        pool: decodes (:class:`~candor_monai.data.decode_pool.DecodePool`).
        transform: dictionary transform of the canonical image, such as a ``monai.transforms.Compose``; it gets and
            gives ``{"image": (3, H, W)}`` and must keep uint8.
        image_size: side of the blank image that stands for one that cannot be decoded.
    """

    def __init__(
        self, data: Cohort, pool: Pool, transform: Transform | None = None, image_size: int | None = CANONICAL_SIZE
    ) -> None:
        self.data = data
        self.pool = pool
        self.transform = transform if transform is not None and getattr(transform, "transforms", True) else None
        self.image_size = image_size
        self._transforming = 0.0

    @property
    def spent(self) -> dict[str, float] | None:
        """Seconds by stage: the pool's workers', and those of the transform, if the pool tells."""
        spent = getattr(self.pool, "spent", None)
        return None if spent is None else {**spent, "transform": spent["transform"] + self._transforming}

    def grow(self, workers: int) -> None:
        """Go on with this many decoding workers, if the pool can."""
        if hasattr(self.pool, "grow"):
            self.pool.grow(workers)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        pixels = decoded_one(self, self.data.source, index)
        ok = not isinstance(pixels, DecodeError)
        side = self.image_size or 8
        image = torch.from_numpy(pixels) if ok else torch.zeros(3, side, side, dtype=torch.uint8)
        return {"image": image, "index": index, "ok": ok}

    def map(self, items: Iterable[Any]) -> Iterator[Result]:
        """Decode ``(index, path or bytes[, expected state])`` in order and transform what was decoded."""
        with let_go(self.pool.map(items)) as results:
            for index, pixels, meta, seconds in results:
                if isinstance(pixels, DecodeError) or self.transform is None:
                    yield index, pixels, meta, seconds
                    continue
                before = time.perf_counter()
                transformed = transformed_image(self.transform, pixels)
                taken = time.perf_counter() - before
                self._transforming += taken
                yield index, transformed, meta, seconds + taken


class MappedDataset:
    """Any map-style dataset of uint8 images as the encoding loader's source; its own loading is not bounded.

    Args:
        dataset: item ``i`` is a mapping with ``image``, shape (3, H, W), uint8, of the cohort's record ``i``.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def map(self, items: Iterable[Any]) -> Iterator[Result]:
        """Load the items whose indices are given; one that raises is rejected, and the others go on."""
        for index, *_ in items:
            before = time.perf_counter()
            pixels: np.ndarray | DecodeError
            try:
                pixels = checked_image(self.dataset[index]["image"])
            except UserError:
                raise
            except Exception as error:
                pixels = DecodeError("dataset", f"the dataset raised {type(error).__name__}")
            yield index, pixels, None, time.perf_counter() - before


def transformed_image(transform: Transform, pixels: np.ndarray) -> np.ndarray | DecodeError:
    """The canonical image after a dictionary transform; an image that the transform refuses is rejected."""
    try:
        image = transform({"image": pixels})["image"]
    except Exception as error:
        return DecodeError("transform", f"the preprocessing raised {type(error).__name__}")
    return checked_image(image)


def checked_image(image: Any) -> np.ndarray:
    """An image as a uint8 array of shape (3, H, W).

    Raises:
        UserError: another type or shape.
    """
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[0] != 3:
        raise UserError(
            f"the dataset and its preprocessing must give uint8 images of shape (3, H, W), got {array.dtype} "
            f"{array.shape}: the encoder's own processor does scaling and normalising."
        )
    return np.ascontiguousarray(array)
