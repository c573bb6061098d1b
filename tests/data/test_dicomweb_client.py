"""The DICOMweb client against a small server that misbehaves on purpose."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from candor_monai.data import dicomweb_client as client_module
from candor_monai.data.dicomweb_client import Access, DicomWebClient, Patience, attribute
from candor_monai.utils import DecodeError, UserError
from tests.data.test_header_index import dicom

pytest.importorskip("requests", reason="requests is not installed")

FILE = bytes(128) + b"DICM" + b"rest\r\n--x"
QUICK = Patience(timeout=0.5, retry_seconds=3.0, first_pause=0.05, slowest=2.0)


class Server:
    """Answers by a script: path -> list of answers, the last one repeated."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.script: dict[str, list] = {}
        self.asked: list[tuple[str, dict]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.split("?")[0]
                outer.asked.append((self.path, dict(self.headers)))
                answers = outer.script.get(path, [(404, b"", {})])
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if callable(answer):
                    return answer(self)
                status, body, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}/dicom-web"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def on(self, path, *answers):
        self.script["/dicom-web" + path] = list(answers)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def study(uid):
    return {"0020000D": {"vr": "UI", "Value": [uid]}}


INSTANCE = "/studies/1.2/series/1.3/instances/1.4"


def multipart(content=FILE):
    body = b"--abc\r\nContent-Type: application/dicom\r\n\r\n" + content + b"\r\n--abc--\r\n"
    return 200, body, {"Content-Type": 'multipart/related; type="application/dicom"; boundary="abc"'}


def test_search_pages_by_hand(server):
    pages = [[study(f"1.{i}.{j}") for j in range(n)] for i, n in ((0, 200), (1, 2))]
    server.on("/studies", *((200, json.dumps(p).encode(), {}) for p in (*pages, [])))
    found = [attribute(row, "0020000D") for row in DicomWebClient(server.url).studies(AccessionNumber="A 1&2")]
    assert len(found) == 202
    assert [path.split("?")[1] for path, _ in server.asked] == [
        "AccessionNumber=A+1%262&limit=200&offset=0",
        "AccessionNumber=A+1%262&limit=200&offset=200",
        "AccessionNumber=A+1%262&limit=200&offset=202",
    ]


def test_a_server_with_a_limit_of_its_own_loses_nothing(server):
    pages = [[study(f"1.{i}.{j}") for j in range(10)] for i in range(7)]
    server.on("/studies", *((200, json.dumps(p).encode(), {"Warning": '299 - "more"'}) for p in (*pages, [])))
    assert len(list(DicomWebClient(server.url).studies())) == 70
    assert "offset=60" in server.asked[6][0]


@pytest.mark.parametrize("status", [400, 404, 416, 204])
def test_an_offset_behind_the_end_may_be_refused(server, status):
    server.on("/studies", (200, json.dumps([study("1.1"), study("1.2")]).encode(), {}), (status, b"", {}))
    assert len(list(DicomWebClient(server.url).studies())) == 2


@pytest.mark.parametrize("status", [302, 400, 404])
def test_a_page_that_is_refused_in_the_middle_is_no_end(server, status):
    whole = [study(f"1.{i}") for i in range(200)]
    server.on("/studies", (200, json.dumps(whole).encode(), {}), (status, b"", {}))
    with pytest.raises(UserError):
        list(DicomWebClient(server.url).studies())


def test_a_search_that_never_ends_is_ended(server, monkeypatch):
    monkeypatch.setattr("candor_monai.data.dicomweb_client.MOST_RESULTS", 20)
    server.on("/studies", *((200, json.dumps([study(f"1.{i}")]).encode(), {}) for i in range(50)))
    with pytest.raises(UserError, match="more than 20 studies; narrow it"):
        list(DicomWebClient(server.url).studies())


def test_a_server_that_ignores_paging_does_not_go_on_for_ever(server):
    server.on("/studies", (200, json.dumps([study(f"1.{j}") for j in range(200)]).encode(), {}))
    assert len(list(DicomWebClient(server.url).studies())) == 200
    assert len(server.asked) == 2


def test_no_content_is_no_match(server):
    server.on("/studies", (204, b"", {}))
    assert list(DicomWebClient(server.url).studies()) == []


@pytest.mark.parametrize("answer", [multipart(), (200, FILE, {"Content-Type": "application/dicom"})])
def test_an_instance_in_both_forms(server, answer):
    server.on(INSTANCE, answer)
    assert DicomWebClient(server.url).instance("1.2", "1.3", "1.4") == FILE


