"""The unit of work: fixed blocks of image ids, always forwarded at one constant batch size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EMPTY = -1
MOST_EXTRA = 1.25  # forward passes that keeping places may cost, relative to the fewest


def fixed_blocks(image_ids: Sequence[str], batch_size: int) -> np.ndarray:
    """Cut the ids, in their sorted order, into blocks.

    Args:
        image_ids: N distinct ids, in any order.
        batch_size: images a block.

    Returns:
        shape (ceil(N / batch_size), batch_size), int64: places in ``image_ids``, -1 where the last block is short.

    Raises:
        ValueError: ``batch_size`` below 1.

    >>> fixed_blocks(["c", "a", "b"], 2).tolist()
    [[1, 2], [0, -1]]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    order = np.argsort(np.asarray(image_ids, dtype=object), kind="stable") if len(image_ids) else np.zeros(0, np.int64)
    return _cut(order, batch_size)


def work_blocks(
    image_ids: Sequence[str], missing: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1
) -> np.ndarray:
    """The blocks that one process has to forward.

    An image keeps its place in its block and the block its size, whatever else is missing: so an interrupted run that
    is taken up again forwards the same batches as one that was not. Only when that would cost a quarter more forward
    passes (images scattered over many blocks, as after new images came to a cohort, or views beside originals that are
    stored) are the missing ids cut into blocks of their own.

    Args:
        image_ids: N distinct ids of the whole cohort.
        missing: shape (N,), bool: what the store lacks.
        batch_size: images a block.
        rank, world_size: this process among those that share the work; blocks are dealt out in turn.

    Returns:
        shape (number of blocks, batch_size), int64: places in ``image_ids``, -1 for a place that stays blank.

    Raises:
        ValueError: a number out of range, or ``missing`` not aligned.

    >>> work_blocks(["a", "b", "c", "d"], np.array([True, False, True, True]), 2).tolist()
    [[0, -1], [2, 3]]
    >>> work_blocks(["a", "b"], np.array([True, True]), 2, rank=1, world_size=2).tolist()
    []
    """
    if len(missing) != len(image_ids):
        raise ValueError(f"missing has {len(missing)} values for {len(image_ids)} images")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    blocks = fixed_blocks(image_ids, batch_size)
    wanted = np.append(np.asarray(missing, dtype=bool), False)[blocks]
    blocks = np.where(wanted, blocks, EMPTY)[wanted.any(axis=1)]
    needed = -(-int(wanted.sum()) // batch_size)
    if len(blocks) > MOST_EXTRA * needed:
        blocks = _cut(blocks[blocks != EMPTY], batch_size)
    return blocks[rank::world_size]


def _cut(rows: np.ndarray, batch_size: int) -> np.ndarray:
    blocks = np.full((-(-len(rows) // batch_size), batch_size), EMPTY, dtype=np.int64)
    blocks.reshape(-1)[: len(rows)] = rows
    return blocks
