"""The views of occlusion retention: each boxed image as it is, with its finding covered, and with a control covered."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

from ..utils.errors import DecodeError, UserError
from .cohort import Cohort
from .decode_pool import DecodePool
from .decoding import CANONICAL_SIZE, canonical
from .encode_loader import EncodeRecords, cohort_sources
from .image_sources import decoded_one, let_go
from .occlusion import (
    FILLS,
    MASK_MODES,
    VIEW_REASONS,
    Piece,
    box_pieces,
    boxes_in_image,
    control_pieces,
    mask_of_image,
    mask_pieces,
    occluded,
    union,
)
from .store_rows import Sources

if TYPE_CHECKING:
    from .encode_loader import Result
    from .feature_store import FeatureStore

KINDS = ("original", "occluded", "control")


@dataclass(frozen=True)
class View:
    """One view of one image.

    Args:
        view_id: id in the feature store; the plain image id for the original.
        row: row of the image in the cohort.
        kind: ``original``, ``occluded`` or ``control``.
        finding: what is covered, or would be; empty for the original.
    """

    view_id: str
    row: int
    kind: str
    finding: str


@dataclass(frozen=True)
class Annotation:
    """All boxes and masks of one finding in one image.

    Args:
        row: row of the image in the cohort.
        finding: the finding.
        boxes: (n, 4) x, y, width, height in pixels of their frames.
        frames: (n, 2) width and height of those frames, NaN where not given.
        masks: files of masks.
    """

    row: int
    finding: str
    boxes: np.ndarray
    frames: np.ndarray
    masks: tuple[Path, ...]


@dataclass
class _Plan:
    views: list[View] = field(default_factory=list)
    annotations: dict[tuple[int, str], Annotation] = field(default_factory=dict)
    of_row: dict[int, list[Annotation]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class RetentionViews(Dataset):
    """Original, occluded and control view of every boxed positive image of a cohort, each once.

    An item is ``{"image": (3, H, W) uint8, "index": int, "ok": bool}``; a view that cannot be made is blank with ``ok``
    false. :meth:`map` and :meth:`records` let :class:`~candor_monai.data.EncodeLoader` encode what a feature store
    lacks, as it does for the cohort itself: ``EncodeLoader(views.records(store), views, …)``.

    Regions are covered in the source image, in 8 bits, before the canonical resize. The id of a view names image, kind
    and finding and ends in a digest of boxes, masks, fill and seed, so that a feature of another occlusion is never
    served; the original's id is the image's, so that its feature is shared with the main evaluation.

    Args:
        cohort: images with boxes or masks; their coordinates are rescaled where the frame they were drawn on is given.
        pool: decodes at original resolution (``DecodePool(size=None)``).
        findings: findings to cover; None takes all that have a boxed positive image.
        fill: ``mean``, ``zero``, ``blur`` or ``noise``.
        masks: what of a mask is covered: ``pixels``, ``components`` or ``box``.
        seed: for the fill ``noise`` and random controls.
        size: canonical size.

    Attributes:
        views: the views, sorted by image.
        counts: annotations that are used, and what is not and why.

    Raises:
        UserError: an option has a value that does not exist; the pool resizes; no boxed positive image.
    """

    def __init__(
        self,
        cohort: Cohort,
        pool: DecodePool,
        findings: Iterable[str] | None = None,
        fill: str = "mean",
        masks: str = "pixels",
        seed: int = 42,
        size: int | tuple[int, int] | None = CANONICAL_SIZE,
    ) -> None:
        for name, value, allowed in (("fill", fill, FILLS), ("masks", masks, MASK_MODES)):
            if value not in allowed:
                raise UserError(f"retention {name}={value!r}: use one of {', '.join(allowed)}")
        if pool.size is not None:
            raise UserError("occlusion happens in the source image: give RetentionViews a DecodePool(size=None)")
        self.cohort, self.pool, self.fill, self.masks, self.seed, self.size = cohort, pool, fill, masks, seed, size
        wanted = cohort.findings if findings is None else tuple(findings)
        plan = _planned(cohort, wanted, f"{fill}/{masks}/{seed}")
        if not plan.views:
            raise UserError(
                f"cohort {cohort.name}: no positive image has a box or mask of {', '.join(wanted) or 'any finding'}; "
                "retention needs cohorts with boxes"
            )
        self.views, self.counts = plan.views, plan.counts
        self._plan = plan
        self._mask_pixels: dict[Path, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        pixels = decoded_one(self, self.cohort.source, self.views[index].row, index)
        ok = isinstance(pixels, np.ndarray)
        rows, columns = self.size if isinstance(self.size, tuple) else (self.size or 8,) * 2
        image = torch.from_numpy(pixels) if ok else torch.zeros(3, rows, columns, dtype=torch.uint8)
        return {"image": image, "index": index, "ok": ok}

    @property
    def view_ids(self) -> list[str]:
        """Ids of the views in a feature store."""
        return [view.view_id for view in self.views]

    def sources(self, states: Sources | None = None) -> Sources:
        """States of the views' source files.

        Args:
            states: those of the cohort's records, if already known.
        """
        known = cohort_sources(self.cohort) if states is None else states
        return known.take(np.array([view.row for view in self.views], dtype=np.int64))

    def records(self, store: FeatureStore, states: Sources | None = None) -> EncodeRecords:
        """The views beside what a store holds of them, for an ``EncodeLoader``."""
        sources = self.sources(states)
        lacking = set(store.missing(self.view_ids, sources))
        missing = np.array([view.view_id in lacking for view in self.views], dtype=bool)
        files = [self.cohort.file_name(view.row) or None for view in self.views]
        return EncodeRecords(self.view_ids, files, sources, missing, lambda i: self.cohort.source(self.views[i].row))

    def map(self, items: Iterable[Any]) -> Iterator[Result]:
        """Make views in order; neighbouring views of one image decode it once.

        Args:
            items: ``(index, path or bytes[, expected])`` as ``DecodePool.map`` takes them; index counts into ``views``.
        """
        with let_go(self.pool.map(_by_image(items, [view.row for view in self.views]))) as results:
            for indices, pixels, meta, seconds in results:
                if isinstance(pixels, np.ndarray):  # grey is covered and resized once, not three times
                    pixels = pixels[0] if meta is not None and meta.channels == 1 else np.moveaxis(pixels, 0, -1)
                pieces = _Pieces(self._pieces)
                for index in indices:
                    before = time.perf_counter()
                    view = self._made(index, pixels, pieces)
                    yield index, view, meta, seconds + time.perf_counter() - before
                    seconds = 0.0
                del pixels, pieces, view  # nothing of an image is kept while the next one is waited for

    def rescaled(self, shapes: Mapping[int, tuple[int, int]], findings: Collection[str] | None = None) -> int:
        """How many boxes were drawn on an image of another size.

        Args:
            shapes: row of an image -> its rows and columns.
            findings: those whose boxes count; None: all.
        """
        found = 0
        for (row, finding), annotation in self._plan.annotations.items():
            if row in shapes and (findings is None or finding in findings):
                rows, columns = shapes[row]
                given = np.isfinite(annotation.frames).all(axis=1)
                found += int((given & (annotation.frames != (columns, rows)).any(axis=1)).sum())
        return found

    def example(self, finding: str, row: int) -> dict[str, np.ndarray | DecodeError]:
        """The three views of one image, for figures: kind -> (3, H, W) uint8, or why there is none."""
        indices = [i for i, v in enumerate(self.views) if v.row == row and v.finding in ("", finding)]
        found = self.map([(i, self.cohort.source(row)) for i in indices])
        return {self.views[index].kind: pixels for index, pixels, _, _ in found}

    def covered(self, index: int, shape: tuple[int, int]) -> np.ndarray:
        """The pixels that a view covers in a source image of ``shape``, (rows, columns) bool.

        Raises:
            DecodeError: the region cannot be made; ``reason`` is a key of ``VIEW_REASONS`` or of ``REASONS`` (masks).
        """
        return self._covered(index, shape, _Pieces(self._pieces))

    def _covered(self, index: int, shape: tuple[int, int], known: _Pieces) -> np.ndarray:
        view = self.views[index]
        if view.kind == "original":
            return np.zeros(shape, dtype=bool)
        pieces = known.of(self._plan.annotations[view.row, view.finding], shape)
        if view.kind == "control":
            every = [piece for a in self._plan.of_row[view.row] for piece in known.avoided(a, shape)]
            pieces = control_pieces(pieces, union(every, shape), self.cohort.image_id(view.row), self.seed)
        return union(pieces, shape)

    def _made(self, index: int, pixels: np.ndarray | DecodeError, known: _Pieces) -> np.ndarray | DecodeError:
        """A view of a decoded image (rows, columns[, 3])."""
        if isinstance(pixels, DecodeError):
            return pixels
        view = self.views[index]
        try:
            if view.kind != "original":
                covered = self._covered(index, (pixels.shape[0], pixels.shape[1]), known)
                pixels = occluded(pixels, covered, self.fill, self.cohort.image_id(view.row), self.seed)
        except DecodeError as error:
            return DecodeError(error.reason, str(error))  # a fresh one: the traceback of this holds the image
        return canonical(pixels, self.size)

    def _pieces(self, annotation: Annotation, shape: tuple[int, int]) -> list[Piece]:
        pieces: list[Piece] = []
        if len(annotation.boxes):
            pieces += box_pieces(boxes_in_image(annotation.boxes, annotation.frames, shape), shape)
        for path in annotation.masks:
            pieces += mask_pieces(mask_of_image(self._mask(path), shape), self.masks)
        return pieces

    def _mask(self, path: Path) -> np.ndarray:
        """Pixels of a mask's file, decoded like any file of unknown origin; the latest few are kept."""
        if path not in self._mask_pixels:
            if len(self._mask_pixels) >= 8:
                self._mask_pixels.pop(next(iter(self._mask_pixels)))
            try:
                self._mask_pixels[path] = self.pool.decode(path).pixels
            except DecodeError as error:
                if error.reason == "constant":  # a flat image is refused before anybody sees of which value
                    raise DecodeError("mask_empty", VIEW_REASONS["mask_empty"]) from error
                raise
        return self._mask_pixels[path]


