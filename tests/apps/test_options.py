"""Options of a run: what MONAI and Fire make of values is undone, and what cannot be read is refused by name."""

from pathlib import Path

import pytest

from candor_monai.apps import options
from candor_monai.apps.options import run_options


def test_values_as_the_command_line_delivers_them():
    run = run_options(
        findings=("Edema", "Mass"), k="7", report_images="false", encoder="rad_dino", output_dir="/data/study::1"
    )
    assert run.findings == ("Edema", "Mass")
    assert run.measure.k == 7
    assert run.report_images is False
    assert run.encoder == "rad_dino"
    assert run.output_dir == Path("/data/study#1")


@pytest.mark.parametrize("given", ["a,b", "['a','b']", ("a", "b"), ["a", "b"], "[a, b]"])
def test_names_in_every_form(given):
    assert options.names("findings", given) == ("a", "b")


@pytest.mark.parametrize("given", [None, "None", "", "null"])
def test_missing_takes_the_default(given):
    run = run_options(batch_size=given, findings=given, k=given, cohort=given)
    assert (run.batch_size, run.findings, run.measure.k, run.cohort) == (32, None, 5, "calibration")


def test_a_path_that_really_has_two_colons_stays(tmp_path):
    odd = tmp_path / "a::b"
    odd.mkdir()
    assert options.path("dataset_dir", str(odd)) == odd


def test_a_card_by_name_by_path_and_written_out():
    assert options.name_or_card("encoder", "dinov3_s") == "dinov3_s"
    assert options.name_or_card("encoder", "mine/card.yaml") == Path("mine/card.yaml")
    assert options.name_or_card("encoder", {"name": "mine"}) == {"name": "mine"}
    assert options.name_or_card("encoder", Path("mine/card.yaml")) == Path("mine/card.yaml")


def test_original_resolution():
    assert run_options(image_size="original").canonical_size is None
    assert run_options(image_size=512).canonical_size == 512


@pytest.mark.parametrize(
    "given, told",
    [
        ({"k": "five"}, "--k must be a whole number, got 'five'"),
        ({"k": 2.5}, "--k must be a whole number, got 2.5"),
        ({"k": True}, "--k must be a whole number, got True"),
        ({"batch_size": 0}, "--batch_size must be at least 1, got 0"),
        ({"resamples": 0}, "--resamples must be at least 2, got 0"),
        ({"write_report": "perhaps"}, "--write_report must be true or false, got 'perhaps'"),
        ({"precision": "bfloat61"}, "Did you mean 'bfloat16'?"),
        ({"findings": []}, "--findings is an empty list"),
        ({"findings": "a,a"}, "--findings names 'a' twice"),
        ({"findings": 3}, "--findings must be a list of names"),
        ({"output_dir": True}, "--output_dir must be text, got True"),
        ({"decode_seconds": float("nan")}, "--decode_seconds must be a number"),
        ({"sets": "pateint"}, "pateint"),
        ({"encodr": "x"}, "unknown option 'encodr'. Did you mean 'encoder'?"),
    ],
)
def test_refused_by_name(given, told):
    with pytest.raises(SystemExit) as refused:
        run_options(**given)
    assert told in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 4