def test_transient_failures_are_tried_again(server):
    def cut(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"part")
        handler.close_connection = True

    server.on(INSTANCE, (503, b"", {"Retry-After": "0"}), (500, b"", {}), cut, multipart())
    assert DicomWebClient(server.url, patience=QUICK).instance("1.2", "1.3", "1.4") == FILE
    assert len(server.asked) == 4


def test_a_slow_server_is_waited_for_and_a_stuck_one_is_not(server):
    server.on(INSTANCE, lambda handler: time.sleep(1.0), multipart())
    assert DicomWebClient(server.url, patience=QUICK).instance("1.2", "1.3", "1.4") == FILE

    def trickle(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.1)

    server.on(INSTANCE, trickle)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"answers too slowly; tried for 3 s\. Run again"):
        DicomWebClient(server.url, patience=QUICK).instance("1.2", "1.3", "1.4")
    assert time.monotonic() - start < 60  # an end, not a hang


def test_a_server_that_stays_away(server):
    server.http.server_close()
    with pytest.raises(UserError, match="does not answer; tried for 1 s"):
        DicomWebClient(server.url, patience=Patience(0.2, 1.0, 0.1)).instance("1.2", "1.3", "1.4")


def test_what_is_gone_costs_one_image(server):
    with pytest.raises(DecodeError) as error:
        DicomWebClient(server.url).instance("1.2", "1.3", "1.4")
    assert error.value.reason == "gone"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_stops_at_once(server, status):
    server.on("/studies", (status, b"", {}))
    with pytest.raises(UserError, match=f"access refused .{status}"):
        list(DicomWebClient(server.url).studies())
    assert len(server.asked) == 1