class _Pieces:
    """Parts of one image's annotations: each annotation's are made once, however many views need them.

    Args:
        make: gives the parts of an annotation in an image of some rows and columns.
    """

    def __init__(self, make: Callable[[Annotation, tuple[int, int]], list[Piece]]) -> None:
        self._make = make
        self._known: dict[str, list[Piece] | tuple[str, str]] = {}

    def of(self, annotation: Annotation, shape: tuple[int, int]) -> list[Piece]:
        """The parts of an annotation.

        Raises:
            DecodeError: they cannot be made.
        """
        if annotation.finding not in self._known:
            try:
                self._known[annotation.finding] = self._make(annotation, shape)
            except DecodeError as error:
                self._known[annotation.finding] = error.reason, str(error)
        found = self._known[annotation.finding]
        if isinstance(found, tuple):
            raise DecodeError(*found)
        return found

    def avoided(self, annotation: Annotation, shape: tuple[int, int]) -> list[Piece]:
        """What a control must not touch; of another finding's annotation that covers no pixel there is nothing."""
        try:
            return self.of(annotation, shape)
        except DecodeError as error:
            if error.reason in ("box_empty", "box_outside", "mask_empty"):
                return []
            raise


def _by_image(items: Iterable[Any], rows: list[int]) -> Iterator[tuple[list[int], Any, Any]]:
    """Items of one image after another as one item: their indices, the image's source, its expected state."""
    held: tuple[list[int], Any, Any] | None = None
    for index, source, *rest in items:
        if held is not None and rows[held[0][0]] == rows[index]:
            held[0].append(index)
            continue
        if held is not None:
            yield held
        held = ([index], source, rest[0] if rest else None)
    if held is not None:
        yield held


