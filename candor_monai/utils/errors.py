"""Errors that are the user's to mend, told in a few lines."""

from __future__ import annotations


class UserError(ValueError):
    """Something in the input, the options or the machine that its owner can mend.

    The message names the file, row, key or id, says what is wrong and what to do. The command line prints it
    without a traceback and exits with status 1.
    """


class WeightsError(UserError):
    """An encoder's weights are missing, gated, altered or not those of the card."""


class DecodeError(UserError):
    """One image file cannot be used.

    Args:
        reason: reason code, a stable lower-case word (see docs/outputs.md).
        message: what is wrong with the file; holds no patient data.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, str]]:
        return type(self), (self.reason, str(self))


def first_line(error: BaseException, longest: int = 200) -> str:
    """What a library's error says, for a message of one line: its first line, or its kind where it says nothing.

    >>> first_line(RuntimeError("no such key\\nlong trace"))
    'no such key'
    >>> first_line(AssertionError())
    'AssertionError'
    """
    lines = str(error).strip().splitlines()
    return lines[0][:longest] if lines else type(error).__name__
