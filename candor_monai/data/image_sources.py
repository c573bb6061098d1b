"""Opening images and letting go of what decodes them: what everyone does who feeds a decode pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from candor_monai.utils.errors import DecodeError, UserError

if TYPE_CHECKING:
    from .encode_loader import Pool

Results = TypeVar("Results")


def opened(source: Callable[[int], str | Path | bytes], index: int) -> str | Path | bytes | DecodeError:
    """An image's file or bytes, or why it cannot even be opened.

    Args:
        source: gives image ``index``'s file or bytes, such as ``Cohort.source``.
        index: the image.

    Raises:
        UserError: what concerns more than one image, such as a server that stays away.
    """
    try:
        return source(index)
    except DecodeError as error:
        return DecodeError(error.reason, str(error))  # a fresh one: a traceback would keep what its frames hold
    except UserError:
        raise
    except OSError as error:
        return DecodeError("unreadable", f"cannot be read: {error.strerror}")
    except Exception as error:
        return DecodeError("failed", f"cannot be opened: {type(error).__name__}")


@contextmanager
def let_go(results: Results) -> Iterator[Results]:
    """The results of a pool's ``map``, let go at the end: what was decoded ahead and is not wanted is given up."""
    try:
        yield results
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


def decoded_one(
    pool: Pool, source: Callable[[int], str | Path | bytes], image: int, index: int | None = None
) -> np.ndarray | DecodeError:
    """One image through a pool: canonical pixels, or why there are none.

    Args:
        pool: decodes.
        source: as in :func:`opened`.
        image: what ``source`` is asked for.
        index: what the pool knows the image by; None: the same.
    """
    found = opened(source, image)
    if isinstance(found, DecodeError):
        return found
    with let_go(pool.map([(image if index is None else index, found)])) as results:
        for _, pixels, _, _ in results:
            return pixels
    return DecodeError("failed", "the decode pool gave no result")
