"""Files of studies: what they may say, and how anything else is refused."""

import pytest

from candor_monai.apps.options import run_options
from candor_monai.apps.study_file import read_study, study_cells
from candor_monai.utils import UserError


def study(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return read_study(run_options(study=path))


def test_one_name_counts_as_a_list(tmp_path):
    read = study(tmp_path, "encoders: marker\ncohorts: calibration\nablations: k_1\n")
    (cohort,) = read.cohorts
    assert (read.encoders, cohort.overrides, cohort.ablations) == (("marker",), {"cohort": "calibration"}, ("k_1",))


def test_keys_left_empty_are_as_good_as_absent(tmp_path):
    (cohort,) = study(tmp_path, "encoders:\ncohorts:\noptions:\nablations:\n").cohorts
    assert (cohort.encoders, cohort.ablations) == (("marker",), ())


def test_a_cohort_may_have_encoders_ablations_and_options_of_its_own(tmp_path):
    read = study(
        tmp_path,
        """
encoders: [marker, blind, {name: mine, loader: module, target: x.y, processor: {}, feature_point: pooled, dimension: 3}]
cohorts:
- calibration
- {cohort: calibration, label: "one/finding", findings: [rare_marker], encoders: [blind, mine], ablations: [k_1]}
- {cohort: retinopathy_pooled, ablations: []}
ablations: [unmatched]
""",
    )
    whole, part, pooled = read.cohorts
    assert [cohort.ablations for cohort in read.cohorts] == [("unmatched",), ("k_1",), ()]
    assert (whole.label, part.label, pooled.label) == ("calibration", "one/finding", "retinopathy_pooled")
    assert part.overrides == {"cohort": "calibration", "findings": ["rare_marker"]}
    names = [[cell.name for cell in cells] for cells in study_cells(read, tmp_path)]
    assert names[0] == ["calibration--marker", "calibration--blind", "calibration--mine"]
    assert names[1] == ["one_finding--blind", "one_finding--mine"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("encoders: []", "encoders must name at least one"),
        ("cohorts: []", "cohorts must name at least one"),
        ("encoders: {a: b}", "encoders: must be a list"),
        ("encoders: [null]", "encoders: must be"),
        ("options: [1]", "options: must be a mapping"),
        ("ablations: {k_1: true}", "ablations: must be a list"),
        ("name: [mine]", "name: must be text"),
        ("ablations: [k_1, k_11]", "Did you mean 'k_1'?"),
        ("encoders: [marker, markr]", "encoders: unknown encoder 'markr'. Did you mean 'marker'?"),
        ("encoders: [marker, marker]", "encoders: 'marker' occurs twice"),
        ("cohorts: [calibration, calibraton]", "cohorts: unknown cohort 'calibraton'"),
        (
            "cohorts: [calibration, calibration]",
            "'calibration' occurs twice (as a folder's name): give one of them a `la",
        ),
        ("options: {permutation: 99}", "options: unknown option 'permutation'. Did you mean 'permutations'?"),
        ("options: {encoder: blind}", "options: unknown option 'encoder'"),
        ("options: {k: five}", "cohort 'calibration': --k must be a whole number, got 'five'"),
        ("cohorts: [{cohort: calibration, k: 0}]", "cohort 'calibration': "),
        ("cohorts: [{cohort: calibration, ecnoders: [x]}]", "unknown option 'ecnoders'"),
        (
            "cohorts: [{cohort: calibration, encoders: [rad_dino]}]",
            "encoders: unknown encoder of this study 'rad_dino'",
        ),
        ("cohorts: [{cohort: calibration, encoders: []}]", "encoders must name at least one"),
        ("encoder: marker", "unknown key 'encoder'. Did you mean 'encoders'?"),
    ],
)
def test_anything_else_is_refused_by_file_and_key(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        study(tmp_path, text)
    assert message in str(error.value)
    assert "mine.yaml" in str(error.value)
