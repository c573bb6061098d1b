"""FairVision: two layouts, a byte order mark, prefixes that differ."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

ROWS = [
    {"filename": f"data_0000{i}.npz", "age": "60", "race": "black", "glaucoma": g, "use": u, "md": "-3.1"}
    for i, g, u in ((1, "yes", "training"), (2, "no", "validation"), (3, "no", "test"))
]

NESTED = tuple(f"Glaucoma/Dataset/{s}" for s in ("Training", "Validation", "Test"))


@pytest.mark.parametrize(
    "table, folders, prefix",
    [
        ("data_summary_glaucoma.csv", ("Glaucoma/Training", "Glaucoma/Validation", "Glaucoma/Test"), "slo_fundus_"),
        ("Glaucoma/ReadMe/data_summary_glaucoma.csv", NESTED, "slo_"),
        ("ReadMe/data_summary_glaucoma.csv", ("train", "val", "test"), "slo_"),
    ],
)  # fmt: skip
def test_layouts(tmp_path, table, folders, prefix):
    write_rows(tmp_path / table, ROWS, bom=True)
    touch(tmp_path, [f"{f}/{prefix}0000{i}.jpg" for i, f in enumerate(folders, 1)])
    cohort = load_cohort("fairvision", tmp_path)
    assert labels_of(cohort, "Glaucoma") == {"train/00001": 1, "val/00002": 0, "test/00003": 0}
    assert cohort.records["split"].tolist() == ["train", "val", "test"]
    assert cohort.records["patient_id"].tolist() == ["00001", "00002", "00003"]
    assert all(cohort.path(i).is_file() for i in range(3))


def test_what_is_refused(tmp_path):
    write_rows(tmp_path / "data_summary_glaucoma.csv", ROWS)
    touch(tmp_path, ["Glaucoma/Dataset/dataset.zip"])
    with pytest.raises(UserError, match=r"dataset\.zip: unpack it"):
        load_cohort("fairvision", tmp_path)
    write_rows(tmp_path / "data_summary_glaucoma.csv", [ROWS[0] | {"filename": "x.npz"}])
    with pytest.raises(UserError, match=r"row 1: filename 'x\.npz'"):
        load_cohort("fairvision", tmp_path)
