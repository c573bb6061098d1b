"""Blocks of scores: room for them, and which of them reach the limit of their query. A block is read once."""

from __future__ import annotations

import numpy as np
import torch

from .compiled import compiled

_CACHE_LINE = 64  # bytes
# Scores of a line that are compared before any of them is looked at.
_TOGETHER = 64


def score_room(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Uninitialised room for scores, shape (rows, columns).

    Its rows begin at cache lines: a matrix product is written there up to a third faster than where rows of any length
    follow each other.

    >>> score_room(2, 3).shape, score_room(2, 3).stride()
    (torch.Size([2, 3]), (16, 1))
    """
    line = _CACHE_LINE // dtype.itemsize
    return torch.empty((rows, -(-columns // line) * line), dtype=dtype)[:, :columns]


def places_above(table: np.ndarray, limit: np.ndarray, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Where scores reach the limit of their query.

    Args:
        table: scores, shape (candidates, queries), of a dtype that compares as scores do; its rows may lie apart.
        limit: of each query, shape (queries,), of the same dtype.
        rows: that are looked at, int64; None: all.

    Returns:
        (candidate, query) of each, row by row, two int64 arrays.

    >>> [found.tolist() for found in places_above(np.array([[1, 5], [7, 2]]), np.array([7, 2]))]
    [[0, 1, 1], [1, 0, 1]]
    """
    flat, width = lines(table)
    rows = np.arange(len(table)) if rows is None else rows
    found = _places_above(flat, rows * width, np.ascontiguousarray(limit, table.dtype))
    row = found // max(width, 1)
    return row, found - row * width


def group_peaks(table: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The largest score of every group of rows of a table.

    Args:
        table: shape (rows, queries), of a dtype that compares as scores do.
        groups: rows of the groups, shape (groups, size of a group), int64.

    Returns:
        shape (groups, queries).

    >>> group_peaks(np.array([[1, 5], [7, 2], [0, 3]]), np.array([[0, 2], [1, 1]])).tolist()
    [[1, 5], [7, 2]]
    """
    flat, width = lines(table)
    peaks = np.empty((len(groups), table.shape[1]), table.dtype)
    _write_peaks(flat, width, groups, peaks)
    return peaks


def opened_groups(
    table: np.ndarray, peaks: np.ndarray, groups: np.ndarray, limit: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that reach the limit of their query, found in the groups whose largest score does.

    Args:
        table: scores, shape (candidates, queries), of a dtype that compares as scores do.
        peaks: the largest score of each group, shape (groups, queries), of the same dtype.
        groups: rows of the table that are in each group, shape (groups, size of a group), int64.
        limit: of each query, shape (queries,), of the same dtype.

    Returns:
        (candidate, query, score) of each, two int64 arrays and the scores.

    >>> table = np.array([[1, 5], [7, 2], [0, 3]])
    >>> found = opened_groups(table, np.array([[7, 5]]), np.array([[0, 1, 2]]), np.array([6, 3]))
    >>> [column.tolist() for column in found]
    [[0, 1, 2], [1, 0, 1], [5, 7, 3]]
    """
    flat, width = lines(table)
    place = _opened(flat, width, np.ascontiguousarray(peaks).ravel(), groups, np.ascontiguousarray(limit, table.dtype))
    member = place // max(width, 1)
    return member, place - member * width, flat[place]


def taken(table: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """``table[np.ix_(rows, columns)]`` of a table whose rows may lie apart.

    >>> taken(np.arange(6).reshape(2, 3), np.array([1]), np.array([2, 0])).tolist()
    [[5, 3]]
    """
    flat, width = lines(table)
    out = np.empty((len(rows), len(columns)), table.dtype)
    _take(flat, rows * width, columns, out)
    return out


def lines(table: np.ndarray) -> tuple[np.ndarray, int]:
    """The memory of a table, flat, and how far its rows are apart in it: loops are compiled for one layout."""
    if not len(table) or table.strides[1] != table.itemsize:
        table = np.ascontiguousarray(table)
    if not table.size:
        return np.empty(0, table.dtype), table.shape[1]
    width = table.strides[0] // table.itemsize if len(table) > 1 else table.shape[1]
    length = (len(table) - 1) * width + table.shape[1]
    return np.lib.stride_tricks.as_strided(table, (length,), (table.itemsize,), writeable=False), width


@compiled
def _places_above(flat: np.ndarray, starts: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Places in ``flat`` of what reaches the limit, in lines that begin at ``starts``."""
    columns = len(limit)
    blocks = -(-columns // _TOGETHER)
    reached = np.ones(blocks, np.bool_)  # the last block, which may be short, is always looked at
    out = np.empty(1024, np.int64)
    found = 0
    for start in starts:
        line = flat[start : start + columns]
        # Few blocks hold anything: a loop that only compares is made of vector instructions.
        for block in range(columns // _TOGETHER):
            first, hit = block * _TOGETHER, False
            for step in range(_TOGETHER):
                hit = hit | (line[first + step] >= limit[first + step])
            reached[block] = hit
        out = _with_room(out, found, columns)
        for block in range(blocks):
            if reached[block]:
                for column in range(block * _TOGETHER, min((block + 1) * _TOGETHER, columns)):
                    out[found] = start + column
                    found += line[column] >= limit[column]
    return out[:found]


@compiled
def _with_room(out: np.ndarray, found: int, more: int) -> np.ndarray:
    """An array that begins as ``out`` does and has room for so many more."""
    if found + more <= len(out):
        return out
    longer = np.empty(2 * len(out) + more, np.int64)
    longer[:found] = out[:found]
    return longer


@compiled
def _write_peaks(flat: np.ndarray, width: int, groups: np.ndarray, peaks: np.ndarray) -> None:
    columns = peaks.shape[1]
    for group in range(len(groups)):
        most = peaks[group]
        first = groups[group, 0] * width
        most[:] = flat[first : first + columns]
        for member in range(1, groups.shape[1]):
            start = groups[group, member] * width
            line = flat[start : start + columns]
            for column in range(columns):
                most[column] = line[column] if line[column] > most[column] else most[column]


@compiled
def _opened(flat: np.ndarray, width: int, peaks: np.ndarray, groups: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Places in ``flat`` of what reaches the limit, group by group, row by row."""
    columns, size = len(limit), groups.shape[1]
    some = np.empty(columns, np.int64)
    out = np.empty(1024, np.int64)
    found = 0
    for group in range(len(groups)):
        line = peaks[group * columns : (group + 1) * columns]
        number = 0
        for column in range(columns):  # no branch that a processor could guess wrong
            some[number] = column
            number += line[column] >= limit[column]
        out = _with_room(out, found, number * size)
        for member in range(size):
            start = groups[group, member] * width
            for at in range(number):
                column = some[at]
                out[found] = start + column
                found += flat[start + column] >= limit[column]
    return out[:found]


@compiled
def in_reach(
    member: np.ndarray,
    query: np.ndarray,
    score: np.ndarray,
    length: np.ndarray,
    residual: np.ndarray,
    own_residual: np.ndarray,
    stored: np.ndarray,
    floor: np.ndarray,
) -> np.ndarray:
    """Places of pairs whose score, with what their own candidate adds to its bound, reaches a floor.

    Args:
        member: candidate of each pair, shape (S,), int64.
        query: of each pair, shape (S,), int64.
        score: of each pair, shape (S,), float32.
        length, residual: of each candidate, float64.
        own_residual, stored, floor: residual, ‖row of the matrix‖ and floor of each query, float64.

    Returns:
        where score + own_residual·length + stored·residual ≥ floor, int64, ascending.
    """
    out = np.empty(len(member), np.int64)
    found = 0
    for pair in range(len(member)):
        one, other = query[pair], member[pair]
        most = score[pair] + (own_residual[one] * length[other] + stored[one] * residual[other]) * (1 + 2e-6)
        out[found] = pair
        found += most >= floor[one]
    return out[:found]


@compiled
def _take(flat: np.ndarray, starts: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(starts)):
        line = flat[starts[row] :]
        for place in range(len(columns)):
            out[row, place] = line[columns[place]]
