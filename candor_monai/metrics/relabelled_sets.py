"""The candidate sets and queries of a group whose labels were exchanged between patients, exchange by exchange.

A label comes from the image that stands in the line of the exchange (`patient_exchange`) where the patient's labels
come from, so many places further as the image is among its patient's. What is asked of a label is therefore kept in the
order of that line. A common label is found by going through the draw until there are enough; a rare one by following
those who carry it to the images that take it, which are put into their order in a table of bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import compiled
from .lane_bits import BIT, SPREAD

# Images whose labels are looked up before the next step looks at them.
_TOGETHER = 256


class Places(NamedTuple):
    """Some images by their patients, whose labels move together.

    Args:
        patient, slot: of `PatientExchange`, of these images, int32.
    """

    patient: np.ndarray
    slot: np.ndarray

    def part(self, which: slice | np.ndarray) -> Places:
        return Places(self.patient[which], self.slot[which])


class Order(NamedTuple):
    """The images of a group, N, in an order of which the first are wanted.

    Args:
        images: in that order, shape (N,), int32.
        places: of these.
        place: in `images`, of the image at each place of the exchange's line, shape (N,), int32; N: it does not count.
    """

    images: np.ndarray
    places: Places
    place: np.ndarray


class Room(NamedTuple):
    """Where the loops work, in one thread.

    Args:
        starts: one row of `Moves`, shape (U,), int32.
        hits: shape (_TOGETHER,), uint8.
        marks: a bit of each image and of none, shape (⌈(N + 1)/64⌉,), uint64.
        seen: of every patient of whom only the first image counts, uint8; empty: all images count.
    """

    starts: np.ndarray
    hits: np.ndarray
    marks: np.ndarray
    seen: np.ndarray


def room(exchanged: int, images: int, once: int) -> Room:
    """Room for so many patients who exchange, images, and patients of whom one image counts."""
    hits, marks = np.empty(_TOGETHER, np.uint8), np.empty(images // 64 + 1, np.uint64)
    return Room(np.empty(exchanged, np.int32), hits, marks, np.empty(once, np.uint8))


@compiled
def relabelled_sides(
    sources: np.ndarray,
    destinations: np.ndarray,
    label: np.ndarray,
    draw: Order,
    givers: Places,
    unit: np.ndarray,
    work: Room,
    positives: np.ndarray,
    negatives: np.ndarray,
) -> bool:
    """R⁺ and R⁻ in some exchanges: the first images of each label in the order of the draw.

    Args:
        sources, destinations: of `Moves`, shape (B, U), int32.
        label: in the order of the line, shape (N,), int8.
        draw: the images as they are drawn.
        givers: the positive images, where they are rare: they are followed; else empty.
        unit: code of each image's patient, shape (N,), int64.
        work: written to.
        positives, negatives: shape (B, n), int32, written to.

    Returns:
        whether all were found.
    """
    there = True
    for number in range(len(sources)):
        work.starts[:] = sources[number]
        there &= _drawn(label, 0, draw, unit, work, negatives[number])
        if len(givers.patient):
            work.starts[:] = destinations[number]
            there &= _followed(givers, draw, unit, work, positives[number]) == positives.shape[1]
        else:
            there &= _drawn(label, 1, draw, unit, work, positives[number])
    return there


@compiled
def relabelled_queries(
    destinations: np.ndarray, givers: Places, order: Order, unit: np.ndarray, work: Room, out: np.ndarray
) -> None:
    """The first images in an order that take the labels of some images.

    Args:
        destinations: of `Moves`, shape (B, U), int32.
        givers: of the labels that make a query.
        order: of the queries.
        unit, work: as in `relabelled_sides`; all images count.
        out: shape (B, Q), int32, written to; −1 where there are fewer.
    """
    for number in range(len(destinations)):
        work.starts[:] = destinations[number]
        found = _followed(givers, order, unit, work, out[number])
        out[number, found:] = -1


@compiled
def relabelled_lanes(
    sources: np.ndarray, makes_query: np.ndarray, places: Places, may_ask: np.ndarray, most: int, work: Room
) -> np.ndarray:
    """Which images are queries, the first of those who may be, in up to 64 exchanges.

    Args:
        sources: of `Moves`, shape (B, U), int32, with B ≤ 64.
        makes_query: whether a label makes a query of whoever takes it, in the order of the line, shape (N,), bool.
        places: of M images.
        may_ask: whether each of them may be a query, shape (M,), bool.
        most: queries of an exchange.
        work: written to.

    Returns:
        bit b: a query in exchange b, shape (M,), uint64.
    """
    out = np.zeros(len(may_ask), np.uint64)
    starts = work.starts
    for number in range(len(sources)):
        starts[:] = sources[number]
        lane, asking = np.uint64(number), 0
        for image in range(len(out)):
            asks = makes_query[starts[places.patient[image]] + places.slot[image]] & may_ask[image] & (asking < most)
            asking += asks
            out[image] |= np.uint64(asks) << lane
    return out


@compiled
def _drawn(label: np.ndarray, wanted: int, draw: Order, unit: np.ndarray, work: Room, out: np.ndarray) -> bool:
    """The first images of a label: ``out``, shape (n,), int32. Whether there are so many."""
    starts, hits, images, (patient, slot) = work.starts, work.hits, draw.images, draw.places
    once = len(work.seen) > 0
    work.seen[:] = 0
    found = first = 0
    while found < len(out) and first < len(images):
        # All of some labels are looked up before anything depends on one: the processor need not wait.
        count = min(len(hits), len(images) - first)
        for at in range(count):
            hits[at] = label[starts[patient[first + at]] + slot[first + at]] == wanted
        if once:
            for at in range(count):
                if hits[at]:
                    number = unit[images[first + at]]
                    hits[at] = 1 - work.seen[number]
                    work.seen[number] = 1
        for at in range(count):
            if found == len(out):
                break
            out[found] = images[first + at]
            found += hits[at]
        first += count
    return found == len(out)


@compiled
def _followed(givers: Places, order: Order, unit: np.ndarray, work: Room, out: np.ndarray) -> int:
    """The first images that take the labels of others: ``out``, shape (n,), int32. How many there are, at most n."""
    starts, marks, place, (patient, slot) = work.starts, work.marks, order.place, givers
    once = len(work.seen) > 0
    work.seen[:] = 0
    marks[:] = np.uint64(0)
    for giver in range(len(patient)):
        at = place[starts[patient[giver]] + slot[giver]]
        marks[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
    # What does not count stands behind the last.
    count = len(order.images)
    marks[count >> 6] &= (np.uint64(1) << np.uint64(count & 63)) - np.uint64(1)
    found = 0
    for word in range(len(marks)):
        left = marks[word]
        while left != np.uint64(0) and found < len(out):
            lowest = left & (~left + np.uint64(1))
            left ^= lowest
            image = order.images[64 * word + BIT[(lowest * SPREAD) >> np.uint64(58)]]
            out[found] = image
            if once:
                found += 1 - work.seen[unit[image]]
                work.seen[unit[image]] = 1
            else:
                found += 1
        if found == len(out):
            break
    return found
