"""The measures again, slow and obvious, in plain Python from the written definitions: what the fast code must equal.

Nothing of ``candor_monai`` is used. Images are counted by position; ids, labels, groups and patients are plain lists.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

MASK = (1 << 64) - 1


def keyed_hash(name: str, *key: str | int) -> int:
    """Two rounds of SplitMix64's finaliser over the BLAKE2b digests of the id and of the key."""
    first, second = _words(hashlib.blake2b(name.encode(), digest_size=16).digest())
    parts = b""
    for part in key:
        text = str(part).encode()
        parts += (b"s" if isinstance(part, str) else b"i") + len(text).to_bytes(8, "little") + text
    one, two = _words(hashlib.blake2b(parts, digest_size=16, person=b"candor key").digest())
    return _mix((_mix(((first ^ one) + 0x9E3779B97F4A7C15) & MASK) ^ second) + two & MASK)


def _words(digest: bytes) -> tuple[int, int]:
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def ranking_number(name: str, number: int, *key: str | int) -> int:
    """32 bits mixed from a keyed hash and the number of a ranking."""
    high, low = divmod(keyed_hash(name, *key), 2**32)
    word = number * 0x9E3779B1 % 2**32
    word = (word ^ (word >> 16)) * 0x85EBCA6B % 2**32
    mixed = (high ^ word) * 0x7FEB352D % 2**32
    return (mixed ^ (mixed >> 16) ^ low) * 0x846CA68B % 2**32


def dot(left, right) -> float:
    """Products of two float32 rows in 64 running sums, which are then halved."""
    sums = [0.0] * 64
    for place, (a, b) in enumerate(zip(left, right, strict=True)):
        sums[place % 64] += float(a) * float(b)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[i] + sums[half + i] for i in range(half)]
    return sums[0]


def similarity(left, right) -> float:
    return dot(left, right) / (math.sqrt(dot(left, left)) * math.sqrt(dot(right, right)))


def mean_of_nearest(similarities: list[float], k: int) -> float:
    total = 0.0
    for value in sorted(similarities, reverse=True)[:k]:
        total += value
    return total / k


@dataclass
class Settings:
    """The options, as in the definitions."""

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


@dataclass
class Cohort:
    """Lists over images; ``labels`` is image × finding."""

    features: list
    ids: list[str]
    labels: list[list[int]]
    findings: list[str]
    group: list[str]
    patient: list[str] | None = None
    uncertain: list[list[bool]] | None = None
    boxed: list[list[bool]] | None = None
    test: list[bool] | None = None
    task: str = "task"


@dataclass
class Expected:
    """One finding in one group: ids and numbers by image."""

    reason: str | None = None
    r_pos: list[int] = field(default_factory=list)
    r_neg: list[int] = field(default_factory=list)
    c_pos: dict[int, float] = field(default_factory=dict)
    c_neg: dict[int, float] = field(default_factory=dict)
    c_pos_all: dict[int, float] = field(default_factory=dict)
    c_neg_all: dict[int, float] = field(default_factory=dict)
    removed: dict[int, bool] = field(default_factory=dict)
    margin: dict[int, float] = field(default_factory=dict)
    dropped: int = 0

    def dm(self, query: int) -> float:
        return self.c_neg[query] - self.c_pos[query]


def label_of(cohort: Cohort, image: int, column: int, settings: Settings) -> int:
    """The label after ``isolated`` and ``roles``."""
    label = cohort.labels[image][column]
    if settings.isolated:
        others = [i for i in range(len(cohort.findings)) if i != column]
        uncertain = cohort.uncertain[image] if cohort.uncertain else [False] * len(cohort.findings)
        if any(cohort.labels[image][i] == 1 or uncertain[i] for i in others) or (label == 0 and uncertain[column]):
            label = -1
    if settings.roles == "negatives" and label >= 0:
        label = 1 - label
    return label


