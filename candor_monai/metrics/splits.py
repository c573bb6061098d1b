"""Training, validation and test images: by patient, the same for every encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .keyed_hash import stable_fraction

PARTS = ("train", "val", "test")
FRACTIONS = (0.7, 0.1, 0.2)


def hashed_split(patients: Sequence[str], seed: int = 42, fractions: Sequence[float] = FRACTIONS) -> np.ndarray:
    """The part of each image from a stable hash of its patient.

    A patient's part depends on its id, the seed and the fractions only: not on who else is in the cohort.

    Args:
        patients: N patient (or cluster) ids.
        seed: seed of the hash.
        fractions: shares of training, validation and test patients; they sum to 1.

    Returns:
        shape (N,), text: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: the fractions are not three non-negative numbers that sum to 1.

    >>> a, b = hashed_split(["p1", "p2", "p1"]), hashed_split(["p2", "p1"])
    >>> bool(a[0] == a[2] == b[1]), bool(a[1] == b[0])
    (True, True)
    """
    shares = [float(fraction) for fraction in fractions]
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"fractions must be three non-negative numbers that sum to 1, are {shares}")
    at = stable_fraction(list(patients), seed, "split")
    return np.array(PARTS)[np.searchsorted([shares[0], shares[0] + shares[1]], at, side="right")]


def publishers_split(split: Sequence[str], patients: Sequence[str], seed: int = 42) -> np.ndarray:
    """The publisher's parts, with a validation part taken from its training patients when it has none.

    The validation part is one in eight training patients by a stable hash: 10 of the 80 % that the publisher's
    training part stands for.

    Args:
        split: N values, each ``train``, ``val`` or ``test``.
        patients: N patient (or cluster) ids.
        seed: seed of the hash that makes a validation part.

    Returns:
        shape (N,), text: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an unknown part, or a patient with images in more than one part; names the first such row.

    >>> publishers_split(["train", "val", "test"], ["a", "b", "c"]).tolist()
    ['train', 'val', 'test']
    """
    parts = np.asarray(split, dtype=str)
    odd = np.flatnonzero(~np.isin(parts, PARTS))
    if len(odd):
        raise ValueError(f"split[{odd[0]}] is {str(parts[odd[0]])!r}, must be train, val or test")
    if len(parts) != len(patients):
        raise ValueError(f"split has {len(parts)} rows, patients {len(patients)}")
    check_disjoint(parts, patients)
    if (parts == "val").any():
        return parts
    made = parts.astype(f"<U{max(map(len, PARTS))}")
    at = stable_fraction(list(patients), seed, "validation of the publisher's training part")
    made[(parts == "train") & (at < 1 / 8)] = "val"
    return made


def check_disjoint(parts: np.ndarray, patients: Sequence[str]) -> None:
    """Refuse a split with a patient in two parts.

    Raises:
        ValueError: naming the first row whose patient was in another part before.
    """
    _, first, codes = np.unique(np.asarray(patients, dtype=str), return_index=True, return_inverse=True)
    torn = np.flatnonzero(np.asarray(parts) != np.asarray(parts)[first[codes]])
    if len(torn):
        row = torn[0]
        raise ValueError(
            f"split[{row}] is {str(parts[row])!r} but the patient of row {row} is also in row {first[codes[row]]} of "
            f"part {str(parts[first[codes[row]]])!r}; use the hashed split"
        )
