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

    A first line that ends with a colon says nothing yet: the next one goes with it. A ``KeyError`` of a bare name says
    that there is no such entry.

    >>> first_line(RuntimeError("no such key\\nlong trace"))
    'no such key'
    >>> first_line(RuntimeError("wrong value for 'size':\\n  must be a number\\nlong trace"))
    "wrong value for 'size': must be a number"
    >>> first_line(KeyError("size"))
    "no entry 'size'"
    >>> first_line(AssertionError())
    'AssertionError'
    """
    if isinstance(error, KeyError) and len(error.args) == 1:
        told = str(error.args[0])
        return (told if " " in told else f"no entry {error.args[0]!r}").splitlines()[0][:longest]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return said[:longest]


def os_reason(error: BaseException) -> str:
    """Why the operating system refused, in its own words, without the path that the message names already.

    >>> os_reason(FileNotFoundError(2, "No such file or directory", "a.txt"))
    'No such file or directory'
    """
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
