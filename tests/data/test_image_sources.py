"""Images that cannot be opened, and pools that are let go."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from candor_monai.data.image_sources import decoded_one, let_go, opened
from candor_monai.utils.errors import DecodeError, UserError


def _raising(error):
    def source(index):
        raise error

    return source


@pytest.mark.parametrize(
    "error,reason,message",
    [
        (DecodeError("gone", "the server no longer has it"), "gone", "the server no longer has it"),
        (PermissionError(13, "Permission denied"), "unreadable", "cannot be read: Permission denied"),
        (ZeroDivisionError("own"), "failed", "cannot be opened: ZeroDivisionError"),
    ],
)
def test_why_an_image_is_not_opened(error, reason, message):
    found = opened(_raising(error), 3)
    assert (found.reason, str(found)) == (reason, message)
    assert decoded_one(None, _raising(error), 3).reason == reason  # no pool is asked


def test_what_concerns_every_image_ends_the_run():
    with pytest.raises(UserError, match="the server is away"):
        opened(_raising(UserError("the server is away")), 0)
    assert opened(lambda index: f"{index}.png", 3) == "3.png"


class Pool:
    def __init__(self, *pixels):
        self.pixels = pixels
        self.closed = False
        self.asked = None

    def map(self, items):
        try:
            self.asked = list(items)
            for pixels in self.pixels:
                yield self.asked[0][0], pixels, None, 0.0
        finally:
            self.closed = True


def test_one_image_and_the_pool_is_let_go():
    pixels = np.ones((3, 2, 2), dtype=np.uint8)
    pool = Pool(pixels, pixels)
    assert decoded_one(pool, lambda index: f"{index}.png", 3, 7) is pixels
    assert pool.asked == [(7, "3.png")]
    assert pool.closed
    assert decoded_one(Pool(), lambda index: "x", 0).reason == "failed"


def test_results_that_cannot_be_closed_are_fine():
    with let_go(iter([1, 2])) as results:
        assert list(results) == [1, 2]


def test_a_reason_keeps_nothing_alive():
    """A rejection may be held for long; what its frames held must not be."""

    def source(index):
        large = np.zeros(10)
        kept.append(weakref.ref(large))
        raise DecodeError("gone", "it is gone")

    kept = []
    found = opened(source, 0)
    gc.collect()
    assert found.reason == "gone"
    assert kept[0]() is None
