"""FGVC-Aircraft: names with spaces and slashes, ids with leading zeros."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch

IMAGES = {
    "train": [("0034309", "F-16A/B", "Lockheed Martin"), ("0056978", "737-300", "Boeing")],
    "val": [("0063568", "747 SP", "Boeing")],
    "test": [("1514522", "737-300", "Boeing")],
}


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "fgvc-aircraft-2013b" / "data"
    data.mkdir(parents=True)
    for split, rows in IMAGES.items():
        (data / f"images_variant_{split}.txt").write_text("".join(f"{i} {v}\n" for i, v, _ in rows))
        (data / f"images_manufacturer_{split}.txt").write_text("".join(f"{i} {m}\n" for i, _, m in rows))
        touch(data, [f"images/{i}.jpg" for i, _, _ in rows])
    (data / "images_box.txt").write_text("0056978 3 144 998 431\n")
    return tmp_path


def test_four_images_by_hand(folder):
    cohort = load_cohort("fgvc_aircraft", folder)
    assert cohort.findings == ("737-300", "747 SP")
    assert labels_of(cohort, "747 SP") == {"0056978": 0, "0063568": 1, "1514522": 0}
    assert cohort.records["split"].tolist() == ["train", "val", "test"]
    assert cohort.groups()[1] == ("manufacturer=Boeing",)
    assert cohort.counts["left_out"] == {"variant alone at its manufacturer": 1}
    assert cohort.boxes.iloc[0].tolist()[1:6] == ["737-300", 2.0, 143.0, 996.0, 288.0]
    assert cohort.path(0).is_file()


def test_what_is_refused(folder):
    path = folder / "fgvc-aircraft-2013b/data/images_variant_test.txt"
    path.write_text("1514522\n")
    with pytest.raises(UserError, match="row 1: '1514522' is not an id and a name"):
        load_cohort("fgvc_aircraft", folder)
    path.unlink()
    with pytest.raises(UserError, match=r"images_variant_test\.txt"):
        load_cohort("fgvc_aircraft", folder)


def test_a_box_that_is_none(folder):
    (folder / "fgvc-aircraft-2013b/data/images_box.txt").write_text("0056978 3 144 998 431\n0063568 3 a 998 431\n")
    with pytest.raises(UserError, match=r"images_box\.txt, row 2: the corners of the box are no numbers"):
        load_cohort("fgvc_aircraft", folder)
