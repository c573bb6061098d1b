"""The calibration cohort as DICOM files: what was planned is what a viewer shows."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pydicom
import pytest

from candor_monai.data import phantom_files
from candor_monai.data.cohorts import load_cohort
from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.data.phantom_files import (
    FINDINGS,
    SIDE,
    TRANSFER_SYNTAXES,
    phantom_folder,
    phantom_pixels,
    plan_phantoms,
)
from candor_monai.utils import UserError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration") / "cohort"
    return load_cohort("calibration", folder)


def test_the_plan_has_two_findings_in_four_groups():
    plan = plan_phantoms()
    groups = Counter((image.site, image.view) for image in plan)
    assert set(groups.values()) == {140}
    assert len(groups) == 4
    shown = Counter((image.site, image.view, image.finding) for image in plan)
    assert {shown[(*group, "common_marker")] for group in groups} == {45}
    assert {shown[(*group, "rare_marker")] for group in groups} == {22}
    per_patient = Counter(image.patient_id for image in plan)
    assert max(per_patient.values()) == 3
    assert min(per_patient.values()) == 1
    assert len({image.image_id for image in plan}) == len(plan)
    assert plan_phantoms() == plan
    assert plan_phantoms(1) != plan


def test_the_cohort_is_what_its_card_says(written):
    cohort = written
    described = cohort.describe()
    assert all(row["expected"] == row["found"] for row in described["expected"])
    assert cohort.findings == tuple(FINDINGS)
    assert cohort.labels.sum(axis=0).tolist() == [180, 88]
    assert len(cohort.groups()[1]) == 4
    assert (cohort.boxed() == (cohort.labels == 1)).all()
    assert cohort.rejected.empty


def test_every_way_of_storing_shows_the_planned_pixels(written):
    cohort = written
    plan = plan_phantoms()
    kinds: Counter = Counter()
    for i, image in enumerate(plan):
        kind = (image.transfer_syntax, image.photometric)
        kinds[kind] += 1
        if kinds[kind] > 2:
            continue
        decoded = decode(cohort.path(i), DecodeOptions())
        assert decoded.meta.transfer_syntax == image.transfer_syntax
        assert decoded.meta.inverted == (image.photometric == "MONOCHROME1")
        shown = decoded.pixels / np.iinfo(decoded.pixels.dtype).max
        assert np.abs(shown - phantom_pixels(image, i) / 4095).max() < 1e-4, kind
        assert canonical(decoded).shape == (3, 224, 224)
    assert len(kinds) == 2 * len(TRANSFER_SYNTAXES)


def test_boxes_hold_the_marker(written):
    cohort = written
    plan = {image.image_id: (i, image) for i, image in enumerate(plan_phantoms())}
    for box in cohort.boxes.head(10).itertuples():
        i, image = plan[box.image_id]
        assert box.finding == image.finding
        with_marker = phantom_pixels(image, i).astype(int)
        bare = phantom_pixels(phantom_files.PhantomImage(**{**vars(image), "marker": None}), i).astype(int)
        rows, columns = np.nonzero(with_marker != bare)
        assert box.x <= columns.min()
        assert columns.max() < box.x + box.width
        assert box.y <= rows.min()
        assert rows.max() < box.y + box.height
        assert (box.frame_width, box.frame_height) == (SIDE, SIDE)


def test_the_headers_are_whole(written):
    cohort = written
    seen = set()
    for i in range(0, len(cohort), 50):
        dataset = pydicom.dcmread(cohort.path(i))
        assert dataset.SOPInstanceUID == dataset.file_meta.MediaStorageSOPInstanceUID
        assert dataset.PatientID == cohort.records["patient_id"].iat[i]
        assert dataset.ViewPosition == cohort.records["view"].iat[i]
        assert (dataset.BitsStored, dataset.Rows, dataset.Columns) == (12, SIDE, SIDE)
        seen.add(dataset.SOPInstanceUID)
    assert len(seen) == 12


def test_it_is_used_again_and_never_mistaken(written, tmp_path):
    cohort = written
    before = (cohort.root / "labels.csv").stat().st_mtime_ns
    assert phantom_folder(cohort.root) == cohort.root
    assert (cohort.root / "labels.csv").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="seed 8"):
        phantom_folder(cohort.root, seed=1)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        phantom_folder(tmp_path)


def test_it_is_whole_or_absent(tmp_path, monkeypatch):
    def broken(dataset, path):
        if "img0005" in path.name:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"")

    monkeypatch.setattr(phantom_files, "_save", broken)
    with pytest.raises(UserError, match="No space left"):
        phantom_folder(tmp_path / "cohort")
    assert list(tmp_path.iterdir()) == []


def test_what_another_process_wrote_meanwhile_is_taken(tmp_path, monkeypatch):
    folder = tmp_path / "cohort"

    def quicker(building, seed):
        folder.mkdir()
        (folder / "complete.json").write_text(json.dumps({"version": phantom_files.VERSION, "seed": seed}))

    monkeypatch.setattr(phantom_files, "write_phantoms", quicker)
    assert phantom_folder(folder) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["cohort"]


def test_the_adapter_needs_a_folder():
    with pytest.raises(UserError, match="dataset_dir"):
        load_cohort("calibration")


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    for name, message in (("a\0b", "NUL"), ("x" * 300, "cannot be written: File name too long"), ("circle", "empty")):
        with pytest.raises(UserError, match=message):
            phantom_folder(tmp_path / name)
