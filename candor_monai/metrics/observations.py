"""What is known of each image of a cohort: ids, labels, groups, patients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .keyed_hash import id_digests

# Unnamed group codes may leave gaps, but not be ids of another kind: at most this many codes an image.
MOST_UNNAMED = 1000


@dataclass(frozen=True, eq=False)
class Observations:
    """The table beside the features: row i describes the image of feature row i.

    Args:
        image_id: unique id of each image, N texts.
        labels: shape (N, F), 1 positive, 0 negative, -1 unlabelled or excluded.
        findings: names of the F findings, unique.
        group: shape (N,), code of each image's matched group. None: one group.
        group_names: name of each code. None: the codes as text.
        patient: id of each image's patient, N texts ("" where it is not known), or None: every image is its own.
        site: name of each image's site, N texts, or None: one site.
        uncertain: shape (N, F), bool: the label was given as uncertain, whatever the policy made of it.
        boxed: shape (N, F), bool: an expert box of the finding exists.
        test: shape (N,), bool: the image is of the test split.
        cluster: N texts; images of the same text (not "") show the same canonical pixels, and their patients are
            joined into one.
        task: name of the task; it is part of the key of every draw.

    Raises:
        ValueError: a shape, a code or a name is wrong; the message names the argument and the first offending row.

    >>> seen = Observations(["a", "b", "c"], [[1], [0], [-1]], ["effusion"])
    >>> len(seen), seen.group_names, seen.units.tolist()
    (3, ('all',), [0, 1, 2])
    """

    image_id: Any
    labels: Any
    findings: Any
    group: Any = None
    group_names: Any = None
    patient: Any = None
    site: Any = None
    uncertain: Any = None
    boxed: Any = None
    test: Any = None
    cluster: Any = None
    task: str = "task"

    def __post_init__(self) -> None:
        ids = _texts("image_id", self.image_id, None)
        count = len(ids)
        _check_ids(ids)
        if isinstance(self.findings, str):
            raise ValueError(f"findings is the text {self.findings!r}: a list of names is needed")
        findings = tuple(self.findings)
        for place, name in enumerate(findings):
            if not isinstance(name, str) or not name:
                raise ValueError(f"findings[{place}] is {name!r}: a name is needed")
            if name in findings[:place]:
                raise ValueError(f"findings[{place}] repeats {name!r}")
        if not findings:
            raise ValueError("findings is empty: at least one finding is needed")
        if not isinstance(self.task, str) or not self.task:
            raise ValueError(f"task is {self.task!r}: a name is needed")
        fixed: dict[str, Any] = {
            "image_id": ids,
            "labels": _labels(self.labels, count, len(findings)),
            "findings": findings,
        }
        fixed["group"], fixed["group_names"] = _groups(self.group, self.group_names, count)
        for name in ("patient", "site", "cluster"):
            value = getattr(self, name)
            fixed[name] = None if value is None else _texts(name, value, count)
        for name in ("uncertain", "boxed"):
            fixed[name] = _flags(name, getattr(self, name), (count, len(findings)))
        fixed["test"] = _flags("test", self.test, (count,))
        for name, value in fixed.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.image_id)

    @cached_property
    def digests(self) -> np.ndarray:
        """Digests of the image ids, shape (N, 2), uint64, for :mod:`.keyed_hash`."""
        return id_digests(self.image_id)

    @cached_property
    def order(self) -> np.ndarray:
        """Place of each image in the sorted image ids, shape (N,), int64: which of equal neighbours is named first."""
        place = np.empty(len(self), np.int64)
        place[np.argsort(self.image_id, kind="stable")] = np.arange(len(self))
        return place

    @cached_property
    def _unit(self) -> tuple[np.ndarray, np.ndarray]:
        return _joined_units(self.image_id, self.patient, self.cluster)

    @property
    def units(self) -> np.ndarray:
        """Code of each image's patient after joining those who share an image, shape (N,), int64.

        Without patient ids the unit is the image (with its copies).
        """
        return self._unit[0]

    @property
    def unit_names(self) -> np.ndarray:
        """Name of each unit: the smallest patient id in it (from its image ids where none is known), texts."""
        return self._unit[1]

    def take(self, rows: np.ndarray) -> Observations:
        """The observations of some images, in the order given.

        >>> Observations(["a", "b", "c"], [[1], [0], [0]], ["edema"]).take([2, 0]).image_id.tolist()
        ['c', 'a']
        """
        per_image = ("image_id", "labels", "group", "patient", "site", "uncertain", "boxed", "test", "cluster")
        values = ((name, getattr(self, name)) for name in per_image)
        taken: dict[str, Any] = {name: None if value is None else value[rows] for name, value in values}
        return replace(self, **taken)

    def finding_index(self, finding: str) -> int:
        """Column of a finding.

        Raises:
            ValueError: there is no such finding.
        """
        if finding not in self.findings:
            raise ValueError(f"finding {finding!r} is not one of {', '.join(self.findings)}")
        return self.findings.index(finding)


def _texts(name: str, values: Sequence[str] | np.ndarray, count: int | None) -> np.ndarray:
    items = list(values)
    if count is not None and len(items) != count:
        raise ValueError(f"{name} has {len(items)} rows, image_id has {count}")
    for row, item in enumerate(items):
        if not isinstance(item, str):
            raise ValueError(f"{name}[{row}] is {type(item).__name__}, not text (str)")
    # np.str_ drops trailing NUL characters, which would make two ids equal.
    for row, item in enumerate(items):
        if item.endswith("\0"):
            raise ValueError(f"{name}[{row}] ends in a NUL character")
    return np.array(items, dtype=np.str_) if items else np.empty(0, dtype="<U1")


def _check_ids(ids: np.ndarray) -> None:
    if not len(ids):
        raise ValueError("image_id is empty: at least one image is needed")
    empty = np.flatnonzero(ids == "")
    if len(empty):
        raise ValueError(f"image_id[{empty[0]}] is empty")
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(again):
        row = int(order[1:][again].min())
        raise ValueError(f"image_id[{row}] repeats {str(ids[row])!r}")


def _labels(labels: Any, count: int, findings: int) -> np.ndarray:
    table = np.asarray(labels)
    if table.shape != (count, findings):
        raise ValueError(f"labels has shape {table.shape}, not ({count}, {findings}) = (images, findings)")
    if table.dtype.kind not in "iufb":
        raise ValueError(f"labels has dtype {table.dtype}: whole numbers -1, 0, 1 are needed")
    wrong = ~np.isin(table, (-1, 0, 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"labels[{row}, {column}] is {table[row, column]}: it must be 1, 0 or -1 (no label)")
    return table.astype(np.int8)


def _groups(group: Any, names: Any, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    if group is None:
        codes = np.zeros(count, np.int64)
        names = ("all",) if names is None else names
    else:
        codes = np.asarray(group)
        if codes.shape != (count,):
            raise ValueError(f"group has shape {codes.shape}, not ({count},)")
        if codes.dtype.kind not in "iu":
            raise ValueError(
                f"group has dtype {codes.dtype}: whole-number codes are needed, and their names in group_names"
            )
        codes = codes.astype(np.int64)
    negative = np.flatnonzero(codes < 0)
    if len(negative):
        raise ValueError(f"group[{negative[0]}] is {codes[negative[0]]}: codes start at 0")
    if names is None and codes.max() > MOST_UNNAMED * count:
        raise ValueError(
            f"group[{int(codes.argmax())}] is {codes.max()}: codes count from 0; name groups by group_names"
        )
    texts = tuple(str(code) for code in range(int(codes.max()) + 1)) if names is None else tuple(names)
    for place, name in enumerate(texts):
        if not isinstance(name, str):
            raise ValueError(f"group_names[{place}] is {type(name).__name__}, not text")
    if len(set(texts)) != len(texts):
        repeated = next(place for place, name in enumerate(texts) if name in texts[:place])
        raise ValueError(f"group_names[{repeated}] repeats {texts[repeated]!r}")
    unknown = np.flatnonzero(codes >= len(texts))
    if len(unknown):
        raise ValueError(f"group[{unknown[0]}] is {codes[unknown[0]]}: group_names has {len(texts)} names")
    return codes, texts


def _flags(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    if values is None:
        return None
    flags = np.asarray(values)
    if flags.shape != shape:
        raise ValueError(f"{name} has shape {flags.shape}, not {shape}")
    if flags.dtype != np.bool_:
        raise ValueError(f"{name} has dtype {flags.dtype}: booleans are needed")
    return flags.copy()


def _joined_units(
    ids: np.ndarray, patient: np.ndarray | None, cluster: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Connected components of images that share a patient or a cluster, numbered by their sorted names."""
    count = len(ids)
    known: np.ndarray | None = None if patient is None else np.asarray(patient != "")
    # An image id may read like a patient id: the mark keeps the two apart.
    name = ids if patient is None or known is None else np.where(known, patient, np.char.add("\x1fimage ", ids))
    kind = np.zeros(count, np.int8) if known is None else known.astype(np.int8)
    code = np.unique(name, return_inverse=True)[1].astype(np.int64)
    if cluster is not None and (cluster != "").any():
        code = _join(code, cluster)
    first = np.full(int(code.max()) + 1, -1, np.int64)
    # The name of a unit: its smallest patient id; the smallest image id where it has none.
    by_name = np.lexsort((name, -kind))[::-1]
    first[code[by_name]] = by_name
    unit_names = name[first]
    rank = np.argsort(unit_names, kind="stable")
    renumber = np.empty_like(rank)
    renumber[rank] = np.arange(len(rank))
    return renumber[code], unit_names[rank]


def _join(code: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = np.flatnonzero(cluster != "")
    _, shared = np.unique(cluster[rows], return_inverse=True)
    units = int(code.max()) + 1
    size = units + int(shared.max()) + 1
    links = coo_array((np.ones(len(rows), np.int8), (code[rows], units + shared)), shape=(size, size))
    joined = connected_components(links, directed=False)[1][:units]
    return np.unique(joined, return_inverse=True)[1][code]
