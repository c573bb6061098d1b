"""A PACS whose answers are mutated by a seed: each cohort ends as images, rejected rows, or one line for the user.

The long tier is ``pytest -m slow tests/data/cohorts/test_fuzzed_dicomweb.py``.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohorts import dicomweb
from candor_monai.data.decoding import DecodeOptions, decode
from candor_monai.data.dicomweb_client import Patience
from candor_monai.utils import DecodeError, UserError
from tests.data.test_header_index import dicom

pytest.importorskip("requests", reason="requests is not installed")

SECRETS = ("Doe^Jane", "19700101", "t0ken")
TAGS = {"StudyInstanceUID": "0020000D", "SeriesInstanceUID": "0020000E", "SOPInstanceUID": "00080018"}
ODD = (None, 5, -1.5, True, "", "x", "../../etc/passwd", "1.2/3", "..", "9" * 300, "\ud800", "\0", "²", [], {}, [[]])


class Archive:
    """Two studies of two images each, as a DICOMweb service of one result a page that mutates what it says."""

    def __init__(self, folder) -> None:
        self.files, self.pixels = {}, {}
        for i in range(4):
            uids = {"StudyInstanceUID": f"1.2.{i // 2}", "SeriesInstanceUID": f"1.3.{i}", "SOPInstanceUID": f"1.4.{i}"}
            pixels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 100 + i
            pixels[i] = 0
            more = {"PatientName": "Doe^Jane", "PatientBirthDate": "19700101", "PatientID": f"p{i}"}
            path = dicom(folder / f"{i}.dcm", pixels=pixels, **uids, **more, ViewPosition="PA")
            self.files[tuple(uids.values())] = path.read_bytes()
            self.pixels[uids["SOPInstanceUID"]] = decode(path.read_bytes(), DecodeOptions()).pixels
        self.seed, self.kinds, self.asked, self.lock = 0, (), Counter(), threading.Lock()

    def begin(self, seed: int, kinds: tuple[str, ...]) -> None:
        self.seed, self.kinds, self.asked = seed, kinds, Counter()

    def answer(self, target: str) -> tuple[int, bytes, dict[str, str], float]:
        """Status, body, headers and seconds to wait: the true ones, or those after this case's mutation."""
        split = urlsplit(target)
        parts = split.path.removeprefix("/web/").split("/")
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        with self.lock:
            self.asked[target] += 1
            times = self.asked[target]
        true = self._true(parts, query)
        kind = {1: "search", 3: "metadata"}.get(len(parts), "instance")
        chance = random.Random(f"{self.seed} {target} {times}")
        if kind not in self.kinds or true[0] != 200 or chance.random() < 0.3:
            return *true, 0.0
        return self._mutated(true, kind, chance)

    def _true(self, parts, query) -> tuple[int, bytes, dict[str, str]]:
        studies = sorted({uids[0] for uids in self.files})
        dicom_json = {"Content-Type": "application/dicom+json"}
        if parts == ["studies"]:
            page = studies[int(query["offset"]) :][:1] if "offset" in query else studies[:1]
            return 200, json.dumps([self._json({"StudyInstanceUID": uid}) for uid in page]).encode(), dicom_json
        if len(parts) == 3 and parts[2] == "metadata":
            rows = [self._json(dict(zip(TAGS, uids, strict=True))) for uids in self.files if uids[0] == parts[1]]
            return (200, json.dumps(rows).encode(), dicom_json) if rows else (404, b"", {})
        file = self.files.get(tuple(parts[1::2]))
        return (404, b"", {}) if file is None else (200, self._whole(file), self._kind())

    def _json(self, uids: dict[str, str]) -> dict:
        row = {TAGS[name]: {"vr": "UI", "Value": [uid]} for name, uid in uids.items()}
        row["00100010"] = {"vr": "PN", "Value": [{"Alphabetic": "Doe^Jane"}]}
        row["00100030"] = {"vr": "DA", "Value": ["19700101"]}
        row["00080060"] = {"vr": "CS", "Value": ["DX"]}
        row["00185101"] = {"vr": "CS", "Value": ["PA"]}
        return row

    @staticmethod
    def _whole(file: bytes) -> bytes:
        return b"--x\r\nContent-Type: application/dicom\r\n\r\n" + file + b"\r\n--x--\r\n"

    @staticmethod
    def _kind() -> dict[str, str]:
        return {"Content-Type": 'multipart/related; type="application/dicom"; boundary="x"'}

    def _mutated(self, true, kind, chance) -> tuple[int, bytes, dict[str, str], float]:
        status, body, headers = true
        ways = ["cut", "flip", "status", "header", "short", "long", "empty", "gzip", "html"]
        ways += ["json"] * 12 if kind != "instance" else ["other", "other", "plain", "parts", "boundary", "swapped"]
        way = chance.choice(ways) if chance.random() > 0.02 else "slow"
        if way == "cut":
            body = body[: chance.randrange(len(body))]
        elif way == "flip":
            # of a file the frame and what names it; altered pixels could not be told from true ones
            place = chance.randrange(len(body) if kind != "instance" else 45)
            body = body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]
        elif way == "status":
            status = chance.choice([204, 206, 301, 302, 400, 401, 403, 404, 406, 410, 429, 500, 503, 599])
            headers = {"Retry-After": chance.choice(["0", "1", "²", "-1", "Wed", "9" * 400]), "Location": "http://a/"}
            body = chance.choice([b"", body, b"Doe^Jane"])
        elif way == "header":
            odd = [
                "",
                "text/html",
                "multipart/related",
                "multipart/related; boundary=",
                "multipart/related; boundary=y",
            ]
            headers = {"Content-Type": chance.choice([*odd, "multipart/related; boundary*=x''%ff", "\xff;;;="])}
        elif way in ("short", "long"):
            headers = headers | {"Content-Length": str(len(body) + (-3 if way == "short" else 3))}
        elif way == "empty":
            body = chance.choice([b"", b" ", b"[]", b"{}", b"null", b"[" * 5000, b"\xff\xfe", b'[NaN, "x"]'])
        elif way == "gzip":
            headers = headers | {"Content-Encoding": chance.choice(["gzip", "gzip, gzip", "br", "x"])}
            body = chance.choice([body, gzip.compress(body), gzip.compress(body)[:-9]])
        elif way == "html":
            headers, body = {"Content-Type": "text/html"}, b"<html>Doe^Jane, log in</html>"
        elif way == "json":
            body = self._odd_json(json.loads(body), chance)
        elif way == "other":
            body = self._whole(chance.choice(list(self.files.values())))
        elif way == "plain":
            headers, body = {"Content-Type": "application/dicom"}, body[44:-9]
        elif way == "parts":
            body = body[:-4] + b"\r\n\r\n" + body[44:-9] + b"\r\n--x--\r\n"
        elif way == "boundary":
            body = body.replace(b"\r\n--x--", b"\r\n--xy\r\n--x--")
        elif way == "swapped":
            body = body.replace(b"\r\n", b"\n")
        return status, body, headers, 0.6 if way == "slow" else 0.0

    @staticmethod
    def _odd_json(rows, chance) -> bytes:
        """Rows with one value, key or row replaced, gone or twice."""
        places = [(rows, i) for i in range(len(rows))]
        for row in rows:
            places += [(row, tag) for tag in row]
            places += [(element, key) for element in row.values() for key in element]
            places += [(element["Value"], 0) for element in row.values()]
        holder, key = chance.choice(places)
        way = chance.randrange(3)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = chance.choice(ODD)
        return json.dumps(rows).encode()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The archive, served on a free port."""
    served = Archive(tmp_path_factory.mktemp("archive"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            status, body, headers, seconds = served.answer(self.path)
            time.sleep(seconds)
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = headers.get("Content-Length") is not None

        def handle(self):
            try:
                super().handle()
            except (ConnectionError, ValueError):  # the client had enough
                self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.handle_error = lambda *_: None
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    served.url = f"http://127.0.0.1:{http.server_port}/web"
    yield served
    http.shutdown()
    http.server_close()


def outcome(archive: Archive, seed: int, folder, labelled: bool) -> Counter[str]:
    """What became of the images of one cohort."""
    places = [("search",), ("metadata",), ("instance",), ("metadata", "instance"), ("search", "metadata", "instance")]
    archive.begin(seed, places[seed % len(places)])
    how = {"labels": str(folder / "labels.csv"), "findings": ["Edema"]} if labelled else {"unlabelled": True}
    cache = {"cache_dir": str(folder / str(seed))} if seed % 3 == 0 else {}
    ended: Counter[str] = Counter()
    try:
        cohort = load_cohort("dicomweb", url=archive.url, token_env="PACS_TOKEN", concurrency=2, **how, **cache)
        told = [cohort.rejected.to_csv(), json.dumps(cohort.describe(), ensure_ascii=False), cohort.fingerprint()]
        cohort.records.to_csv().encode()
        ended.update(f"rejected {reason}" for reason in cohort.rejected["reason"])
        for i in range(len(cohort)):
            try:
                shown = decode(cohort.source(i), DecodeOptions()).pixels
            except DecodeError as error:
                told.append(str(error))
                ended[f"rejected {error.reason}"] += 1
            else:
                ended["loaded"] += 1
                assert np.array_equal(shown, archive.pixels[cohort.image_id(i)]), "the pixels of another image"
        if labelled:
            listed = {*cohort.records["image_id"], *cohort.rejected["image_id"]}
            assert {f"1.4.{i}" for i in range(4)} <= listed, "a row of the table is lost"
        elif archive.kinds == ("instance",):
            assert ended.total() == 4, "an image is lost"
    except DecodeError:
        raise AssertionError("an image's own error left the cohort") from None
    except UserError as error:
        told = [str(error)]
        assert "\n" not in told[0]
        ended["stopped"] += 1
    assert not any(secret in text for text in told for secret in SECRETS)
    return ended


def outcomes(archive: Archive, seeds, folder, monkeypatch) -> Counter[str]:
    monkeypatch.setenv("PACS_TOKEN", "t0ken")
    monkeypatch.setattr(dicomweb, "Patience", lambda *_: Patience(timeout=0.5, retry_seconds=0.02, first_pause=0.01))
    (folder / "labels.csv").write_text("SOPInstanceUID,Edema\n1.4.0,1\n1.4.1,0\n1.4.2,1\n1.4.3,0\n")
    counted: Counter[str] = Counter()
    for seed, labelled in zip(seeds, itertools.cycle([False, True])):
        try:
            counted += outcome(archive, seed, folder, labelled)
        except Exception as error:
            raise AssertionError(f"seed {seed} with {archive.kinds}: {type(error).__name__}: {error}") from error
    return counted


def test_what_is_not_mutated_is_loaded(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(Archive, "_mutated", lambda self, true, kind, chance: (*true, 0.0))
    assert outcomes(archive, range(2), tmp_path, monkeypatch) == {"loaded": 8}


def test_every_mutated_answer_ends_well(archive, tmp_path, monkeypatch):
    counted = outcomes(archive, range(150), tmp_path, monkeypatch)
    assert counted["loaded"] > 100
    assert counted["stopped"] > 20
    assert {"rejected gone", "rejected malformed", "rejected no_image", "rejected server_error"} <= set(counted)


@pytest.mark.slow
def test_many_more_end_well(archive, tmp_path, monkeypatch):
    outcomes(archive, range(150, 5000), tmp_path, monkeypatch)
