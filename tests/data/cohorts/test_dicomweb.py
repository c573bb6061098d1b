"""A cohort on a real PACS: Orthanc on loopback, started by the test, with real radiographs written as DICOM.

Pixels and labels are those of ../shared/data/nih_cxr; the headers are made here.
"""

from __future__ import annotations

import csv
import json
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from candor_monai.data import load_cohort
from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.options import Options
from candor_monai.utils import DecodeError, UserError
from tests.data.test_header_index import dicom
from tests.support import SHARED

from .trees import labels_of, reasons

requests = pytest.importorskip("requests", reason="requests is not installed")
ORTHANC = shutil.which("Orthanc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
pytestmark = [
    pytest.mark.skipif(ORTHANC is None or not PLUGIN.exists(), reason="orthanc and orthanc-dicomweb are not installed"),
    pytest.mark.skipif(not SHARED.is_dir(), reason="real data folder ../shared/data is absent"),
]
PASSWORD = "0rth4nc"
COUNT = 40


class Orthanc:
    """A server with its own storage on a free port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = folder / "orthanc.json"
        settings = {
            "StorageDirectory": str(folder / "storage"),
            "IndexDirectory": str(folder / "storage"),
            "HttpPort": self.port,
            "DicomServerEnabled": False,
            "RemoteAccessAllowed": False,
            "AuthenticationEnabled": True,
            "RegisteredUsers": {"reader": PASSWORD},
            "Plugins": [str(PLUGIN)],
            "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        }
        self.config.write_text(json.dumps(settings))
        self.url = f"http://127.0.0.1:{self.port}/dicom-web"
        self.process: subprocess.Popen | None = None

    def call(self, method: str, path: str, **how):
        url = f"http://127.0.0.1:{self.port}{path}"
        return requests.request(method, url, auth=("reader", PASSWORD), timeout=10, **how)

    def start(self) -> None:
        assert ORTHANC is not None
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([ORTHANC, str(self.config)], stdout=quiet, stderr=quiet)
        for _ in range(300):
            try:
                if self.call("GET", "/system").ok:
                    return
            except requests.ConnectionError:
                time.sleep(0.1)
        raise AssertionError("Orthanc did not start")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """A running server, the same files in a folder, and a table of labels by UID and by accession number."""
    folder = tmp_path_factory.mktemp("orthanc")
    with open(SHARED / "nih_cxr" / "labels.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    chosen = [r for label in ("1", "0") for r in [r for r in rows if r["Pneumonia"] == label][: COUNT // 2]]
    server = Orthanc(folder)
    server.start()
    lines = ["SOPInstanceUID,AccessionNumber,Pneumonia"]
    for i, row in enumerate(chosen):
        pixels = np.asarray(Image.open(SHARED / "nih_cxr" / "images" / row["image"]).convert("L"))
        uid = f"1.2.826.0.1.3680043.8.498.1.{i}"
        path = dicom(
            folder / f"files/{i}",
            SOPInstanceUID=uid,
            StudyInstanceUID=f"1.2.826.0.1.3680043.8.498.2.{i // 2}",
            SeriesInstanceUID=f"1.2.826.0.1.3680043.8.498.3.{i}",
            AccessionNumber=f"ACC{i // 2:03}",
            PatientID=chosen[i - i % 2]["patient_id"],  # one patient a study
            PatientName="Doe^Jane",
            ViewPosition=row["view"],
            StudyDate="20200102",
            KVP="90",
            pixels=pixels,
        )
        assert server.call("POST", "/instances", data=path.read_bytes()).ok
        lines.append(f"{uid},ACC{i // 2:03},{row['Pneumonia']}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    yield server, folder
    server.kill()


@pytest.fixture
def load(hospital, monkeypatch):
    server, folder = hospital
    monkeypatch.setenv("PACS_PASSWORD", PASSWORD)

    def load(**options):
        usual = {
            "labels": str(folder / "labels.csv"),
            "findings": ["Pneumonia"],
            "image_column": "SOPInstanceUID",
            "match_on": ["site", "view"],
            "site": "ward",
        }
        if options.pop("here", False):
            return load_cohort("table", folder / "files", header_workers=1, **usual, **options)
        access = {"url": server.url, "user": "reader", "password_env": "PACS_PASSWORD", "retry_seconds": 30}
        return load_cohort("dicomweb", **{**usual, **access, **options})

    return load


def scores(cohort):
    """D of tiny features: every image as 16 × 16 pixels."""
    seen = [canonical(decode(cohort.source(i), DecodeOptions()), 16)[0] for i in range(len(cohort))]
    features = np.stack([s.astype(np.float32).ravel() - 100 for s in seen])
    options = Options(k=3, queries="all", resamples=20, permutation_test=False, total_interval=False)
    return evaluate(features, cohort.observations(), options).rows


def test_same_cohort_and_same_d_as_from_the_folder(load):
    here, there = load(here=True), load(modalities=["DX"], study_date="20200101-20201231")
    assert labels_of(here, "Pneumonia") == labels_of(there, "Pneumonia")
    assert len(there) == COUNT
    assert here.groups()[1] == there.groups()[1]
    kept = ["image_id", "patient_id", "site", "view"]
    order = "image_id"
    assert (
        here.records[kept].sort_values(order).to_numpy().tolist()
        == there.records[kept].sort_values(order).to_numpy().tolist()
    )
    assert scores(here) == scores(there)
    assert "Doe" not in there.rejected.to_csv() + repr(there.describe())
    assert PASSWORD not in repr(there.card) + repr(there.open_image.client) + repr(there.counts)


def test_search_by_accession(load, hospital):
    _, folder = hospital
    lines = (folder / "labels.csv").read_text().splitlines()
    numbers = dict.fromkeys(line.split(",")[1] for line in lines[1:4])
    table = folder / "some.csv"
    table.write_text("AccessionNumber,Pneumonia\n" + "".join(f"{n},1\n" for n in numbers) + "NONE,0\n*,1\n")
    cohort = load(labels=str(table), image_column="AccessionNumber", match_on=["KVP"])
    assert len(cohort) == 2 * len(numbers)
    assert cohort.counts["pacs"]["studies"] == len(numbers)
    assert cohort.groups()[1] == ("KVP=90",)
    assert reasons(cohort) == {"some.csv row 3": "no_image", "some.csv row 4": "no_image"}


def test_wrong_credentials_and_wrong_address(load, monkeypatch):
    monkeypatch.setenv("PACS_PASSWORD", "wrong")
    with pytest.raises(UserError, match=r"access refused \(401"):
        load()
    monkeypatch.setenv("PACS_PASSWORD", PASSWORD)
    with pytest.raises(UserError, match="needs --dataset_dir or --labels, and url"):
        load(url=None)
    with pytest.raises(UserError, match="Did you mean 'accession'"):
        load(search_by="acession")
    with pytest.raises(UserError, match="needs the table joined by accession_number"):
        load(search_by="accession")
    with pytest.raises(UserError, match="joined by sop_instance_uid or accession_number"):
        load(join_on="path")
    with pytest.raises(UserError, match="does not answer; tried for 1 s"):
        load(url="http://127.0.0.1:9/dicom-web", retry_seconds=1)


def test_attributes_and_files_are_kept_and_a_second_run_goes_on(load, hospital, tmp_path):
    server, _ = hospital
    cohort = load(cache_dir=str(tmp_path))
    content = [cohort.source(i) for i in range(10)]
    server.kill()
    try:
        cohort.open_image._next = {}  # nothing is asked for ahead
        assert [cohort.source(i) for i in range(10)] == content
    finally:
        server.start()
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "attributes").rglob("*.json"))
    assert len(load(cache_dir=str(tmp_path))) == COUNT


def test_a_server_killed_and_started_again(load, hospital):
    server, _ = hospital
    cohort = load(concurrency=1)
    first = cohort.source(0)
    server.kill()
    later = threading.Timer(1.5, server.start)
    later.start()
    assert cohort.source(10)[128:132] == b"DICM"
    later.join()
    assert cohort.source(0) == first


def test_a_study_deleted_between_search_and_retrieval(load, hospital):
    server, folder = hospital
    cohort = load(concurrency=1)
    uid = cohort.records["image"].iloc[5].split("/")
    found = server.call("POST", "/tools/lookup", data=uid[1]).json()
    path = next(f["Path"] for f in found if f["Type"] == "Study")
    server.call("DELETE", path)
    try:
        with pytest.raises(DecodeError) as error:
            cohort.source(5)
        assert error.value.reason == "gone"
        fewer = load()
        assert COUNT - 3 < len(fewer) < COUNT
        assert "no_image" in set(fewer.rejected["reason"])
    finally:
        for file in (folder / "files").iterdir():
            server.call("POST", "/instances", data=file.read_bytes())


def test_images_without_a_table(load, hospital, tmp_path):
    server, _ = hospital
    access = {"url": server.url, "user": "reader", "password_env": "PACS_PASSWORD", "cache_dir": str(tmp_path)}
    cohort = load_cohort("dicomweb", unlabelled=True, modalities=["DX", "MG"], site="ward", **access)
    assert (len(cohort), cohort.findings) == (COUNT, ())
    labelled = load(modalities=["DX"])
    kept = ["image_id", "image", "patient_id", "site", "view"]
    assert sorted(cohort.records[kept].to_numpy().tolist()) == sorted(labelled.records[kept].to_numpy().tolist())
    file = cohort.open_image.file(cohort.records["image"].iloc[0])
    assert file.read_bytes()[128:132] == b"DICM"
    assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="none of the images that the search names"):
        load_cohort("dicomweb", unlabelled=True, modalities=["US"], **access)
    with pytest.raises(UserError, match="takes no label table"):
        load_cohort("dicomweb", unlabelled=True, labels="t.csv", **access)
    with pytest.raises(UserError, match="set cache_dir"):
        load().open_image.file(cohort.records["image"].iloc[0])
