"""How a user's mistake, or a disk that refuses, leaves the command line: a few lines, no traceback."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .atomic import OF_THE_DISK
from .errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def as_exit(error: UserError | OSError) -> SystemExit:
    """The exit that prints what is wrong in one line (status 1).

    Raises:
        OSError: ``error`` itself, where it is not about a file or the disk: a defect keeps its traceback.
    """
    if not isinstance(error, OSError):
        return SystemExit(f"candor_monai: {error}")
    path = error.filename2 or error.filename
    if error.errno is None or (path is None and error.errno not in OF_THE_DISK):
        raise error
    where = "the disk" if path is None else os.fsdecode(path) if isinstance(path, str | bytes) else str(path)
    return SystemExit(f"candor_monai: {where}: {error.strerror or os.strerror(error.errno)}.")


def told_briefly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for what a config names as ``_target_``: a :class:`UserError` becomes a :class:`SystemExit`.

    So does an ``OSError`` about a file or the disk (full, read-only, a folder where a file must be). Whatever else is
    raised is a defect and keeps its traceback.

    MONAI wraps any ordinary exception of a component into a chain of its own, some fifty lines long, in which the
    message is lost. ``SystemExit`` passes through.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (UserError, OSError) as error:
            raise as_exit(error) from error

    return wrapper


def told_once(function: Callable[P, R]) -> Callable[P, R]:
    """As :func:`told_briefly`, for a mistake that every process of a launcher finds: the first one tells it."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (UserError, OSError) as error:
            told = as_exit(error)
            raise told if int(os.environ.get("RANK") or 0) == 0 else SystemExit(1) from error

    return wrapper
