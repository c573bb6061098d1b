"""Observations: what they check, and patients joined by shared images."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from candor_monai.metrics.observations import Observations


def plain(**changes):
    values = {"image_id": ["a", "b", "c"], "labels": [[1, 0], [0, -1], [1, 1]], "findings": ["edema", "mass"]}
    return Observations(**{**values, **changes})


def test_three_images_by_hand():
    seen = plain(group=[0, 1, 0], group_names=["AP", "PA"], patient=["p2", "p1", "p2"])
    assert len(seen) == 3
    assert seen.labels.dtype == np.int8
    assert seen.units.tolist() == [1, 0, 1]
    assert seen.unit_names.tolist() == ["p1", "p2"]
    assert seen.order.tolist() == [0, 1, 2]
    assert seen.finding_index("mass") == 1


def test_copies_of_an_image_join_their_patients():
    seen = Observations(
        list("abcdef"), [[1]] * 6, ["f"], patient=["p", "q", "r", "", "s", "p"], cluster=["", "x", "x", "x", "", ""]
    )
    assert seen.units.tolist() == [0, 1, 1, 1, 2, 0]
    assert seen.unit_names.tolist() == ["p", "q", "s"]


def test_chains_of_copies_join_all():
    """Patient q shares one image with p and another with r: all three are one."""
    seen = Observations(list("abcd"), [[1]] * 4, ["f"], patient=["p", "q", "q", "r"], cluster=["x", "x", "y", "y"])
    assert seen.units.tolist() == [0, 0, 0, 0]


def test_an_image_without_patient_is_its_own_even_if_its_id_reads_like_a_patient():
    seen = Observations(["p", "b"], [[1], [1]], ["f"], patient=["", "p"])
    assert len(set(seen.units.tolist())) == 2
    assert len(set(seen.unit_names.tolist())) == 2


def test_without_patients_the_unit_is_the_image():
    assert plain().units.tolist() == [0, 1, 2]
    assert plain().unit_names.tolist() == ["a", "b", "c"]


def test_units_do_not_depend_on_row_order():
    patient = np.array(["p3", "p1", "p2", "p1"])
    first = Observations(list("abcd"), [[1]] * 4, ["f"], patient=patient)
    second = Observations(list("dcba"), [[1]] * 4, ["f"], patient=patient[::-1])
    assert first.units.tolist() == second.units[::-1].tolist()


def test_arrays_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        plain().labels[0, 0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain().task = "other"


def test_the_caller_keeps_his_arrays():
    labels = np.array([[1, 0], [0, -1], [1, 1]], np.int8)
    plain(labels=labels)
    labels[0, 0] = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": [], "labels": np.empty((0, 2))}, "image_id is empty"),
        ({"image_id": ["a", "b", "a"]}, r"image_id\[2\] repeats 'a'"),
        ({"image_id": ["a", "", "c"]}, r"image_id\[1\] is empty"),
        ({"image_id": ["a", 7, "c"]}, r"image_id\[1\] is int"),
        ({"image_id": ["a", "b\0", "c"]}, r"image_id\[1\] ends in a NUL"),
        ({"labels": [[1, 0], [0, 2], [1, 1]]}, r"labels\[1, 1\] is 2"),
        ({"labels": [[1, 0], [0, np.nan], [1, 1]]}, r"labels\[1, 1\] is nan"),
        ({"labels": [["1", "0"]] * 3}, "labels has dtype"),
        ({"labels": [1, 0, 1]}, r"labels has shape \(3,\), not \(3, 2\)"),
        ({"findings": []}, "findings is empty"),
        ({"findings": "edema"}, "findings is the text .edema.: a list of names is needed"),
        ({"findings": ["edema", "edema"]}, r"findings\[1\] repeats 'edema'"),
        ({"findings": ["edema", ""]}, r"findings\[1\] is ''"),
        ({"group": [0, -1, 0]}, r"group\[1\] is -1"),
        ({"group": [0, 2, 0], "group_names": ["AP", "PA"]}, r"group\[1\] is 2: group_names has 2 names"),
        ({"group": [0.0, 1.0, 0.0]}, "group has dtype float64"),
        ({"group": [0, 1]}, r"group has shape \(2,\)"),
        ({"group": [0, 1, 0], "group_names": ["AP", "AP"]}, r"group_names\[1\] repeats 'AP'"),
        ({"group": [0, 1, 0], "group_names": ["AP", 3]}, r"group_names\[1\] is int"),
        ({"patient": ["p", "q"]}, "patient has 2 rows, image_id has 3"),
        ({"patient": ["p", None, "q"]}, r"patient\[1\] is NoneType"),
        ({"site": [1, 2, 3]}, r"site\[0\] is int"),
        ({"boxed": [[1, 0]] * 3}, "boxed has dtype"),
        ({"boxed": [True, False, True]}, r"boxed has shape \(3,\), not \(3, 2\)"),
        ({"uncertain": np.zeros((3, 1), bool)}, "uncertain has shape"),
        ({"test": [0, 1, 0]}, "test has dtype"),
        ({"task": ""}, "task is ''"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        plain(**changes)


def test_an_unknown_finding_is_named():
    with pytest.raises(ValueError, match="'fracture' is not one of edema, mass"):
        plain().finding_index("fracture")