def test_credentials_come_from_environment_or_file_and_go_nowhere_else(server, monkeypatch, tmp_path):
    server.on("/studies", (302, b"", {"Location": "http://127.0.0.1:1/steal"}))
    monkeypatch.setenv("PACS_TOKEN", "s3cret")
    client = DicomWebClient(server.url, Access(token_env="PACS_TOKEN"))
    with pytest.raises(UserError, match="refused with status 302") as error:
        list(client.studies())
    assert server.asked[0][1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(error.value) + repr(client)
    assert b"s3cret" not in pickle.dumps(client)
    server.on("/studies", (204, b"", {}))
    (tmp_path / "pw").write_text("p4ss\n")
    list(DicomWebClient(server.url, Access(user="u", password_file=str(tmp_path / "pw"))).studies())
    assert server.asked[-1][1]["Authorization"] == "Basic " + base64.b64encode(b"u:p4ss").decode()


@pytest.mark.parametrize(
    "url, access, message",
    [
        ("ftp://pacs/x", {}, "must begin with https://"),
        ("pacs/x", {}, "must begin with https://"),
        ("https://u:p4ss@pacs/x", {}, "must not hold a user or password"),
        ("http://pacs.example/x", {"user": "u", "password_env": "HOME"}, "in the clear"),
        (
            "https://pacs/x",
            {"token_env": "NOT_SET_ANYWHERE"},
            "NOT_SET_ANYWHERE, which should hold the token, is not set",
        ),
        ("https://pacs/x", {"token_file": "/nowhere/token"}, "cannot be read"),
        ("https://u:p4ss@/x", {}, "must not hold a user or password"),
        ("https://[pacs/x", {}, "host or port cannot be read"),
        ("https://pacs:p/x", {}, "host or port cannot be read"),
        ("https://pacs/x?tenant=1", {}, "the root of the service"),
    ],
)
def test_what_is_refused_before_anything_is_sent(url, access, message):
    with pytest.raises(UserError, match=message) as error:
        DicomWebClient(url, Access(**access))
    assert "p4ss" not in str(error.value)


def test_a_secret_is_one_line_and_is_not_quoted(server, monkeypatch, tmp_path):
    server.on("/studies", (204, b"", {}))
    monkeypatch.setenv("PACS_TOKEN", "s3cret\n")  # as a file read by a shell leaves it
    assert list(DicomWebClient(server.url, Access(token_env="PACS_TOKEN")).studies()) == []
    assert server.asked[-1][1]["Authorization"] == "Bearer s3cret"
    for value in ("s3cret\nX-Other: 1", "s3cret\ttwo", "s3cr€t"):
        monkeypatch.setenv("PACS_TOKEN", value)
        with pytest.raises(UserError, match="PACS_TOKEN: the token must be one line of ASCII text") as error:
            DicomWebClient(server.url, Access(token_env="PACS_TOKEN"))
        assert "s3c" not in str(error.value)
    (tmp_path / "pw").write_text("p€ss word", encoding="utf-8")
    list(DicomWebClient(server.url, Access(user="ü", password_file=str(tmp_path / "pw"))).studies())
    assert server.asked[-1][1]["Authorization"] == "Basic " + base64.b64encode("ü:p€ss word".encode()).decode()


def test_files_that_are_no_certificates(server, tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    client = DicomWebClient(server.url.replace("http:", "https:"), Access(ca_bundle=str(tmp_path / "ca.pem")), QUICK)
    with pytest.raises(UserError, match=r"ca_bundle"):
        list(client.studies())


@pytest.mark.parametrize("pause", ["²", "-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_pause_that_is_no_number_of_seconds(server, pause):
    server.on("/studies", (503, b"", {"Retry-After": pause}), (204, b"", {}))
    assert list(DicomWebClient(server.url, patience=QUICK).studies()) == []


@pytest.mark.parametrize("kind", ["ChunkedEncodingError", "ContentDecodingError"])
def test_answers_that_break_off_are_tried_again(server, monkeypatch, kind):
    import requests

    server.on(INSTANCE, multipart())
    server.on("/studies", (200, b"[]", {}))
    read, broken = client_module._arriving, iter([True, True, False])

    def arriving(answer):
        if next(broken, True):
            raise getattr(requests.exceptions, kind)
        return read(answer)

    monkeypatch.setattr(client_module, "_arriving", arriving)
    assert DicomWebClient(server.url, patience=QUICK).instance("1.2", "1.3", "1.4") == FILE
    with pytest.raises(UserError, match=r"breaks off its answers; tried for 0\.2 s"):
        list(DicomWebClient(server.url, patience=Patience(0.5, 0.2, 0.05)).studies())


def test_an_object_that_the_server_cannot_give_costs_one_image(server):
    quick = Patience(0.5, 0.2, 0.05)
    server.on("/studies", (200, b"[]", {}))
    server.on(INSTANCE, (500, b"", {}))
    server.on("/studies/1.2/metadata", (500, b"", {}))
    client = DicomWebClient(server.url, patience=quick)
    for ask in (lambda: client.instance("1.2", "1.3", "1.4"), lambda: client.metadata("1.2")):
        with pytest.raises(DecodeError, match="although it answers a search") as error:
            ask()
        assert error.value.reason == "server_error"
    server.on("/studies", (500, b"", {}))
    with pytest.raises(UserError, match=r"answers with status 500; tried for 0\.2 s"):
        client.instance("1.2", "1.3", "1.4")


def test_a_server_that_gives_no_object_at_all_stops_the_run(server, monkeypatch):
    monkeypatch.setattr("candor_monai.data.dicomweb_client.MOST_LOST", 2)
    server.on("/studies", (200, b"[]", {}))
    server.on("/studies/1.2/series/1.3/instances/1.5", multipart())
    client = pickle.loads(pickle.dumps(DicomWebClient(server.url, patience=Patience(0.5, 0.02, 0.01))))
    for i, wanted in enumerate(("1.4", "1.4", "1.5", "1.4", "1.4", "1.4")):
        server.on(INSTANCE, (500, b"", {}))
        if wanted == "1.5":
            assert client.instance("1.2", "1.3", wanted) == FILE
            continue
        with pytest.raises(UserError, match="status 500" if i == 5 else "answers a search") as error:
            client.instance("1.2", "1.3", wanted)
        assert isinstance(error.value, DecodeError) == (i < 5)


def test_another_object_than_the_one_asked_for(server, tmp_path):
    server.on(INSTANCE, multipart(dicom(tmp_path / "a.dcm", SOPInstanceUID="1.5").read_bytes()))
    with pytest.raises(DecodeError, match="another object than the one asked for"):
        DicomWebClient(server.url).instance("1.2", "1.3", "1.4")
    file = dicom(tmp_path / "a.dcm", SOPInstanceUID="1.4").read_bytes()
    server.on(INSTANCE, multipart(file))
    assert DicomWebClient(server.url).instance("1.2", "1.3", "1.4") == file


@pytest.mark.parametrize(
    ("kind", "start", "content"),
    [
        ('multipart/related; boundary="a;b"', b"--a;b", FILE),
        ("Multipart/Related; type=x; BOUNDARY=abc", b"\r\npreamble\r\n--abc", FILE),
        ("multipart/related; boundary=abc", b"--abc", FILE + b"\r\n--abcd rest"),
    ],
)
def test_multipart_messages_of_many_forms(server, kind, start, content):
    boundary = start.rpartition(b"--")[2]
    body = start + b"\r\nContent-Type: application/dicom\r\n\r\n" + content + b"\r\n--" + boundary + b"--"
    server.on(INSTANCE, (200, body, {"Content-Type": kind}))
    assert DicomWebClient(server.url).instance("1.2", "1.3", "1.4") == content


@pytest.mark.parametrize("body", [b"{}", b"[1]", b'["x"]', b"<html>", b"[null]", b"[" * 5000])
def test_metadata_that_are_none(server, body):
    server.on("/studies/1.2/metadata", (200, body, {}))
    with pytest.raises(DecodeError, match="no list of DICOM JSON") as error:
        DicomWebClient(server.url).metadata("1.2")
    assert error.value.reason == "malformed"


def test_text_that_cannot_be_written_is_replaced():
    assert attribute({"00185101": {"vr": "CS", "Value": ["A\ud800"]}}, "00185101") == "A?"


@pytest.mark.parametrize("uid", ["", "..", "²", "../../x", "1.2?x=1", "1" * 65, "1.2/rendered"])
def test_an_answer_cannot_lead_a_request_elsewhere(server, uid):
    with pytest.raises(DecodeError, match="not a UID"):
        DicomWebClient(server.url).instance("1.2", "1.3", uid)
    assert server.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>login</html>", {"Content-Type": "text/html"}),
        (200, b"--abc\r\n\r\nno end", {"Content-Type": "multipart/related; boundary=abc"}),
        (200, b"--abc\r\n\r\nno end", {"Content-Type": "multipart/related"}),
    ],
)
def test_answers_that_are_no_dicom(server, answer):
    server.on(INSTANCE, answer)
    with pytest.raises(DecodeError) as error:
        DicomWebClient(server.url).instance("1.2", "1.3", "1.4")
    assert error.value.reason == "malformed"


def test_too_large(server, monkeypatch):
    monkeypatch.setattr("candor_monai.data.dicomweb_client.LARGEST_OBJECT", 50)
    server.on(INSTANCE, multipart())
    with pytest.raises(DecodeError) as error:
        DicomWebClient(server.url).instance("1.2", "1.3", "1.4")
    assert error.value.reason == "too_large"


def test_a_search_that_is_not_there(server):
    with pytest.raises(UserError, match="has no /studies; is the address a DICOMweb root") as error:
        list(DicomWebClient(server.url).studies())
    assert not isinstance(error.value, DecodeError)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[" * 100_000, b'["1.2"]', b"[null]"])
def test_a_search_that_is_no_list(server, body):
    server.on("/studies", (200, body, {}))
    with pytest.raises(UserError, match="DICOMweb root"):
        list(DicomWebClient(server.url).studies())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Self-signed certificates and keys of a server and a client."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the test's certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client"):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("client_needed", [False, True])
def test_certificates_are_always_checked(certificates, client_needed):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if client_needed:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "client.pem")
    running = Server(context)
    running.on("/studies", (204, b"", {}))
    trusted = {"ca_bundle": str(certificates / "server.pem")}
    known = {"certificate": str(certificates / "client.pem"), "key": str(certificates / "client.key")}
    try:
        with pytest.raises(UserError, match="its certificate is not trusted"):
            list(DicomWebClient(running.url, Access(), QUICK).studies())
        if client_needed:
            with pytest.raises(UserError):
                list(DicomWebClient(running.url, Access(**trusted), QUICK).studies())
            assert running.asked == []
        assert list(DicomWebClient(running.url, Access(**trusted, **known), QUICK).studies()) == []
        assert len(running.asked) == 1
    finally:
        running.http.shutdown()
        running.http.server_close()


def test_a_certificate_that_is_not_there(certificates):
    access = Access(certificate=str(certificates / "none.pem"), ca_bundle=str(certificates / "none.pem"))
    with pytest.raises(UserError, match=r"none\.pem"):
        DicomWebClient("https://127.0.0.1:1/dicom-web", access, QUICK)
