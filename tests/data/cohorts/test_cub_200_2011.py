"""CUB-200-2011: families by the last word of the name, or by a table."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

CLASSES = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "022.Chuck_will_Widow"]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "CUB_200_2011"
    root.mkdir()
    paths = [f"{c}/{c[4:]}_{i:04}.jpg" for c in CLASSES for i in (1, 2)]
    (root / "classes.txt").write_text("".join(f"{i} {c}\n" for i, c in enumerate(CLASSES, 1)))
    (root / "images.txt").write_text("".join(f"{i} {p}\n" for i, p in enumerate(paths, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {(i + 1) // 2}\n" for i in range(1, 7)))
    (root / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i in range(1, 7)))
    (root / "bounding_boxes.txt").write_text("".join(f"{i} 60.0 27.0 325.0 304.0\n" for i in range(1, 7)))
    touch(root, [f"images/{p}" for p in paths])
    return tmp_path


def test_six_images_by_hand(folder):
    cohort = load_cohort("cub_200_2011", folder)
    assert cohort.findings == tuple(CLASSES[:2])
    assert cohort.labels.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert cohort.groups()[1] == ("family=Albatross",)
    assert cohort.records["split"].tolist() == ["train", "test", "train", "test"]
    assert cohort.counts["left_out"] == {"species alone in its family": 2}
    assert cohort.boxes.iloc[0].tolist()[1:6] == [CLASSES[0], 60.0, 27.0, 325.0, 304.0]
    assert cohort.counts["found"]["species that share a family"] == 2


def test_families_from_a_table(folder):
    rows = [{"class": c, "family": "one"} for c in CLASSES]
    path = write_rows(folder / "families.csv", rows)
    cohort = load_cohort("cub_200_2011", folder, families=str(path))
    assert len(cohort.findings) == 3
    assert labels_of(cohort, CLASSES[2])[f"{CLASSES[0]}/Black_footed_Albatross_0001.jpg"] == 0
    write_rows(path, rows[:2])
    with pytest.raises(UserError, match=r"1 classes have no family, e\.g\. '022"):
        load_cohort("cub_200_2011", folder, families=str(path))


@pytest.mark.parametrize("name", ["images", "image_class_labels", "classes", "train_test_split", "bounding_boxes"])
def test_entries_that_occur_twice(folder, name):
    (path,) = folder.rglob(f"{name}.txt")
    path.write_text(path.read_text() + "1 x y z w\n"[: 4 if name != "bounding_boxes" else None].strip() + "\n")
    with pytest.raises(UserError, match=rf"{name}\.txt: entry '1' has two rows: row 1 and row"):
        load_cohort("cub_200_2011", folder)
