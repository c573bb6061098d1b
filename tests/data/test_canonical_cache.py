"""Decoding once for several encoders."""

import numpy as np
import pytest

from candor_monai.data.canonical_cache import CachedPool, CanonicalCache
from candor_monai.utils import DecodeError

STATE = (10, 20)


class CountingPool:
    """Decodes index i to an image of value i; odd thousands fail."""

    def __init__(self):
        self.decoded = []

    def map(self, items):
        for index, *_ in items:
            self.decoded.append(index)
            if index >= 1000:
                yield index, DecodeError("corrupt", "planted"), None, 0.1
            else:
                yield index, np.full((3, 4, 4), index, dtype=np.uint8), f"meta {index}", 0.1


def items(*indices):
    return [(index, f"{index}.png", STATE) for index in indices]


def values(results):
    return [(i, None if isinstance(p, DecodeError) else int(p[0, 0, 0]), m) for i, p, m, _ in results]


def test_the_second_pass_decodes_nothing():
    pool = CountingPool()
    cached = CachedPool(pool, CanonicalCache())
    first = values(cached.map(items(3, 1, 2)))
    assert first == [(3, 3, "meta 3"), (1, 1, "meta 1"), (2, 2, "meta 2")]
    assert values(cached.map(items(3, 1, 2))) == first
    assert pool.decoded == [3, 1, 2]


def test_order_is_kept_between_what_is_there_and_what_is_not():
    pool = CountingPool()
    cached = CachedPool(pool, CanonicalCache())
    list(cached.map(items(2, 4)))
    assert [i for i, *_ in cached.map(items(1, 2, 3, 4, 5))] == [1, 2, 3, 4, 5]
    assert pool.decoded == [2, 4, 1, 3, 5]


def test_failures_are_tried_again_and_another_state_of_a_file_is_another_image():
    pool = CountingPool()
    cached = CachedPool(pool, CanonicalCache())
    list(cached.map(items(1000, 5)))
    list(cached.map([*items(1000, 5), (5, "5.png", (10, 21)), (6, b"bytes", None)]))
    assert pool.decoded == [1000, 5, 1000, 5, 6]


@pytest.mark.parametrize("disk", [0, 10_000])
def test_bounds(disk, tmp_path):
    pool = CountingPool()
    cache = CanonicalCache(memory_bytes=32, disk_bytes=disk, folder=tmp_path)  # two grey images of 16 bytes
    cached = CachedPool(pool, cache)
    first = values(cached.map(items(1, 2, 3, 4)))
    assert values(cached.map(items(1, 2, 3, 4))) == first
    assert pool.decoded == [1, 2, 3, 4] + ([] if disk else [3, 4])


def test_colour_comes_back_as_it_was():
    cache = CanonicalCache()
    colour = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    cache.put("a", colour, None)
    found = cache.get("a")
    assert found is not None
    assert np.array_equal(found[0], colour)
    found[0][:] = 0
    assert np.array_equal(cache.get("a")[0], colour)
