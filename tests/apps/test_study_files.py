"""Files of studies: what they may say, and how anything else is refused."""

import pytest

from candor_monai.apps.options import run_options
from candor_monai.apps.study import read_study
from candor_monai.utils import UserError


def study(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return read_study(run_options(study=path))


def test_one_name_counts_as_a_list(tmp_path):
    read = study(tmp_path, "encoders: marker\ncohorts: calibration\nablations: k_1\n")
    assert (read.encoders, read.cohorts, read.ablations) == (("marker",), ({"cohort": "calibration"},), ("k_1",))


def test_keys_left_empty_are_as_good_as_absent(tmp_path):
    assert study(tmp_path, "encoders:\ncohorts:\noptions:\nablations:\n").ablations == ()


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
        ("encoder: marker", "unknown key 'encoder'. Did you mean 'encoders'?"),
    ],
)
def test_anything_else_is_refused_by_file_and_key(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        study(tmp_path, text)
    assert message in str(error.value)
    assert "mine.yaml" in str(error.value)
