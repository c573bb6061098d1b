"""What a label may say: the smallest one, and every way to be none."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.apps.label.readings import label_schema, read_label, read_submission
from candor_monai.utils import UserError

FINDINGS = ["Edema", "Pleural effusion, left", "a.b/c", "Ödem ≥ 3"]


def test_smallest_submission() -> None:
    found = read_submission('{"findings": {"Edema": 1}}', FINDINGS)
    assert (dict(found.findings), found.selected_by, found.client_id) == ({"Edema": 1}, None, None)


def test_every_kind_of_value_and_name() -> None:
    said = {"Edema": 1, "Pleural effusion, left": 0, "a.b/c": None, "Ödem ≥ 3": 1}
    document = {"findings": said, "selected_by": "random", "client_id": "reader 7"}
    for form in (document, json.dumps(document), json.dumps(document, ensure_ascii=False).encode()):
        found = read_submission(form, FINDINGS)
        assert found.findings == said
        assert found.selected_by == "random"
        assert found.client_id == "reader 7"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\xef\xbb\xbf[]", "a mapping"),
        ("[" * 100000, "nested too deeply|not JSON"),
        ("3", "a mapping"),
        (None, "a JSON document is needed"),
        ("{}", "findings is missing"),
        ('{"findings": {}}', "findings must be a mapping"),
        ('{"findings": []}', "findings must be a mapping"),
        ('{"findings": {"Edema": 2}}', "'Edema' is 2; it must be 1"),
        ('{"findings": {"Edema": true}}', "'Edema' is True; it must be 1"),
        ('{"findings": {"Edema": 1.0}}', "'Edema' is 1.0; it must be 1"),
        ('{"findings": {"Edema": "1"}}', "'Edema' is '1'; it must be 1"),
        ('{"findings": {"Edema": NaN}}', "NaN is no JSON number"),
        ('{"findings": {"Edema": -1}}', "'Edema' is -1"),
        ('{"findings": {"Edma": 1}}', "Did you mean 'Edema'"),
        ('{"findings": {"": 1}}', "no name of a finding"),
        ('{"findings": {"Edema": 1, "Edema": 0}}', "'Edema' is written twice"),
        ('{"findings": {"Edema": 1}, "seleted_by": "random"}', "Did you mean 'selected_by'"),
        ('{"findings": {"Edema": 1}, "selected_by": "candor"}', "unknown selected_by in label of 'a': 'candor'"),
        ('{"findings": {"Edema": 1}, "client_id": 7}', "client_id must be text"),
        ('{"findings": {"Edema": 1}, "client_id": "%s"}' % ("x" * 201), "client_id must be text"),
        ('{"findings": {"Edema": 1}, "patient_name": "x"}', "unknown key"),
        ('{"findings": {"Edema": 1}, "client_id": "\\ud800"}', "client_id must be text"),
        ('{"findings": {"\\ud800": 1}}', "no name of a finding"),
        ('{"findings": {"%s": 1}}' % ("x" * (1 << 20)), "are no label"),
    ],
)
def test_what_is_no_submission(document: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        read_submission(document, FINDINGS, "label of 'a'")
    assert len(str(told.value)) < 400


_reading = {
    "findings": {"Edema": 1},
    "selected_by": "random",
    "client_id": None,
    "time": "2026-01-31T10:00:00.000000Z",
}
_label = {"schema_version": 1, "image_id": "a", **_reading, "history": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "this version reads 1"),
        ({"schema_version": True}, "this version reads 1"),
        ({"image_id": ""}, "image's id"),
        ({"image_id": None}, "image's id"),
        ({"time": "yesterday"}, "UTC"),
        ({"history": None}, "history must be a list"),
        ({"history": [{}]}, r"history\[0\].* findings is missing"),
        ({"history": [{**_reading, "selected_by": "x"}]}, "unknown selected_by"),
        ({"findings": None}, "findings must be"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_what_is_no_label_file(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_label(json.dumps({**_label, **change}).encode(), "label file x.json")


_values = st.one_of(st.sampled_from([0, 1, None]), st.booleans(), st.integers(-3, 3), st.just("1"), st.floats(0, 2))
_selected = st.sampled_from(["random", "imported", "other", None, 3])
_documents = st.fixed_dictionaries(
    {"findings": st.one_of(st.dictionaries(st.sampled_from(FINDINGS), _values), st.just([]), st.none())},
    optional={"selected_by": _selected, "client_id": st.sampled_from(["a", 3]), "x": st.just(1)},
)


def _valid(document: object, kind: str) -> bool:
    schema = label_schema()
    checker = jsonschema.Draft7Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})
    return checker.is_valid(document)


@given(_documents)
def test_the_schema_and_the_reader_agree_on_submissions(document: dict) -> None:
    # to JSON schema 1.0 is the number 1, and null is no way of selecting; the reader wants 0 or 1 as JSON writes them
    findings = document["findings"]
    odd = isinstance(findings, dict) and any(isinstance(v, (bool, float)) for v in findings.values())
    odd = odd or document.get("selected_by", "random") is None
    try:
        read_submission(document, FINDINGS)
        accepted = True
    except UserError:
        accepted = False
    assert accepted <= _valid(document, "submission") or odd
    if not odd:
        assert accepted == _valid(document, "submission")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "schema_version": st.sampled_from([1, 2, "1"]),
            "image_id": st.sampled_from(["", "x/ü.dcm", None]),
            "time": st.sampled_from(["2026-01-31T10:00:00.000000Z", "2026-01-31"]),
            "history": st.sampled_from([[], [_reading], [{}], None]),
            "selected_by": _selected,
        },
    )
)
def test_the_schema_and_the_reader_agree_on_files(change: dict) -> None:
    document = {**_label, **change}
    try:
        read_label(json.dumps(document).encode(), "x")
        accepted = True
    except UserError:
        accepted = False
    assert accepted == _valid(document, "label")


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(label_schema())
