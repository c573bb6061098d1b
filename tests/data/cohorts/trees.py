"""Small datasets in their publishers' layouts, made by the tests."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from PIL import Image


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], bom: bool = False) -> Path:
    """A CSV file with the keys of the first row as header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(("\ufeff" if bom else "") + out.getvalue(), encoding="utf-8")
    return path


def refuse_to_list(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Let folders whose path ends so not be listed, as it is with folders of other users."""
    scan = os.scandir

    def scandir(path):
        if str(path).endswith(ending):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)


def touch(root: Path, names: Iterable[str]) -> None:
    """Files that need only be there."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def png(path: Path, value: int = 100, size: int = 8) -> Path:
    """A small grey PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size, size), value).save(path)
    return path


def labels_of(cohort, finding: str) -> dict[str, int]:
    """image id -> label of one finding; what the cohort tells of itself must be plain JSON."""
    json.dumps(cohort.describe(), allow_nan=False)
    column = cohort.findings.index(finding)
    return dict(zip(cohort.records["image_id"], cohort.labels[:, column].tolist(), strict=True))


def reasons(cohort) -> dict[str, str]:
    """image id -> reason of its rejection."""
    return dict(zip(cohort.rejected["image_id"], cohort.rejected["reason"], strict=True))