def _planned(cohort: Cohort, findings: tuple[str, ...], settings: str) -> _Plan:
    """Views and annotations of the positive images of some findings; what is not used is counted."""
    plan = _Plan()
    for annotation in _annotations(cohort, plan.counts):
        plan.of_row.setdefault(annotation.row, []).append(annotation)
    ids = cohort.records["image_id"]
    for row in sorted(plan.of_row, key=lambda r: str(ids.iat[r])):
        image_id = str(ids.iat[row])
        used = []
        for annotation in plan.of_row[row]:
            if annotation.finding not in findings:
                plan.counts["annotations of other findings"] += 1
            elif cohort.labels[row, cohort.findings.index(annotation.finding)] != 1:
                plan.counts["annotations of images that are not positive"] += 1
            else:
                used.append(annotation)
        if not used:
            continue
        plan.views.append(View(image_id, row, "original", ""))
        everything = plan.of_row[row]
        for annotation in used:
            plan.counts["annotations used"] += 1
            plan.annotations[row, annotation.finding] = annotation
            for kind, digest in (
                ("control", _digest(settings, everything, annotation)),
                ("occluded", _digest(settings, [annotation], annotation)),
            ):
                plan.views.append(
                    View(f"{image_id}#{kind}:{annotation.finding}:{digest}", row, kind, annotation.finding)
                )
    return plan


