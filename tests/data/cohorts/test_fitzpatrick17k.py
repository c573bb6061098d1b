"""Fitzpatrick17k: three partitions, dead links, two ways of naming files."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, reasons, touch, write_rows


def row(md5, partition, scale="2", url="http://x/y.jpg"):
    return {
        "md5hash": md5,
        "fitzpatrick_scale": scale,
        "fitzpatrick_centaur": "1",
        "label": "some disease",
        "nine_partition_label": "inflammatory",
        "three_partition_label": partition,
        "qc": "",
        "url": url,
        "url_alphanum": f"httpx{md5}.jpg",
    }


@pytest.fixture
def folder(tmp_path):
    rows = [row("a1", "malignant"), row("b2", "benign", "-1"), row("c3", "non-neoplastic"), row("d4", "benign", url="")]
    write_rows(tmp_path / "fitzpatrick17k.csv", rows)
    touch(tmp_path, ["images/a1.jpg", "images/httpxb2.jpg", "images/c3.jpg"])
    return tmp_path


def test_four_images_by_hand(folder):
    cohort = load_cohort("fitzpatrick17k", folder)
    assert labels_of(cohort, "Malignancy") == {"a1": 1, "b2": 0}
    assert cohort.records["image"].tolist() == ["images/a1.jpg", "images/httpxb2.jpg"]
    assert cohort.records["skin_type"].isna().tolist() == [False, True]
    assert reasons(cohort) == {"d4": "missing_file"}
    assert cohort.counts["left_out"] == {"no label": 1}
    assert cohort.counts["rows_without_url"] == 1
    wide = load_cohort("fitzpatrick17k", folder, non_neoplastic="negative")
    assert labels_of(wide, "Malignancy")["c3"] == 0
    assert wide.counts["non_neoplastic"] == "negative"


def test_unknown_partition(folder):
    write_rows(folder / "fitzpatrick17k.csv", [row("a1", "malign")])
    with pytest.raises(UserError, match="row 1: three_partition_label 'malign'"):
        load_cohort("fitzpatrick17k", folder)


def test_of_several_files_the_first_by_name_is_taken(tmp_path):
    ids = [f"{i:032x}" for i in range(12)]
    write_rows(tmp_path / "fitzpatrick17k.csv", [row(i, "benign") for i in ids])
    touch(tmp_path, [f"images/{i}{suffix}" for i in ids for suffix in (".png", ".jpg", ".jpeg", ".JPG")])
    assert load_cohort("fitzpatrick17k", tmp_path).records["image"].tolist() == [f"images/{i}.JPG" for i in ids]
