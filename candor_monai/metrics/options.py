"""The options of an evaluation, with the defaults of the measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

_CHOICES: dict[str, tuple[Any, ...]] = {
    "sets": ("image", "patient"),
    "queries": ("all", "image_sample", "boxed", "test"),
    "roles": ("positives", "negatives"),
    "shuffle_labels": (None, "image", "patient"),
    "precision": ("auto", "int8", "bfloat16", "float32", "float64"),
}
LEAST_MEMORY = 2**20
_LEAST = {
    "k": 1,
    "seed": 0,
    "max_candidates": 2,
    "max_queries": 1,
    "redraws": 1,
    "resamples": 0,
    "permutations": 0,
    "memory_bytes": LEAST_MEMORY,
}


@dataclass(frozen=True)
class Options:
    """How discordance is measured.

    Args:
        k: neighbours a side.
        seed: of every draw and resample.
        max_candidates: largest number of candidates a side.
        max_queries: largest number of sampled images (``image_sample``) or positives (``all``) a group.
        sets: ``"patient"``: at most one image of a patient a side, the query's patient excluded, both sides equal for
            every query. ``"image"``: the paper's, the query itself removed.
        queries: ``"all"`` positives, those of an ``"image_sample"`` of the group (the paper's), the ``"boxed"`` ones,
            or every positive and negative of the ``"test"`` split.
        matched: compare within matched groups; False: the same queries against one pooled group.
        roles: ``"positives"`` are the queries, or ``"negatives"`` (sets exchanged).
        isolated: positives with no other finding of the task, negatives with none at all.
        balance_removed: remove one random image of the other side whenever a query is removed (``sets="image"``).
        exclude_same_patient: the query's patient is excluded from both sides of every set, D_all's too.
        redraws: number of draws; the first is the measure, the others show what the draw alone does.
        shuffle_labels: exchange the labels of ``"image"``s or of ``"patient"``s within groups, as a control.
        resamples: B of the conditional interval; 0: none.
        permutations: B of the permutation test.
        memory_bytes: bound on the extra memory of the sweeps and of the permutation test.
        total_interval: give the total interval.
        permutation_test: give the permutation test.
        margin: score the margin classifier on every labelled image.
        ks: further values of k, for :attr:`Evaluation.grid`.
        sizes: further set sizes n, for :attr:`Evaluation.grid`.
        common_candidates: n of ``D_common``; None: the smallest n over the findings and groups that are estimable.
        tie_limit: the largest tie rate that is not called ``tied``.
        weights: severity weight of each finding for the pooled task level, positive; None: unweighted.
        pool_missing: pool over the parts that are there when others are missing.
        precision: of the sweep that preselects; it changes the time, not a bit of a result. ``"auto"``: whole numbers
            of 8 bits (``"int8"``) where they save time, else bfloat16 where the processor has units for it, else
            float32.

    Raises:
        ValueError: an option is out of range.

    >>> Options(k=10).max_candidates
    4000
    """

    k: int = 5
    seed: int = 42
    max_candidates: int = 4000
    max_queries: int = 4000
    sets: str = "patient"
    queries: str = "all"
    matched: bool = True
    roles: str = "positives"
    isolated: bool = False
    balance_removed: bool = False
    exclude_same_patient: bool = False
    redraws: int = 1
    shuffle_labels: str | None = None
    resamples: int = 1000
    permutations: int = 9999
    memory_bytes: int = 2**30
    total_interval: bool = True
    permutation_test: bool = True
    margin: bool = True
    ks: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    common_candidates: int | None = None
    tie_limit: float = 0.01
    weights: Mapping[str, float] | None = None
    pool_missing: bool = False
    precision: str = "auto"

    @property
    def by_patient(self) -> bool:
        """Whether a query meets no candidate of its patient in the drawn sets; else only its own image is left out."""
        return self.sets == "patient" or self.exclude_same_patient

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(map(repr, allowed))}")
        for name, least in _LEAST.items():
            object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        for item in fields(self):
            if item.type == "bool" and not isinstance(getattr(self, item.name), bool):
                raise ValueError(f"{item.name} is {getattr(self, item.name)!r}: it must be True or False")
        for name, least in (("ks", 1), ("sizes", 2)):
            object.__setattr__(self, name, tuple(_whole(name, value, least) for value in getattr(self, name)))
        if self.common_candidates is not None:
            common = _whole("common_candidates", self.common_candidates, self.k + 1)
            object.__setattr__(self, "common_candidates", common)
        if self.k >= self.max_candidates:
            raise ValueError(f"k is {self.k}: it must be below max_candidates ({self.max_candidates})")
        if not 0 <= self.tie_limit <= 1:
            raise ValueError(f"tie_limit is {self.tie_limit}: it must lie in [0, 1]")
        for finding, weight in (self.weights or {}).items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"weights[{finding!r}] is {weight}: it must be positive and finite")


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number, NumPy's too, as Python's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least {least}")
    return int(value)
