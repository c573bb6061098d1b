"""What handlers take from an engine and from those who made them: columns, features, which process this is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

#: Features, shape (N, d), float32, with which of them are present, shape (N,), bool; or a function that gives both.
GivenFeatures = tuple[np.ndarray, np.ndarray] | Callable[[], tuple[np.ndarray, np.ndarray]]


def features_of(given: GivenFeatures) -> tuple[np.ndarray, np.ndarray]:
    """Features, shape (N, d), and which are present, shape (N,), bool; asked for now where a function gives them."""
    features, present = given() if callable(given) else given
    return features, np.asarray(present, dtype=np.bool_)


def present_features(given: GivenFeatures) -> tuple[np.ndarray, np.ndarray]:
    """The features that are present, shape (n, d), and their rows, shape (n,), int64; not copied where all are."""
    features, present = features_of(given)
    rows = np.flatnonzero(present)
    return (features if len(rows) == len(features) else features[rows]), rows


def several_processes() -> bool:
    """Whether this process works with others in torch's process group."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def column(data: Any, key: str) -> torch.Tensor | None:
    """The values of ``key`` in a batch or output, batch first, as MONAI leaves it; None where it has no such key.

    Args:
        data: a mapping of tensors, or a list with one mapping an item (decollated).
        key: the key.
    """
    if isinstance(data, Mapping):
        return torch.as_tensor(data[key]) if key in data else None
    if isinstance(data, Sequence) and data and all(isinstance(item, Mapping) for item in data):
        if key not in data[0]:
            return None
        return torch.stack([torch.as_tensor(item[key]) for item in data])
    return None


def needed_column(data: Any, key: str, where: str) -> torch.Tensor:
    """As :func:`column`, for a key that must be there.

    Args:
        data, key: as for :func:`column`.
        where: what ``data`` is, for the message.

    Raises:
        ValueError: it is not.
    """
    found = column(data, key)
    if found is None:
        raise ValueError(f"{where} has no key {key!r}.")
    return found