def cell(cohort: Cohort, column: int, group: str | None, settings: Settings) -> Expected:
    """Everything of one finding in one group (None: all images, pooled)."""
    finding, out = cohort.findings[column], Expected()
    images = [i for i in range(len(cohort.ids)) if group is None or cohort.group[i] == group]
    label = {i: label_of(cohort, i, column, settings) for i in images}
    positive = [i for i in images if label[i] == 1]
    negative = [i for i in images if label[i] == 0]
    unit = [cohort.patient[i] if cohort.patient else cohort.ids[i] for i in range(len(cohort.ids))]
    name = "pooled" if group is None else group

    def key(redraw: int = 0) -> tuple:
        return (settings.seed, cohort.task, finding, name, redraw)

    def ranked(members: list[int]) -> list[int]:
        return sorted(members, key=lambda i: keyed_hash(cohort.ids[i], "draw", *key()))

    out.r_pos, out.r_neg = ranked(positive), ranked(negative)
    if settings.sets == "patient":
        out.r_pos, out.r_neg = (_one_a_patient(side, unit) for side in (out.r_pos, out.r_neg))
    n = min(settings.max_candidates, len(out.r_pos), len(out.r_neg))
    out.r_pos, out.r_neg = out.r_pos[:n], out.r_neg[:n]
    queries = _queries(cohort, column, images, label, settings)
    if n < settings.k + 1 or not any(label[q] == 1 for q in queries):
        return Expected(reason="insufficient")

    def left(query: int) -> tuple[list[int], list[int], bool]:
        by_patient = settings.sets == "patient" or settings.exclude_same_patient
        same = (lambda i: unit[i] == unit[query]) if by_patient else (lambda i: i == query)
        pos = [i for i in out.r_pos if not same(i)]
        neg = [i for i in out.r_neg if not same(i)]
        gone = len(out.r_pos) > len(pos) if label[query] == 1 else len(out.r_neg) > len(neg)
        if settings.sets == "patient":
            size = min(len(pos), len(neg))
            pos, neg = pos[:size], neg[:size]
        elif settings.balance_removed and query in out.r_pos + out.r_neg:
            fraction = (keyed_hash(cohort.ids[query], "balance", *key()) >> 11) * 2.0**-53
            other = out.r_neg if query in out.r_pos else out.r_pos
            lost = other[math.floor(fraction * n)]
            pos, neg = [i for i in pos if i != lost], [i for i in neg if i != lost]
        return pos, neg, gone

    def c(query: int, candidates: list[int]) -> float:
        row = cohort.features[query]
        return mean_of_nearest([similarity(row, cohort.features[i]) for i in candidates], settings.k)

    for query in queries:
        pos, neg, gone = left(query)
        if min(len(pos), len(neg)) < settings.k:
            out.dropped += 1
            continue
        out.c_pos[query], out.c_neg[query], out.removed[query] = c(query, pos), c(query, neg), gone
        same = (lambda i, q=query: unit[i] == unit[q]) if settings.exclude_same_patient else (lambda i, q=query: i == q)
        out.c_pos_all[query] = c(query, [i for i in positive if not same(i)])
        out.c_neg_all[query] = c(query, [i for i in negative if not same(i)])
    for image in positive + negative:
        pos, neg, _ = left(image)
        if min(len(pos), len(neg)) >= settings.k:
            out.margin[image] = c(image, pos) - c(image, neg)
    return out


def _one_a_patient(images: list[int], unit: list[str]) -> list[int]:
    seen: set[str] = set()
    out = []
    for image in images:
        if unit[image] not in seen:
            seen.add(unit[image])
            out.append(image)
    return out


def _queries(cohort: Cohort, column: int, images: list[int], label: dict[int, int], settings: Settings) -> list[int]:
    out: list[int] = []
    for group in sorted({cohort.group[i] for i in images}):
        sample = sorted(
            (i for i in images if cohort.group[i] == group),
            key=lambda i: keyed_hash(cohort.ids[i], "queries", settings.seed, cohort.task, cohort.group[i]),
        )
        if settings.queries == "test":
            out += [i for i in sample if cohort.test[i] and label[i] >= 0]
        elif settings.queries == "image_sample":
            out += [i for i in sample[: settings.max_queries] if label[i] == 1]
        elif settings.queries == "boxed":
            out += [i for i in sample if label[i] == 1 and cohort.boxed[i][column]]
        else:
            out += [i for i in sample if label[i] == 1][: settings.max_queries]
    return out


def auroc(scores: list[float], positive: list[bool]) -> float:
    wins = pairs = 0.0
    for a, is_positive in zip(scores, positive, strict=True):
        for b, other in zip(scores, positive, strict=True):
            if is_positive and not other:
                pairs += 1
                wins += 1.0 if a > b else 0.5 if a == b else 0.0
    return wins / pairs
