"""The app in a real MONAI Label server, over HTTP, on a folder with PNG, NIfTI and DICOM files in sub-folders."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zipfile
from pathlib import Path

import pytest

from candor_monai.apps.label.readings import label_schema
from candor_monai.data import load_cohort
from tests.data.test_header_index import dicom

from .server_support import (
    DOTTED,
    ENCODER,
    FINDING,
    Server,
    client_module,
    copied_app,
    needs_label_server,
    radiographs,
    write_nifti,
    write_png,
)

pytestmark = needs_label_server
COUNT = 48
FORMS = (
    "ward.A/x{i:02d}.PNG",
    "ward.A/deep/x{i:02d}",
    "B/x{i:02d}.dcm",
    "B/IM{i:05d}",
    "C/x{i:02d}.nii.GZ",
    "C/x.{i:02d}.nii",
)


def write_studies(root: Path) -> dict[str, int]:
    """Radiographs in every form that the datastore lists; image id -> label."""
    labels = {}
    for i, (pixels, label, patient) in enumerate(radiographs(COUNT)):
        name = FORMS[i % len(FORMS)].format(i=i)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if ".nii" in name:
            write_nifti(path, pixels)
        elif name.startswith("B/"):
            uid = f"1.2.826.0.1.3680043.8.498.7.{i}"
            dicom(path, SOPInstanceUID=uid, PatientID=patient, PatientName="Doe^Jane", Modality="DX", pixels=pixels)
        else:
            write_png(path, pixels)
        labels[name] = label
    (root / "notes.csv").write_text("no image\n")
    (root / "README").write_text("no image either\n")
    return labels


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    root = tmp_path_factory.mktemp("studies") / "chest"
    return root, write_studies(root)


@pytest.fixture(scope="module")
def server(truth, tmp_path_factory):
    root, _ = truth
    folder = tmp_path_factory.mktemp("server")
    conf = {"encoder": ENCODER, "findings": json.dumps([FINDING, DOTTED]), "k": "3", "match_on": "[]"}
    server = Server(folder, copied_app(folder / "app"), str(root), conf)
    server.start()
    yield server
    server.stop(kill=True)


@pytest.fixture(scope="module")
def labelled(server, truth):
    """The server after two thirds of the images were labelled and all were scored."""
    _, labels = truth
    ids = sorted(labels)
    chosen = [image for place, image in enumerate(ids) if place % 3]
    for image in chosen:
        server.save(image, {"findings": {FINDING: labels[image], DOTTED: 1 - labels[image]}, "selected_by": "random"})
    scored = server.score()
    assert scored["images"] == scored["with_feature"] == COUNT
    assert scored["encoded"] >= COUNT - 1  # one may have been encoded when it was asked for
    assert scored["rejected"] == []
    return chosen


def test_what_the_server_says_of_itself(server, truth):
    root, labels = truth
    info = server.client().info()
    assert info["name"] == "candor_monai"
    assert info["labels"] == [FINDING, DOTTED]
    assert info["models"]["candor"]["type"] == "classification"
    assert set(info["scoring"]) == {"candor", "candor_reread"}
    assert {"random", "candor_review", "candor_uncertain", "candor_diverse", "reread"} == set(info["strategies"])
    assert info["datastore"]["total"] == COUNT
    assert set(server.client().datastore()["objects"]) == set(labels)
    assert not any(path.name.startswith("datastore") for path in root.iterdir())
    assert {path.name for path in server.app.iterdir()} >= {"main.py", "model", "lib", "logs", "bin"}


def test_before_any_scoring(server):
    """The random strategy serves; an image is explained on demand, with the reason why there is no margin."""
    sample = server.client("early").next_sample("random", {})
    assert Path(sample["path"]).is_file()
    answer = server.infer(sample["id"])
    assert answer["image_id"] == sample["id"]
    assert answer["findings"][FINDING]["dm"] is None
    assert answer["findings"][FINDING]["reason"]


def test_infer_gives_neighbours_margins_and_words(server, labelled, truth):
    _, labels = truth
    answer = server.infer(labelled[0])
    for finding, said in ((FINDING, labels[labelled[0]]), (DOTTED, 1 - labels[labelled[0]])):
        found = answer["findings"][finding]
        assert found["label"] == said
        assert len(found["positives"]) == len(found["negatives"]) == 3
        near = [item["similarity"] for item in found["positives"]]
        assert near == sorted(near, reverse=True)
        assert found["c_pos"] == pytest.approx(sum(near) / 3)
        assert found["dm"] == pytest.approx(found["c_neg"] - found["c_pos"])
        assert labelled[0] not in {item["image_id"] for item in found["positives"] + found["negatives"]}
        assert finding in found["words"]
    # the two findings are each other's opposite
    first, second = answer["findings"][FINDING], answer["findings"][DOTTED]
    assert first["dm"] == pytest.approx(-second["dm"])


def test_strategies_serve_what_they_should(server, labelled, truth):
    _, labels = truth
    unlabelled = set(labels) - set(labelled)
    scores = []
    for strategy, pool in (
        ("candor_review", set(labelled)),
        ("candor_uncertain", unlabelled),
        ("candor_diverse", unlabelled),
    ):
        sample = server.client("a").next_sample(strategy, {})
        other = server.client("b").next_sample(strategy, {})
        assert sample["id"] != other["id"]
        assert {sample["id"], other["id"]} <= pool
        scores.append((sample["score"], other["score"]))
        again = server.client("a").next_sample(strategy, {"reset": True})
        assert again["id"] == sample["id"]
    assert scores[0][0] >= scores[0][1]
    assert scores[1][0] >= scores[1][1]


def test_a_label_has_its_effect_at_once_and_says_how_it_came_about(server, labelled):
    served = server.client("saver").next_sample("candor_uncertain", {})["id"]
    before = server.infer(labelled[0])["findings"][FINDING]
    status = server.client().info()["datastore"]
    saved = server.save(served, {"findings": {FINDING: 1}}, client_id="saver", name="by.reader.one.json")
    assert saved["selected_by"] == "candor_uncertain"
    assert saved["label"] == saved["image"] == served
    assert server.client().info()["datastore"]["completed"] == status["completed"] + 1
    info = server.request("GET", "/datastore/label/info", params={"label": served, "tag": "final"}).json()
    assert (info["findings"], info["client_id"]) == ({FINDING: 1}, "saver")
    path = server.client().download_label(served, "final")
    import jsonschema

    jsonschema.validate(json.loads(Path(path).read_text()), label_schema())
    assert server.request("DELETE", "/datastore/label", params={"id": served, "tag": "final"}).status_code == 200
    assert server.request("DELETE", "/datastore/label", params={"id": served, "tag": "final"}).status_code == 404
    assert server.client().info()["datastore"]["completed"] == status["completed"]
    assert server.infer(labelled[0])["findings"][FINDING] == before


@pytest.mark.parametrize("image", ["/etc/hostname", "../chest/README", "README", "nothing.png", "", "ward.A"])
def test_unknown_images_are_not_found(server, image):
    for method, path in (("POST", "/infer/candor"), ("GET", "/datastore/image"), ("GET", "/datastore/image/info")):
        answer = server.request(method, path, params={"image": image})
        # an empty id does not pass MONAI Label's own check
        assert answer.status_code == 404 or (image == "" and answer.status_code == 500), (path, answer.text)
    saved = server.request("PUT", "/datastore/label", params={"image": image}, files={"label": ("l.json", b"{}")})
    assert saved.status_code == 404
    sneaked = server.request("POST", "/infer/candor?image=x", data={"params": json.dumps({"image": image})})
    assert sneaked.status_code == 404


def test_uploads_are_not_images_of_the_datastore(server, truth):
    root, labels = truth
    name = next(n for n in labels if n.endswith(".PNG"))
    answer = server.request("POST", "/infer/candor", files={"file": ("a.png", (root / name).read_bytes())})
    assert answer.status_code == 404
    added = server.request("PUT", "/datastore/image?image=new", files={"file": ("a.png", b"x")})
    assert added.status_code == 400
    assert "put the file there" in added.json()["detail"]
    assert server.request("DELETE", "/datastore/image", params={"id": name}).status_code == 400
    assert (root / name).is_file()


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "mapping"),
        (b'{"findings": {"Nothing": 1}}', "unknown finding"),
        (b'{"findings": {"Pneumonia": 2}}', "must be 1"),
        (b'{"findings": {"Pneumonia": 1}, "selected_by": "me"}', "selected_by"),
        (b'{"findings": {"Pneumonia": NaN}}', "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"findings": {"Pneumonia": 1}, "note": "x"}', "unknown key"),
        (b"x" * 2_000_000, "bytes"),
    ],
)
def test_malformed_labels_are_refused_and_change_nothing(server, labelled, document, told):
    before = server.client().info()["datastore"]["completed"]
    where = {"image": labelled[0]}
    answer = server.request("PUT", "/datastore/label", params=where, files={"label": ("label.json", document)})
    assert answer.status_code == 400
    assert told in answer.json()["detail"]
    kept = server.request("GET", "/datastore/label/info", params={"label": labelled[0], "tag": "final"}).json()
    assert kept["readings"] == 1
    assert server.client().info()["datastore"]["completed"] == before


def test_malformed_requests(server, labelled):
    label = {"label": ("label.json", b'{"findings": {"Pneumonia": 1}}')}
    where = {"image": labelled[0]}
    bad = server.request("PUT", "/datastore/label", params=where, data={"params": "{bad"}, files=label)
    assert (bad.status_code, bad.json()["detail"][:8]) == (400, "not JSON")
    tag = server.request("PUT", "/datastore/label", params={**where, "tag": "v1.0"}, files=label)
    assert (tag.status_code, "'final' only" in tag.json()["detail"]) == (400, True)
    assert server.request("POST", "/infer/candor", params=where, data={"params": "{"}).status_code == 400
    assert server.request("POST", "/infer/other", params=where).status_code == 404
    assert server.request("POST", "/activelearning/other", json={}).status_code == 404
    assert server.request("POST", "/activelearning/random", data="[").status_code == 422
    assert server.request("POST", "/activelearning/random", json={"reset": "maybe"}).status_code == 400
    assert server.request("PUT", "/datastore/label", params=where).status_code == 422
    assert server.request("POST", "/scoring/other?run_sync=true").status_code >= 400
    assert server.client().info()["datastore"]["total"] == COUNT


def test_eight_clients_at_once(server, labelled, truth):
    """No image is given to two of them, and every label that was acknowledged is there."""
    _, labels = truth
    before = server.client().info()["datastore"]["completed"]
    server.request("POST", "/activelearning/random", json={"client_id": "someone", "reset": True})
    given: list[tuple[str, str]] = []
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(2):
                sample = server.client(name).next_sample("random", {})
                if sample:
                    given.append((name, sample["id"]))
                    server.save(sample["id"], {"findings": {FINDING: labels[sample["id"]]}}, client_id=name)
                    server.infer(sample["id"], name)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"client {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    images = [image for _, image in given]
    assert len(set(images)) == len(images) >= 8
    assert server.client().info()["datastore"]["completed"] == before + len(images)
    for name, image in given:
        info = server.request("GET", "/datastore/label/info", params={"label": image, "tag": "final"}).json()
        assert (info["client_id"], info["selected_by"]) == (name, "random")


def test_the_labels_come_out_as_a_cohort(server, labelled, truth, tmp_path):
    root, labels = truth
    answer = server.request("GET", "/datastore/dataset")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path)
    (card,) = tmp_path.rglob("cohort.yaml")
    cohort = load_cohort(card, root, labels=str(card.with_name("labels.csv")))
    found = dict(zip(cohort.records["image"], cohort.labels[:, cohort.findings.index(FINDING)].tolist(), strict=True))
    assert {image: found[image] for image in labelled} == {image: labels[image] for image in labelled}


def test_an_image_deleted_under_it(server, labelled, truth):
    """It is not found, not served, and not in the way of the others."""
    root, _ = truth
    gone = server.client("first").next_sample("candor_review", {"reset": True})["id"]
    content = (root / gone).read_bytes()
    (root / gone).unlink()
    try:
        assert server.request("POST", "/infer/candor", params={"image": gone}).status_code == 404
        assert server.request("GET", "/datastore/image", params={"image": gone}).status_code == 404
        other = server.client("first").next_sample("candor_review", {"reset": True})["id"]
        assert other != gone
        assert (root / other).is_file()
        scored = server.score()
        assert scored["images"] == COUNT - 1
        assert server.request("POST", "/infer/candor", params={"image": other}).status_code == 200
    finally:
        (root / gone).write_bytes(content)
    assert server.score()["images"] == COUNT


def test_a_file_that_is_no_image_is_told(server, truth):
    root, _ = truth
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    try:
        scored = server.score()
        assert [row["image_id"] for row in scored["rejected"]] == ["broken.png"]
        answer = server.request("POST", "/infer/candor", params={"image": "broken.png"})
        assert answer.status_code == 422
        assert scored["rejected"][0]["reason"] in answer.json()["detail"]
    finally:
        (root / "broken.png").unlink()
    server.score()


def test_nothing_about_persons_leaves(server, labelled):
    texts = [json.dumps(server.client().datastore()), json.dumps(server.client().info())]
    texts += [json.dumps(server.infer(image)) for image in labelled[:6]]
    state = server.folder.parent  # the log, and what lies beside the folder of images
    assert "Doe" not in "".join(texts) + server.log.read_text(errors="replace")
    assert state.is_dir()


def test_restart_with_nothing_lost(server, labelled, truth):
    root, _ = truth
    sample = server.client("before").next_sample("candor_review", {"reset": True})
    status = server.client().info()["datastore"]
    answer = server.infer(labelled[1])
    server.stop(kill=True)
    server.start()
    assert server.client().info()["datastore"]["completed"] == status["completed"]
    assert server.infer(labelled[1]) == answer
    others = set()
    while other := server.client("after").next_sample("candor_review", {}):
        others.add(other["id"])
    assert others
    assert sample["id"] not in others
    assert {path.name for path in root.parent.iterdir()} == {"chest", "chest.labels"}


def test_scoring_in_a_process_of_its_own_is_taken_over(server, labelled, truth):
    """As MONAI Label runs it without run_sync: the server notices the new scores by itself."""
    root, _ = truth
    name = next(path.name for path in sorted((root / "B").iterdir()))
    new = root / "B" / f"copy of {name}"
    new.write_bytes((root / "B" / name).read_bytes())
    try:
        answer = server.request("POST", "/scoring/candor", json={})
        assert answer.json()["status"] == "SUBMITTED"
        deadline = time.monotonic() + 300
        while server.client().info()["datastore"]["total"] != COUNT + 1:
            assert time.monotonic() < deadline, server.tail()
            time.sleep(1)
        found = server.infer(f"B/copy of {name}")
        assert found["findings"][FINDING]["n"] > 0
        server.idle()
    finally:
        os.unlink(new)


def test_rereads_are_blinded(server, labelled):
    drawn = server.request("POST", "/scoring/candor_reread?run_sync=true", json={"number": 3})
    assert drawn.status_code == 200, drawn.text
    sample = server.client("second").next_sample("reread", {})
    assert sample["score"] is None
    assert "label" not in sample
    saved = server.save(sample["id"], {"findings": {FINDING: 1}}, client_id="second")
    assert saved["selected_by"] in ("candor_review", "reread_random")


def test_mistakes_on_the_command_line_end_the_server_with_one_line(truth, tmp_path):
    root, _ = truth
    app = copied_app(tmp_path / "app")
    for conf, told in (
        ({"encoder": ENCODER}, "--conf findings is needed"),
        ({"encoder": "efficientnet_lite00", "findings": FINDING}, "Did you mean 'efficientnet_lite0'"),
    ):
        server = Server(tmp_path, app, str(root), conf)
        with pytest.raises(AssertionError, match="the server ended"):
            server.start()
        assert told in server.log.read_text()


def test_the_client_is_monai_labels_own():
    assert client_module().MONAILabelClient.__module__ == "monailabel_client"
