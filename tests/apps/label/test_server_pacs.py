"""The app on a real PACS: Orthanc on loopback with CR, DX, MG and CT images."""

from __future__ import annotations

import json

import pytest

from tests.data.cohorts.test_dicomweb import ORTHANC, PASSWORD, PLUGIN, Orthanc
from tests.data.test_header_index import dicom

from .server_support import ENCODER, FINDING, Server, copied_app, needs_label_server, radiographs

pytestmark = [
    needs_label_server,
    pytest.mark.skipif(ORTHANC is None or not PLUGIN.exists(), reason="orthanc and orthanc-dicomweb are not installed"),
]
COUNT = 24
MODALITIES = ("CR", "DX", "MG", "CT")
ROOT = "1.2.826.0.1.3680043.8.498.9"


def uids(i: int) -> tuple[str, str, str]:
    """Study, series and instance: two images a study; those of study 0 share one series."""
    return f"{ROOT}.1.{i // 2}", f"{ROOT}.2.{0 if i < 2 else i}", f"{ROOT}.3.{i}"


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orthanc")
    server = Orthanc(folder)
    server.start()
    labels = {}
    images = radiographs(COUNT)
    for i, (pixels, label, _) in enumerate(images):
        patient = images[i - i % 2][2]  # one patient a study
        study, series, instance = uids(i)
        modality = "DX" if i < 2 else MODALITIES[i % 4]
        path = dicom(
            folder / f"files/{i}",
            SOPInstanceUID=instance,
            StudyInstanceUID=study,
            SeriesInstanceUID=series,
            Modality=modality,
            PatientID=f"MRN{patient}X",
            PatientName="Doe^Jane",
            ViewPosition="AP" if i % 3 else "PA",
            pixels=pixels,
        )
        assert server.call("POST", "/instances", data=path.read_bytes()).ok
        if modality != "CT":
            labels[instance] = label
    yield server, labels
    server.kill()


@pytest.fixture(scope="module")
def server(pacs, tmp_path_factory):
    orthanc, _ = pacs
    folder = tmp_path_factory.mktemp("server")
    conf = {"encoder": ENCODER, "findings": FINDING, "k": "2", "match_on": "['view']"}
    access = {"MONAI_LABEL_DICOMWEB_USERNAME": "reader", "MONAI_LABEL_DICOMWEB_PASSWORD": PASSWORD}
    server = Server(folder, copied_app(folder / "app"), orthanc.url, conf, **access)
    yield server.start()
    server.stop(kill=True)


def held(orthanc: Orthanc) -> int:
    return orthanc.call("GET", "/statistics").json()["CountInstances"]


def test_from_listing_to_margins_and_labels_without_writing_to_the_pacs(pacs, server):
    orthanc, labels = pacs
    before = held(orthanc)
    assert set(server.client().datastore()["objects"]) == set(labels)
    for place, image in enumerate(sorted(labels)):
        if place % 4:
            server.save(image, {"findings": {FINDING: labels[image]}, "selected_by": "random"})
    assert server.score()["with_feature"] == len(labels)
    sample = server.client().next_sample("candor_review", {})
    assert sample["SOPInstanceUID"] == sample["id"]
    assert sample["SeriesInstanceUID"].startswith(f"{ROOT}.2.")
    assert sample["StudyInstanceUID"].startswith(f"{ROOT}.1.")
    answer = server.infer(sample["id"])
    assert answer["group"].startswith("view=")
    assert answer["findings"][FINDING]["dm"] is not None
    assert held(orthanc) == before


def test_viewers_may_name_a_series_of_one_image(pacs, server):
    _, labels = pacs
    image = next(i for i in sorted(labels) if int(i.rpartition(".")[2]) >= 2)
    series = f"{ROOT}.2.{image.rpartition('.')[2]}"
    assert server.infer(series)["image_id"] == image
    saved = server.request(
        "PUT",
        "/datastore/label",
        params={"image": series},
        files={"label": ("label.json", json.dumps({"findings": {FINDING: labels[image]}}).encode())},
    )
    assert saved.status_code == 200, saved.text
    assert saved.json()["label"] == image
    # two images: which one is meant is not known
    assert server.request("POST", "/infer/candor", params={"image": f"{ROOT}.2.0"}).status_code == 404


def test_the_image_itself(pacs, server):
    _, labels = pacs
    answer = server.request("GET", "/datastore/image", params={"image": sorted(labels)[0]})
    assert answer.status_code == 200
    assert answer.content[128:132] == b"DICM"
    assert server.request("GET", "/datastore/image", params={"image": "1.2.3"}).status_code == 404


def test_an_image_deleted_from_the_pacs(pacs, server):
    orthanc, labels = pacs
    image = sorted(labels)[-1]
    found = orthanc.call("POST", "/tools/lookup", data=image).json()
    orthanc.call("DELETE", found[0]["Path"])
    server.stop()
    kept = server.app / "labels"
    for file in kept.rglob("*"):
        if file.is_file() and "pacs" not in file.parts and file.parent.name != "labels":
            file.unlink()  # features and scores: the server has to ask for the image again
    for file in kept.rglob("*.dcm"):
        file.unlink()
    server.start()
    answer = server.request("POST", "/infer/candor", params={"image": image})
    assert answer.status_code == 404
    assert server.request("GET", "/datastore/image", params={"image": image}).status_code == 404
    assert server.request("POST", "/infer/candor", params={"image": sorted(labels)[0]}).status_code == 200
    assert server.score()["with_feature"] == len(labels) - 1


def test_nothing_about_persons_leaves(pacs, server):
    _, labels = pacs
    client = server.client()
    texts = [json.dumps(client.datastore()), json.dumps(client.info()), server.log.read_text(errors="replace")]
    texts += [json.dumps(server.infer(image)) for image in sorted(labels)[:4]]
    for text in texts:
        assert "Doe" not in text
        assert "MRN" not in text
        assert PASSWORD not in text
