"""The candidates of each query above a score limit, and what requests pick from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import neighbours as nb
from .compiled import compiled
from .neighbours import Request
from .sweep_space import SweepSpace

#: (query, candidate) pairs of a request as places in it, and the places of its queries that are not served.
Picked = tuple[np.ndarray, np.ndarray, np.ndarray]

# What a request can be told of a query.
_SERVED, _SHORT, _CROWDED = 0, 1, 2


@dataclass(frozen=True)
class KeptScores:
    """Candidates whose score reaches the limit of their query.

    Attributes:
        start: where those of each query begin, and where all end, shape (V + 1,), int64.
        member: place among the candidates of the pass, shape (S,), int64.
        value: stored score, shape (S,), float64, falling within a query.
        limit: score limit of each query, shape (V,), float64; +inf where the query is not served.
        error: bound of each query, shape (V,), float64.
    """

    start: np.ndarray
    member: np.ndarray
    value: np.ndarray
    limit: np.ndarray
    error: np.ndarray

    @classmethod
    def of_raw(
        cls, query: np.ndarray, member: np.ndarray, raw: np.ndarray, limit: np.ndarray, error: np.ndarray
    ) -> KeptScores:
        """From scores above zero as they are stored (bits of bfloat16 as int16), in any order.

        Args:
            query, member: place of each, shape (S,), int64.
            raw: shape (S,).
            limit, error: of each query.
        """
        query, member, raw = by_query_and_value(query, member, raw)
        return cls(np.searchsorted(query, np.arange(len(limit) + 1)), member, nb.raw_values(raw), limit, error)

    def above(self, limit: np.ndarray) -> KeptScores:
        """Those that reach a higher limit of each query."""
        limit = np.maximum(limit, self.limit)
        stay = self.value >= np.repeat(limit, np.diff(self.start))
        start = np.concatenate([[0], np.cumsum(stay)])[self.start]
        return KeptScores(start, self.member[stay], self.value[stay], limit, self.error)


def pick(
    space: SweepSpace,
    request: Request,
    place_of_row: np.ndarray,
    chunk: np.ndarray,
    kept: KeptScores,
    k: int,
    needed: np.ndarray | None = None,
) -> Picked:
    """(query, candidate) pairs of the request that may be among its k nearest, and its queries that are not served.

    Args:
        space: of the scores.
        request: what is compared; its queries are distinct.
        place_of_row: place of each row among the candidates of the pass, −1 for others, shape (N,), int64.
        chunk: rows of the queries, ascending, shape (V,), int64.
        kept: of these.
        k: neighbours.
        needed: score limit of each query in a second pass, shape (V,), float64, or None. It is lowered to what a query
            with k candidates would have needed, where what was kept does not reach far enough.
    """
    at = np.minimum(np.searchsorted(chunk, request.queries), len(chunk) - 1)
    inside = np.flatnonzero(chunk[at] == request.queries)
    inside = inside[np.argsort(at[inside], kind="stable")]
    asked = at[inside]
    place_of_member = np.full(len(place_of_row), -1, np.int32)
    place_of_member[place_of_row[request.candidates]] = np.arange(len(request.candidates))
    by = np.argsort(request.excluded[0], kind="stable")
    out_query, out_candidate = request.excluded[0][by], request.excluded[1][by]
    most = nb.crowd(k)
    room = int(np.minimum(np.diff(kept.start)[asked], most + 1).sum())
    number, place = np.empty((2, room), np.int64)
    told, floor = np.empty(len(asked), np.uint8), np.empty(len(asked))
    found = _walk(
        kept.start,
        kept.member,
        kept.value,
        kept.limit,
        kept.error,
        space.rounding,
        asked,
        place_of_member,
        np.searchsorted(out_query, inside),
        np.searchsorted(out_query, inside, side="right"),
        out_candidate,
        k,
        most,
        number,
        place,
        told,
        floor,
    )
    number, place = number[:found], place[:found]
    if needed is not None:
        short = (told == _SHORT) & np.isfinite(floor)
        limit = nb.score_limit(space, floor[short], kept.error[asked[short]])
        needed[asked[short]] = np.minimum(needed[asked[short]], limit)
    candidate = place_of_member[kept.member[place]].astype(np.int64)
    if space.is_coarse:
        query_row = request.queries[inside]
        least = _settled_floor(space, query_row, request.candidates[candidate], number, k)
        stay = nb.upper_bound(space, kept.value[place], kept.error[asked[number]]) >= least[number]
        number, candidate = number[stay], candidate[stay]
    return inside[number], candidate, inside[told != _SERVED]


@compiled
def _walk(
    start: np.ndarray,
    member: np.ndarray,
    value: np.ndarray,
    limit: np.ndarray,
    error: np.ndarray,
    rounding: float,
    asked: np.ndarray,
    place_of_member: np.ndarray,
    first_out: np.ndarray,
    last_out: np.ndarray,
    out: np.ndarray,
    k: int,
    most: int,
    number: np.ndarray,
    place: np.ndarray,
    told: np.ndarray,
    floor: np.ndarray,
) -> int:
    """Go down what is kept of each query that is asked, until no more can be among its k nearest.

    Args:
        start, member, value, limit, error: of `KeptScores`.
        rounding: of `SweepSpace`.
        asked: queries, shape (A,), int64.
        place_of_member: place of each member among the candidates of the request, −1: none, int32.
        first_out, last_out: where candidates that are left out of each query asked begin and end, shape (A,), int64.
        out: these candidates.
        k: neighbours.
        most: candidates; a query with more is crowded.
        number, place: query asked and place in ``member`` of each pair, written, as long as there can be pairs.
        told: what became of each query asked, written, shape (A,), uint8.
        floor: what its k-th similarity (less ⟨z_q, μ⟩) is at least, written, shape (A,), float64.

    Returns:
        pairs.
    """
    found = 0
    for at in range(len(asked)):
        query, first, reached = asked[at], found, -np.inf
        for step in range(start[query], start[query + 1]):
            score = value[step]
            # Both bounds (`neighbours.lower_bound`, `upper_bound`) fall as scores do.
            if score + rounding * abs(score) + error[query] < reached:
                break
            candidate = place_of_member[member[step]]
            if candidate < 0:
                continue
            left_out = False
            for other in range(first_out[at], last_out[at]):
                left_out |= out[other] == candidate
            if left_out:
                continue
            number[found], place[found] = at, step
            found += 1
            if found - first == k:
                reached = score - rounding * abs(score) - error[query]
            if found - first > most:
                break
        floor[at] = reached
        # Whatever was not kept has a score below the limit.
        if not reached > limit[query] + rounding * abs(limit[query]) + error[query]:
            told[at], found = _SHORT, first
        elif found - first > most:
            told[at], found = _CROWDED, first
        else:
            told[at] = _SERVED
    return found


def _settled_floor(
    space: SweepSpace, query_row: np.ndarray, member_row: np.ndarray, number: np.ndarray, k: int
) -> np.ndarray:
    """Similarity, less ⟨z_q, μ⟩, that the k first pairs of each query reach: of few pairs it is worth to know exactly.

    Args:
        space: of the scores.
        query_row: rows of the queries, shape (A,), int64.
        member_row: row of the candidate of each pair, shape (S,), int64.
        number: of the query of each pair, shape (S,), int64, ascending; each query has none or at least k.
        k: neighbours.

    Returns:
        shape (A,), float64; −inf of queries without pairs.
    """
    pairs = np.bincount(number, minlength=len(query_row))
    there = np.flatnonzero(pairs)
    first = ((np.cumsum(pairs) - pairs)[there][:, None] + np.arange(k)).ravel()
    exact = space.rows.similarities(np.repeat(query_row[there], k), member_row[first]).reshape(-1, k)
    least = np.full(len(query_row), -np.inf)
    least[there] = exact.min(axis=1) - space.shifts(query_row[there]) - 1e-10
    return least


def by_query_and_value(
    query: np.ndarray, member: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted by query, then by falling value.

    Args:
        query: shape (S,), int64.
        member: shape (S,), int64.
        value: stored scores above zero, shape (S,): bits of bfloat16 as int16, float32 or float64.
    """
    # One 64-bit key sorts much faster, where query, value and member fit into it.
    bits = value if value.itemsize != 4 else value.view(np.int32)
    room, shift = 8 * bits.itemsize - 1, 63 - int(query.max(initial=0)).bit_length()
    spare = shift - room
    if value.dtype == np.float64 or int(member.max(initial=0)).bit_length() > spare:
        by = np.lexsort((-value, query))
        return query[by], member[by], value[by]
    top = np.int64(2**room - 1)
    key = (query << np.int64(shift)) | ((top - bits.astype(np.int64)) << np.int64(spare)) | member
    key.sort()
    number = top - ((key >> np.int64(spare)) & top)
    return key >> np.int64(shift), key & np.int64(2**spare - 1), number.astype(bits.dtype).view(value.dtype)
