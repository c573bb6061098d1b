"""Margins of many random draws, read off sorted lists of each query's nearest images: compiled walks.

A draw is one bit (a lane) of a word: :func:`set_lane` notes who is a candidate in it. :func:`read_margins` goes down
the list of a query once for all draws of a table; an image's word says at once in which of 64 draws it counts, and a
draw that has its last neighbour leaves the walk.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .lane_bits import BIT, SPREAD


@compiled
def set_lane(member: np.ndarray, place: np.ndarray, rows: np.ndarray, lane: int) -> None:
    """Note the candidates of a draw.

    Args:
        member: bit b of word w: the image is a candidate in draw 64·w + b, shape (images + 1, W), uint64, written.
        place: of each row among the images, shape (N,), int32.
        rows: the candidates, shape (n,), int64.
        lane: number of the draw.
    """
    word, bit = lane // 64, np.uint64(1) << np.uint64(lane % 64)
    for at in range(len(rows)):
        member[place[rows[at]], word] |= bit


@compiled
def leave_out_last(
    left_out: np.ndarray,
    codes: np.ndarray,
    queries: np.ndarray,
    positives: np.ndarray,
    negatives: np.ndarray,
    place: np.ndarray,
    sides: np.ndarray,
    lane: int,
) -> None:
    """The side of a draw that holds no image of the query's patient loses its last, where the other side holds one.

    Args:
        left_out: place among the images that is left out on each side, −1 for none, shape (2, Q, lanes), int32,
            written.
        codes: patient of each row, shape (N,), int64.
        queries: rows, shape (Q,), int64.
        positives, negatives: the candidates of the draw in its order, rows, int64, at least one each.
        place: of each row among the images, shape (N,), int32.
        sides: zeros, one for each patient, uint8; left as they were.
        lane: number of the draw.
    """
    for at in range(len(positives)):
        sides[codes[positives[at]]] |= 1
    for at in range(len(negatives)):
        sides[codes[negatives[at]]] |= 2
    for query in range(len(queries)):
        held = sides[codes[queries[query]]]
        if held == 2:
            left_out[0, query, lane] = place[positives[-1]]
        elif held == 1:
            left_out[1, query, lane] = place[negatives[-1]]
    for at in range(len(positives)):
        sides[codes[positives[at]]] = 0
    for at in range(len(negatives)):
        sides[codes[negatives[at]]] = 0


@compiled
def count_listed(rows: np.ndarray, line: np.ndarray, chosen: np.ndarray, number: np.ndarray) -> None:
    """How many images of each query's list are chosen.

    Args:
        rows: the lists, nearest first, shape (A, D), int64; −1 past the end.
        line: which list is that of a query, −1: none, shape (Q,), int64.
        chosen: whether each row is, shape (N + 1,), bool; the last, of row −1, is not.
        number: shape (Q,), int64; of queries with a list, written.
    """
    last = len(chosen) - 1
    for query in range(len(line)):
        if line[query] >= 0:
            count = 0
            for at in range(rows.shape[1]):
                row = rows[line[query], at]
                count += chosen[row if row >= 0 else last]
            number[query] = count


@compiled
def copy_listed(
    rows: np.ndarray,
    similarities: np.ndarray,
    line: np.ndarray,
    chosen: np.ndarray,
    place: np.ndarray,
    start: np.ndarray,
    image: np.ndarray,
    similarity: np.ndarray,
) -> None:
    """Copy the chosen images of each query's list, in their order.

    Args:
        rows, line, chosen: see :func:`count_listed`.
        similarities: of the lists, shape (A, D), float64.
        place: of each row among the images, int32.
        start: where the images of each query begin, and where all end, shape (Q + 1,), int64.
        image: places of the images, shape (start[-1],), int32, written.
        similarity: shape (start[-1],), float64, written.
    """
    last = len(chosen) - 1
    for query in range(len(line)):
        if line[query] >= 0:
            to = start[query]
            for at in range(rows.shape[1]):
                row = rows[line[query], at]
                if chosen[row if row >= 0 else last]:
                    image[to] = place[row]
                    similarity[to] = similarities[line[query], at]
                    to += 1


@compiled
def read_margins(
    start: np.ndarray,
    image: np.ndarray,
    similarity: np.ndarray,
    whole: np.ndarray,
    member: np.ndarray,
    lanes: int,
    left_out: np.ndarray,
    ks: np.ndarray,
    first: int,
    margins: np.ndarray,
    unanswered: np.ndarray,
) -> None:
    """DM of every query in some draws, from its lists of positives and of negatives.

    Args:
        start: where the list of each label (positives, negatives) and query begins, and where the last of the label
            ends, shape (2, Q + 1), int64.
        image: the images of all lists, nearest first, as rows of ``member``, int32.
        similarity: theirs, float64.
        whole: the list holds every image of the label but those of the query's own code, shape (2, Q), bool.
        member: bit b of word w: the image is a candidate in draw 64·w + b, shape (images + 1, W), uint64.
        lanes: draws.
        left_out: image that a query is not compared with in a draw, −1 for none, shape (2, Q, lanes), int32; with
            Q = 0 nobody is left out.
        ks: numbers of neighbours, ascending, at least 1, shape (K,), int64.
        first: number of the first draw in the next two.
        margins: shape (K, draws, Q), float64, written where both lists hold enough candidates.
        unanswered: a list that is not whole ends before the last of ``ks``, shape (draws, Q), bool, written.
    """
    queries, most, words = start.shape[1] - 1, ks[-1], member.shape[1]
    position = np.full(most + 1, -1, np.int64)
    for at in range(len(ks)):
        position[ks[at]] = at
    asked = np.zeros(words, np.uint64)
    for lane in range(lanes):
        asked[lane // 64] |= np.uint64(1) << np.uint64(lane % 64)
    still = np.empty(words, np.uint64)
    count, total = np.empty((2, lanes), np.int64), np.empty(lanes)
    means = np.empty((2, len(ks), lanes))
    nobody = np.full(lanes, -1, np.int32)
    for query in range(queries):
        for label in range(2):
            out = left_out[label, query] if left_out.shape[1] else nobody
            still[:] = asked
            total[:] = 0.0
            count[label] = 0
            remaining = lanes
            for at in range(start[label, query], start[label, query + 1]):
                here = image[at]
                for word in range(words):
                    bits = member[here, word] & still[word]
                    while bits:
                        rest = bits & (bits - np.uint64(1))
                        bit = bits ^ rest
                        bits = rest
                        lane = 64 * word + BIT[(bit * SPREAD) >> np.uint64(58)]
                        if out[lane] == here:
                            continue
                        total[lane] += similarity[at]
                        count[label, lane] += 1
                        number = count[label, lane]
                        if position[number] >= 0:
                            means[label, position[number], lane] = total[lane] / number
                        if number == most:
                            still[word] ^= bit
                            remaining -= 1
                if not remaining:
                    break
        for lane in range(lanes):
            least = min(count[0, lane], count[1, lane])
            for at in range(len(ks)):
                if least >= ks[at]:
                    margins[at, first + lane, query] = means[1, at, lane] - means[0, at, lane]
            unanswered[first + lane, query] = False
            for label in range(2):
                if count[label, lane] < most and not whole[label, query]:
                    unanswered[first + lane, query] = True
