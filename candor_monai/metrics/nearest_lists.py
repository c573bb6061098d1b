"""The nearest candidates of each query, as far down as resampling needs them.

The inference code asks again and again for the k nearest members of some subset of the candidates.
A short sorted list of the nearest candidates answers nearly always; the few queries whose list runs
out get a longer one, up to all candidates, so the answer is never approximate.

Distances are half the squared distance of the normalised rows, 1 − cosine, formed in float64 and kept in
float32: features packed in a cone keep their differences, and the last bits of a matrix product, which
depend on the number of threads and on what is computed beside, are rounded away. A copy's distance is all last bits:
what is below `SAME` is 0, so that copies on both sides of a query tie as they do in the exact measure.
"""

from __future__ import annotations

import numpy as np
import torch

from .draw import same_code_pairs
from .similarity import unit_rows

# Distances of rows that differ in the last bits of float32 are smaller, and so are the errors of a product in float64.
SAME = 1e-12
_BLOCK = 1024


class NearestLists:
    """Sorted lists of the nearest candidates of each query.

    Args:
        features: the stored rows, shape (N, d).
        queries: rows of the queries, shape (Q,), int64.
        candidates: rows of the candidates, shape (n,), int64.
        units: code of each image's patient, shape (N,), int64.
        same_patient: leave all images of the query's patient out; else only the query itself.
        length: candidates in the first lists.

    Attributes:
        index: positions in `candidates`, nearest first, shape (Q, m), int64; n where fewer are left.
        distance: 1 − cosine, shape (Q, m), float32; infinite where fewer are left.
    """

    def __init__(
        self,
        features: np.ndarray,
        queries: np.ndarray,
        candidates: np.ndarray,
        units: np.ndarray,
        same_patient: bool,
        length: int,
    ) -> None:
        self._candidates = candidates
        self._queries = queries
        self._units = units
        self._key = units if same_patient else np.arange(len(units))
        base = unit_rows(features, candidates)
        self._centre = base.mean(axis=0)
        self._base = torch.from_numpy(base - self._centre)
        self._half = 0.5 * (self._base * self._base).sum(dim=1)
        self._features = features
        self.index, self.distance = self.longer(np.arange(len(queries)), length)

    def __len__(self) -> int:
        return len(self._candidates)

    def units_of_nearest(self, k: int) -> np.ndarray:
        """Units of the k nearest candidates of all queries, flat, int64; those that are left out are missing."""
        index = self.index[:, :k]
        return self._units[self._candidates[index[index < len(self)]]]

    def longer(self, which: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """`index` and `distance` of some queries (positions in `queries`), with lists of the given length."""
        length = min(length, len(self))
        index = np.empty((len(which), length), np.int64)
        distance = np.empty((len(which), length), np.float32)
        for start in range(0, len(which), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = self._queries[which[part]]
            point = torch.from_numpy(unit_rows(self._features, rows) - self._centre)
            product = torch.addmm(self._half[None, :], point, self._base.T, alpha=-1)
            product += 0.5 * (point * point).sum(dim=1, keepdim=True)
            far = product.to(torch.float32)
            far[far < SAME] = 0.0
            query, candidate = same_code_pairs(self._key, rows, self._candidates)
            far[torch.from_numpy(query), torch.from_numpy(candidate)] = torch.inf
            value, place = torch.topk(far, length, dim=1, largest=False)
            distance[part] = value.numpy()
            index[part] = place.numpy()
        index[np.isinf(distance)] = len(self)
        return index, distance
