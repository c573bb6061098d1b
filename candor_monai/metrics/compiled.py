"""Loops over lists, bits and pairs, compiled by Numba: what NumPy would do in many passes over memory.

Compiled code is kept beside the module that holds the function (or where ``NUMBA_CACHE_DIR`` says), so that it is made
once on a machine; where nothing can be kept, or what was kept is damaged, it is made again. It does the arithmetic as
it is written, each operation rounded once (no ``fastmath``): its results are those of NumPy to the bit, whatever the
processor. Numba looks for changes in the file of a function alone, so a compiled function calls those of its own module
only, and constants of other modules that it uses never change. ``NUMBA_DISABLE_JIT=1`` runs the same loops in Python.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """A function on arrays and numbers, compiled when it is first called; other threads run meanwhile.

    Args:
        function: of what Numba compiles without Python objects. It is called with NumPy arrays, of whose memory it must
            not leave the bounds.

    >>> @compiled
    ... def total(values):
    ...     out = 0.0
    ...     for value in values:
    ...         out += value
    ...     return out
    >>> import numpy as np
    >>> float(total(np.arange(4.0)))
    6.0
    """
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    made: Any = numba.njit(nogil=True, error_model="numpy")(function)
    # RuntimeError: neither beside the module nor in the user's folder can anything be kept.
    with suppress(RuntimeError):
        made._cache = KeptCode(function)  # as ``enable_caching`` does, with a cache of its own
    return made


class KeptCode(FunctionCache):
    """Numba's cache of one function, without its ways to end a run or to hand out the code of another signature."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        given = self._cache_file
        self._cache_file = KeptFiles(given._cache_path, self._impl.filename_base, given._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code of a signature, or None where there is none that can be used."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            self._tell("read", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code of a signature, if that is possible now."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            self._tell("kept", error)

    def _tell(self, what: str, error: Exception) -> None:
        logging.getLogger(__name__).warning(
            "%s: compiled code cannot be %s in %s (%s: %s). It is made again, which takes seconds. The folder's .nbi "
            "and .nbc files can be deleted at any time, or NUMBA_CACHE_DIR can name another folder.",
            self._py_func.__name__,
            what,
            self._cache_path,
            type(error).__name__,
            error,
        )


class KeptFiles(IndexDataCacheFile):
    """Index and code files of one function that several processes may write at the same time.

    Numba numbers the code files by what the index holds and writes the index first: two processes with different
    signatures, or a process that is killed between the two, leave an index that names the code of another signature or
    of an older source. Here code is written first, under a name of its own, so that an index names what it means. Of
    two that write the index at once one is not remembered, and is compiled again by whoever wants it.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep the code of one signature; what the index no longer names is deleted."""
        name = self._data_name_pattern.replace("{number:d}", uuid.uuid4().hex[:16])
        self._save_data(name, data)
        overloads = self._load_index()
        overloads[key] = name
        self._save_index(overloads)
        base = self._index_name.removesuffix(".nbi")
        for old in Path(self._cache_path).glob(f"{base}.*.nbc"):
            if old.name not in overloads.values():
                with suppress(OSError):
                    os.unlink(old)

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except Exception:  # damaged, in whatever way unpickling finds out: it is written anew
            return {}
