"""Loops over lists, bits and pairs, compiled by Numba: what NumPy would do in many passes over memory.

Compiled code is kept beside the module that holds the function (or where ``NUMBA_CACHE_DIR`` says), so that it is made
once on a machine. It does the arithmetic as it is written, each operation rounded once (no ``fastmath``): its results
are those of NumPy to the bit, whatever the processor. Numba looks for changes in the file of a function alone, so a
compiled function calls those of its own module only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba

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
    >>> total(np.arange(4.0))
    6.0
    """
    made: Any = numba.njit(nogil=True, error_model="numpy")(function)
    # RuntimeError: neither beside the module nor in the user's folder can anything be kept.
    with suppress(RuntimeError):
        made.enable_caching()
    return made
