"""Patient-disjoint splits."""

import numpy as np
import pytest

from candor_monai.metrics.splits import check_disjoint, hashed_split, publishers_split


def test_a_patient_has_one_part_whoever_else_is_there() -> None:
    patients = [f"p{i // 3}" for i in range(300)]
    part = hashed_split(patients)
    check_disjoint(part, patients)
    assert (hashed_split(patients[30:60]) == part[30:60]).all()
    assert (hashed_split(patients[::-1]) == part[::-1]).all()


def test_shares_are_seventy_ten_twenty() -> None:
    part = hashed_split([f"p{i}" for i in range(20_000)])
    shares = [np.mean(part == name) for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.01)


def test_another_seed_is_another_split() -> None:
    patients = [f"p{i}" for i in range(200)]
    assert (hashed_split(patients, 1) != hashed_split(patients, 2)).any()


def test_the_publishers_parts_are_kept() -> None:
    split = ["train", "val", "test", "train"]
    assert publishers_split(split, ["a", "b", "c", "a"]).tolist() == split


def test_a_missing_validation_part_is_an_eighth_of_the_training_patients() -> None:
    patients = [f"p{i // 2}" for i in range(8000)]
    part = publishers_split(["train"] * 6000 + ["test"] * 2000, patients)
    check_disjoint(part, patients)
    assert (part[6000:] == "test").all()
    assert np.mean(part[:6000] == "val") == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.parametrize(
    "split, patients, words",
    [
        (["train", "valid"], ["a", "b"], r"split\[1\] is 'valid'"),
        (["train", "test"], ["a", "a"], r"split\[1\] is 'test' but the patient of row 1 is also in row 0"),
        (["train"], ["a", "b"], "split has 1 rows, patients 2"),
    ],
)
def test_bad_splits_are_refused_without_naming_a_patient(split: list, patients: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        publishers_split(split, patients)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.7, 0.1, 0.3), (1.2, -0.1, -0.1)])
def test_fractions_must_sum_to_one(fractions: tuple) -> None:
    with pytest.raises(ValueError, match="fractions"):
        hashed_split(["a"], fractions=fractions)
