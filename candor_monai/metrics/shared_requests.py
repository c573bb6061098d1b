"""Requests of several option sets over one group, each distinct one once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .neighbours import Request


class DistinctRequests:
    """Requests that differ in queries, candidates or pairs left out; each with the most neighbours that were asked.

    The nearest k of a request begin its nearest k + 1, so that one answer serves all who ask for no more.

    >>> asked = DistinctRequests()
    >>> first = Request(np.array([0]), np.array([1, 2, 3]))
    >>> again = Request(np.array([0]), np.array([1, 2, 3]))
    >>> asked.add(first, 1), asked.add(again, 2), asked.ks
    (0, 0, [2])
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ks: list[int] = []
        self._alike: dict[tuple[int, ...], list[int]] = {}

    def add(self, request: Request, k: int) -> int:
        """Place of a request among the distinct ones, which it joins if it is new."""
        place = self._place(request)
        if place is None:
            place = len(self.requests)
            self.requests.append(request)
            self.ks.append(k)
            self._alike.setdefault(_outline(request), []).append(place)
        self.ks[place] = max(self.ks[place], k)
        return place

    def further(self, requests: Sequence[Request], ks: Sequence[int]) -> int:
        """How many more neighbours are asked for when these are added, which differ from each other."""
        places = [self._place(request) for request in requests]
        there = [0 if place is None else self.ks[place] for place in places]
        return sum(
            len(request.queries) * max(k - known, 0) for request, k, known in zip(requests, ks, there, strict=True)
        )

    def _place(self, request: Request) -> int | None:
        alike = self._alike.get(_outline(request), ())
        return next((place for place in alike if _same(self.requests[place], request)), None)


def _outline(request: Request) -> tuple[int, ...]:
    """What tells most requests apart."""
    ends = (members[at] for members in (request.queries, request.candidates) for at in (0, -1) if len(members))
    return len(request.queries), len(request.candidates), len(request.excluded[0]), *map(int, ends)


def _same(one: Request, other: Request) -> bool:
    pairs = zip(_arrays(one), _arrays(other), strict=True)
    return all(first is second or np.array_equal(first, second) for first, second in pairs)


def _arrays(request: Request) -> tuple[np.ndarray, ...]:
    return request.queries, request.candidates, *request.excluded
