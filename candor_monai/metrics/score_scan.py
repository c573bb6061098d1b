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


def places_above(table: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where scores reach the limit of their query.

    Args:
        table: scores, shape (candidates, queries), of a dtype that compares as scores do; its rows may lie apart.
        limit: of each query, shape (queries,), of the same dtype.

    Returns:
        (candidate, query) of each, in the order of the table, two int64 arrays.

    >>> [found.tolist() for found in places_above(np.array([[1, 5], [7, 2]]), np.array([7, 2]))]
    [[0, 1, 1], [1, 0, 1]]
    """
    flat, width = lines(table)
    found = _places_above(flat, len(table), width, np.ascontiguousarray(limit, table.dtype))
    row = found // max(width, 1)
    return row, found - row * width


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
def _places_above(flat: np.ndarray, rows: int, width: int, limit: np.ndarray) -> np.ndarray:
    """Places in ``flat`` of what reaches the limit; lines begin ``width`` apart."""
    columns = len(limit)
    blocks = -(-columns // _TOGETHER)
    reached = np.ones(blocks, np.bool_)  # the last block, which may be short, is always looked at
    out = np.empty(1024, np.int64)
    found = 0
    for row in range(rows):
        line = flat[row * width : row * width + columns]
        # Few blocks hold anything: a loop that only compares is made of vector instructions.
        for block in range(columns // _TOGETHER):
            first, hit = block * _TOGETHER, False
            for step in range(_TOGETHER):
                hit = hit | (line[first + step] >= limit[first + step])
            reached[block] = hit
        if found + columns > len(out):
            longer = np.empty(2 * len(out) + columns, np.int64)
            longer[:found] = out[:found]
            out = longer
        for block in range(blocks):
            if reached[block]:
                for column in range(block * _TOGETHER, min((block + 1) * _TOGETHER, columns)):
                    out[found] = row * width + column
                    found += line[column] >= limit[column]
    return out[:found]


@compiled
def _take(flat: np.ndarray, starts: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(starts)):
        line = flat[starts[row] :]
        for place in range(len(columns)):
            out[row, place] = line[columns[place]]
