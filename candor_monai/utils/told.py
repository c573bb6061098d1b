"""How a user's mistake leaves the command line: a few lines, no traceback."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def as_exit(error: UserError) -> SystemExit:
    """The exit that prints the error's message alone (status 1)."""
    return SystemExit(f"candor_monai: {error}")


def told_briefly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for what a config names as ``_target_``: a :class:`UserError` becomes a :class:`SystemExit`.

    MONAI wraps any ordinary exception of a component into a chain of its own, some fifty lines long, in which the
    message is lost. ``SystemExit`` passes through.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise as_exit(error) from error

    return wrapper


def told_once(function: Callable[P, R]) -> Callable[P, R]:
    """As :func:`told_briefly`, for a mistake that every process of a launcher finds: the first one tells it."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise as_exit(error) if int(os.environ.get("RANK") or 0) == 0 else SystemExit(1) from error

    return wrapper
