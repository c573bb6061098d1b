"""Keyed pseudonyms: the only form in which a patient id leaves the process."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from .errors import UserError

logger = logging.getLogger(__name__)

KEY_BYTES = 32
KEY_FILE_VARIABLE = "CANDOR_MONAI_KEY_FILE"


def default_key_file() -> Path:
    """Where the site's secret lives: ``$CANDOR_MONAI_KEY_FILE``, else under the user's configuration folder."""
    named = os.environ.get(KEY_FILE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "candor_monai" / "pseudonym.key"


def read_key(path: str | Path | None = None) -> bytes:
    """The site's secret key, made on first use with permissions for its owner alone.

    The key stays at the site: with it, and only with it, a pseudonym can be matched to a known patient id.

    Args:
        path: key file, by default :func:`default_key_file`.

    Raises:
        UserError: the file cannot be read or made, is readable by others, or is too short.
    """
    path = default_key_file() if path is None else Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path)
        mode = path.stat().st_mode & 0o077
        key = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the pseudonym key cannot be read or made ({error.strerror}). Name another file with "
            f"--key_file or the environment variable {KEY_FILE_VARIABLE}."
        ) from error
    if mode:
        raise UserError(f"{path}: the pseudonym key can be read by other users; run: chmod 600 {path}")
    if len(key) < KEY_BYTES:
        raise UserError(
            f"{path}: the pseudonym key is shorter than {KEY_BYTES} bytes; remove the file to make a new one."
        )
    return key


def _make(path: Path) -> None:
    """Write a new key whole and only if there is none: two processes that start together end with one key."""
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        os.link(temporary, path)
        logger.warning("a new pseudonym key was made: %s. Keep it: other keys give other pseudonyms.", path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def pseudonym(patient: str, key: bytes) -> str:
    """Sixteen hexadecimal digits that stand for ``patient`` under ``key``.

    >>> pseudonym("patient-1", b"k" * 32) == pseudonym("patient-1", b"k" * 32)
    True
    >>> len(pseudonym("patient-1", b"k" * 32))
    16
    """
    return hashlib.blake2b(patient.encode("utf-8"), key=key[:64], digest_size=8).hexdigest()


def pseudonyms(patients: Iterable[str | None], key: bytes) -> list[str | None]:
    """Pseudonyms of many patients; a missing id stays missing."""
    known: dict[str, str] = {}
    result: list[str | None] = []
    for patient in patients:
        if patient is None or patient != patient:  # None or NaN
            result.append(None)
            continue
        if patient not in known:
            known[patient] = pseudonym(str(patient), key)
        result.append(known[patient])
    return result
