"""What a cohort of a PACS makes of answers that lack something, of studies that changed and of kept files that tore."""

from __future__ import annotations

import json

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError
from tests.data.test_dicomweb_client import Server

from .trees import reasons

pytest.importorskip("requests", reason="requests is not installed")


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def element(tag, *values):
    return {tag: {"vr": "UI", "Value": list(values)}}


def instance(study, number):
    uids = element("0020000D", study) | element("0020000E", "1.3") | element("00080018", number)
    return uids | element("00080060", "DX")


def says(server, studies, number=None):
    """Make the server hold these studies: UID -> rows of metadata."""
    rows = [element("0020000D", uid) | ({} if number is None else element("00201208", number)) for uid in studies]
    server.on("/studies", (200, json.dumps(rows).encode(), {}))
    for uid, answer in studies.items():
        server.on(f"/studies/{uid}/metadata", (200, json.dumps(answer).encode(), {}))


def load(server, **options):
    return load_cohort("dicomweb", url=server.url, unlabelled=True, retry_seconds=0.2, timeout=0.5, **options)


def test_an_image_without_usable_uids_is_a_row_with_a_reason(server):
    lost = [instance("1.1", "a/b"), instance("1.1", "..") | element("00080018"), instance("1.1", "9" * 70)]
    says(server, {"1.1": [instance("1.1", "1.4"), *lost], "1.2": [instance("1.2", "1.5")]})
    cohort = load(server)
    assert cohort.records["image_id"].tolist() == ["1.4", "1.5"]
    assert cohort.rejected[["image_id", "reason"]].to_numpy().tolist() == [["studies/1.1", "malformed"]] * 3


def test_a_study_that_is_gone_or_broken_is_a_row_with_a_reason(server):
    says(server, {"1.1": [instance("1.1", "1.4")], "1.2": 5, "../x": []})
    server.on(
        "/studies", (200, json.dumps([element("0020000D", u) for u in ("1.1", "1.2", "1.3", "../x")]).encode(), {})
    )
    cohort = load(server)
    assert reasons(cohort) == {"studies/1.2": "malformed", "studies/1.3": "gone", "a study without a UID": "malformed"}
    assert cohort.counts["pacs"] == {"studies": 4, "images": 1, "studies_gone": 1}
    says(server, {"1.2": 5})
    with pytest.raises(UserError, match=r"1 of them or their images cannot be used; studies/1\.2: malformed"):
        load(server)


def test_kept_attributes_of_a_study_that_changed_or_a_torn_file_are_asked_for_again(server, tmp_path):
    says(server, {"1.1": [instance("1.1", "1.4")]}, number=1)
    assert len(load(server, cache_dir=str(tmp_path))) == 1
    asked = len(server.asked)
    assert len(load(server, cache_dir=str(tmp_path))) == 1
    assert not any("metadata" in path for path, _ in server.asked[asked:])
    says(server, {"1.1": [instance("1.1", "1.4"), instance("1.1", "1.5")]}, number=2)
    assert len(load(server, cache_dir=str(tmp_path))) == 2
    (kept,) = (tmp_path / "attributes").rglob("*.json")
    for content in (b"", b"[]", b"{", kept.read_bytes()[:-20], b'{"number": "2", "rows": 5, "lost": []}'):
        kept.write_bytes(content)
        assert len(load(server, cache_dir=str(tmp_path))) == 2
    assert {path.name for path in tmp_path.rglob("*.json")} == {"1.1.json"}


def test_a_study_cannot_be_kept_elsewhere(server, tmp_path):
    outside = tmp_path / "x.json"
    outside.write_text("[]")
    says(server, {"1.1": [instance("1.1", "1.4")]})
    names = ("1.1", "../../../x", "9" * 300, "a\0b")
    server.on("/studies", (200, json.dumps([element("0020000D", uid) for uid in names]).encode(), {}))
    cohort = load(server, cache_dir=str(tmp_path / "cache"))
    assert len(cohort) == 1
    assert cohort.rejected["reason"].tolist() == ["malformed"] * 3
