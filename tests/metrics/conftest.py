"""Fixtures of the measures' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings

# Time decides no test: on a busy machine an example takes long.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")


@pytest.fixture
def number_of_threads() -> Iterator[Callable[[int], None]]:
    """Set PyTorch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
