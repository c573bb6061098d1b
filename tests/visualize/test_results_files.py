from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from candor_monai.utils import UserError
from candor_monai.visualize.answer import task_answer
from candor_monai.visualize.results_files import read_results, results_schema, validate_results, write_results

from . import synthetic


def test_a_float_reads_back_as_itself(tmp_path):
    document = synthetic.one_encoder()
    document["discordance"][0]["D"] = np.float64(1 / 3)
    write_results(tmp_path / "results.json", document)
    assert read_results(tmp_path / "results.json")["discordance"][0]["D"] == 1 / 3


@pytest.mark.parametrize(
    "make", [synthetic.one_encoder, synthetic.three_encoders, lambda: synthetic.whole_study(classes=False)]
)
def test_synthetic_results_follow_the_schema(make):
    validate_results(make())


def test_every_required_key_is_required():
    document = synthetic.one_encoder()
    for key in results_schema()["required"]:
        cut = {k: v for k, v in document.items() if k != key}
        with pytest.raises(UserError, match=key):
            validate_results(cut)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("D", 1.2, r"discordance\[0\]\.D"),
        ("D", "0.2", r"discordance\[0\]\.D"),
        ("status", "fine", r"discordance\[0\]\.status"),
        ("n_positive", -1, r"discordance\[0\]\.n_positive"),
        ("level", "site", r"discordance\[0\]\.level"),
    ],
)
def test_a_wrong_value_is_named(key, value, place):
    document = copy.deepcopy(synthetic.one_encoder())
    document["discordance"][0][key] = value
    with pytest.raises(UserError, match=place):
        validate_results(document)


def test_nan_is_refused_by_place_and_nothing_is_written(tmp_path):
    document = synthetic.one_encoder()
    document["discordance"][2]["D_lo"] = float("nan")
    with pytest.raises(ValueError, match=r"results\.discordance\[2\]\.D_lo"):
        write_results(tmp_path / "results.json", document)
    assert not list(tmp_path.iterdir())


def test_unknown_keys_are_allowed_and_later_versions_are_not():
    document = synthetic.one_encoder() | {"later": {"x": 1}}
    validate_results(document)
    with pytest.raises(UserError, match="schema version 2 is newer"):
        validate_results(document | {"schema_version": 2})


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": NaN}', "[]", "[" * 100_000])
def test_unreadable_files_are_named(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"results\.json"):
        read_results(path)


def test_schema_is_itself_valid():
    import jsonschema

    jsonschema.Draft7Validator.check_schema(results_schema())
    json.dumps(results_schema())


def test_results_of_the_first_version_are_read_by_every_later_one():
    """The file is never written anew: a new version of the schema must still take it."""
    document = read_results(Path(__file__).with_name("results_v1.json"))
    assert document["schema_version"] == 1
    assert {"D", "D_total_lo", "p_chance"} <= set(document["discordance"][0])
    assert task_answer(document, document["discordance"][0]["task"]).headline