def _annotations(cohort: Cohort, counts: Counter[str]) -> list[Annotation]:
    """Boxes and masks by image and finding, those of images that are not in the cohort counted."""
    rows = pd.Index(cohort.records["image_id"])
    boxes: dict[tuple[int, str], list[list[float]]] = {}
    masks: dict[tuple[int, str], list[Path]] = {}
    geometry = cohort.boxes[["x", "y", "width", "height", "frame_width", "frame_height"]]
    numbers = geometry.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    for place, row in enumerate(rows.get_indexer(pd.Index(cohort.boxes["image_id"])).tolist()):
        if row < 0:
            counts["boxes of images that are not in the cohort"] += 1
            continue
        boxes.setdefault((row, str(cohort.boxes["finding"].iat[place])), []).append(numbers[place].tolist())
    for place, row in enumerate(rows.get_indexer(pd.Index(cohort.masks["image_id"])).tolist()):
        if row < 0:
            counts["masks of images that are not in the cohort"] += 1
            continue
        path = Path(str(cohort.masks["path"].iat[place]))
        path = path if path.is_absolute() or cohort.root is None else cohort.root / path
        masks.setdefault((row, str(cohort.masks["finding"].iat[place])), []).append(path)
    found = []
    for row, finding in sorted(set(boxes) | set(masks)):
        values = np.array(sorted(boxes.get((row, finding), [])), dtype=np.float64).reshape(-1, 6)
        files = tuple(sorted(masks.get((row, finding), [])))
        found.append(Annotation(row, finding, values[:, :4], values[:, 4:], files))
    return found


def _digest(settings: str, parts: list[Annotation], own: Annotation) -> str:
    """Ten hex digits of what a view covers and how."""
    digest = hashlib.blake2b(f"{settings}|{own.finding}".encode(), digest_size=5)
    for part in parts:
        digest.update(part.finding.encode() + part.boxes.tobytes() + part.frames.tobytes())
        for path in part.masks:
            try:
                about = path.stat()
                state = f"{about.st_size} {about.st_mtime_ns}"
            except OSError:
                state = "absent"
            digest.update(f"{path.name} {state} non-zero".encode())
    return digest.hexdigest()
