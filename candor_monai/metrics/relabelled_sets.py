"""The candidate sets and queries of a group whose labels were exchanged between patients, exchange by exchange.

A label comes from the image that stands in the line of the exchange (`patient_exchange`) where the patient's labels come
from, so many places further as the image is among its patient's. What is asked of a label is therefore kept in the
order of that line. A common label is found by going through the draw until there are enough; a rare one by following
those who carry it to the images that take it, which are put into their order in a table of bits.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled

# Position of a word's only bit, by the leading 6 bits of its product with a number all whose 6-bit parts differ.
_SPREAD = np.uint64(0x03F79D71B4CB0A89)
_BIT = np.zeros(64, np.uint8)
_BIT[[(int(_SPREAD) << bit) % 2**64 >> 58 for bit in range(64)]] = np.arange(64)


@compiled
def first_drawn(
    sources: np.ndarray,
    label: np.ndarray,
    wanted: int,
    order: np.ndarray,
    patient: np.ndarray,
    slot: np.ndarray,
    unit: np.ndarray,
    seen: np.ndarray,
    out: np.ndarray,
) -> bool:
    """The first images of a label in the order of the draw.

    Args:
        sources: of `Moves`, shape (B, U), int32.
        label: in the order of the line, shape (N,), int8.
        wanted: the label.
        order: the images as they are drawn, shape (N,), int32.
        patient, slot: of these, shape (N,), int32.
        unit: code of each image's patient, shape (N,), int32.
        seen: of every patient, uint8, written to: of each patient only the first image counts. Empty: all count.
        out: shape (B, n), int32, written to.

    Returns:
        whether all n were found in every exchange.
    """
    batch, count = out.shape
    for number in range(batch):
        found = place = 0
        start, mine = sources[number], out[number]
        if len(seen):
            seen[:] = 0
            while found < count and place < len(order):
                if label[start[patient[place]] + slot[place]] == wanted:
                    image = order[place]
                    mine[found] = image
                    found += 1 - seen[unit[image]]
                    seen[unit[image]] = 1
                place += 1
        else:
            while found < count and place < len(order):
                # Written in any case, and kept if it is one: the processor cannot guess which.
                mine[found] = order[place]
                found += label[start[patient[place]] + slot[place]] == wanted
                place += 1
        if found < count:
            return False
    return True


@compiled
def first_followed(
    destinations: np.ndarray,
    patient: np.ndarray,
    slot: np.ndarray,
    place: np.ndarray,
    order: np.ndarray,
    unit: np.ndarray,
    seen: np.ndarray,
    marks: np.ndarray,
    out: np.ndarray,
) -> bool:
    """The first images in an order that take the labels of some images.

    Args:
        destinations: of `Moves`, shape (B, U), int32.
        patient, slot: of the images that give labels, shape (P,), int32.
        place: of the image that stands at each place of the line in `order`, shape (N,), int32; N: it does not count.
        order: the images, shape (N,), int32.
        unit, seen: as in `first_drawn`.
        marks: a bit of each image, shape (⌈N/64⌉ + 1,), uint64, written to.
        out: shape (B, n), int32, written to; −1 where there are fewer.

    Returns:
        whether all n were found in every exchange.
    """
    batch, count = out.shape
    everywhere = True
    for number in range(batch):
        start, mine = destinations[number], out[number]
        marks[:] = np.uint64(0)
        for giver in range(len(patient)):
            at = place[start[patient[giver]] + slot[giver]]
            marks[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
        # What is not in the order would stand behind it.
        marks[len(order) >> 6] &= (np.uint64(1) << np.uint64(len(order) & 63)) - np.uint64(1)
        seen[:] = 0
        found = word = 0
        while found < count and word < len(marks):
            left = marks[word]
            while left != np.uint64(0) and found < count:
                lowest = left & (~left + np.uint64(1))
                left ^= lowest
                image = order[64 * word + _BIT[(lowest * _SPREAD) >> np.uint64(58)]]
                mine[found] = image
                if len(seen):
                    found += 1 - seen[unit[image]]
                    seen[unit[image]] = 1
                else:
                    found += 1
            word += 1
        everywhere &= found == count
        mine[found:] = -1
    return everywhere


@compiled
def asked_lanes(
    sources: np.ndarray,
    patient: np.ndarray,
    slot: np.ndarray,
    makes_query: np.ndarray,
    may_ask: np.ndarray,
    most: int,
    out: np.ndarray,
) -> None:
    """Which images are queries, the first of those who may be.

    Args:
        sources: of `Moves`, shape (B, U), int32, with B ≤ 64.
        patient, slot: of the images, shape (M,), int32.
        makes_query: whether a label makes a query of whoever takes it, in the order of the line, shape (N,), bool.
        may_ask: whether each of the images may be a query, shape (M,), bool.
        most: queries of an exchange.
        out: bit b: a query in exchange b, shape (M,), uint64, written to.
    """
    out[:] = np.uint64(0)
    for number in range(len(sources)):
        start, lane, asking = sources[number], np.uint64(1) << np.uint64(number), 0
        for image in range(len(patient)):
            asks = makes_query[start[patient[image]] + slot[image]] & may_ask[image]
            asking += asks
            if asking > most:
                break
            if asks:
                out[image] |= lane
