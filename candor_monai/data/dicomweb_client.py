"""A reader of DICOMweb servers: QIDO-RS search and WADO-RS retrieval. It never writes to the server.

Transient failures (no connection, a timeout, 429, 5xx) are tried again with growing pauses; when a server stays away
the run stops, as what is done is kept and a second run goes on from there. An object that is gone, or that a server
cannot give although it answers a search, costs its own image only. Secrets come from the environment or from files, are
sent to the named server only, and appear in no message.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..utils import DecodeError, UserError
from .dicom_header import has_preamble
from .dicom_identity import stated_instance

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
BEYOND_THE_END = frozenset({400, 416})  # what some services say to an offset behind the last result
LARGEST_OBJECT = 512 << 20
LARGEST_ANSWER = 256 << 20
MOST_RESULTS = 1_000_000  # of one search
MOST_LOST = 8  # objects in a row that the server cannot give: after these it is the server
PAGE = 200  # results asked for at once: some services refuse more
CHUNK = 1 << 16
STUDY = "0020000D"


class _RefusedError(UserError):
    """The server refuses a request for good."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[_RefusedError], tuple[str, int]]:
        return type(self), (str(self), self.status)


@dataclass(frozen=True)
class Access:
    """How to be let in. Every field names where a secret is, none holds one.

    Args:
        token_env, token_file: environment variable or file with a bearer token.
        user: user name of basic authentication.
        password_env, password_file: environment variable or file with its password.
        certificate, key: files of a client certificate and its key.
        ca_bundle: file of the certificates that sign the server's; None takes the usual ones.
        allow_http: send secrets over plain http to another machine too.
    """

    token_env: str | None = None
    token_file: str | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    ca_bundle: str | None = None
    allow_http: bool = False

    def token(self) -> str | None:
        """The bearer token, or None when none is named."""
        return _secret(self.token_env, self.token_file, "token")

    def password(self) -> str | None:
        """The password, or None when none is named."""
        return _secret(self.password_env, self.password_file, "password")


@dataclass(frozen=True)
class Patience:
    """How long to wait and how often to try.

    Args:
        timeout: seconds without an answer, or between two parts of one, that count as a failure.
        retry_seconds: how long a request is tried again before the run stops.
        first_pause: seconds before the second try; doubled each time, at most 30.
        slowest: seconds that one answer may take in all.
    """

    timeout: float = 30.0
    retry_seconds: float = 120.0
    first_pause: float = 0.5
    slowest: float = 600.0


@dataclass
class DicomWebClient:
    """Search and retrieval on one server; safe to use from several threads.

    Args:
        url: the service's root, e.g. ``https://pacs.example/dicom-web``.
        access: how to be let in.
        patience: how long to wait.

    Raises:
        UserError: the address is none, holds a password, or a secret would be sent in the clear.
    """

    url: str
    access: Access = field(default_factory=Access)
    patience: Patience = field(default_factory=Patience)
    _sessions: threading.local = field(default_factory=threading.local, repr=False)
    _lost: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            raise UserError("the PACS address is none: its host or port cannot be read.") from None
        if "@" in parts.netloc:
            raise UserError("the PACS address must not hold a user or password: name them with user and password_env.")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{parts.hostname or self.url!r}: the PACS address must begin with https:// (or http://).")
        if parts.query or parts.fragment:
            raise UserError(f"{parts.hostname}: the PACS address must be the root of the service, without ? and #.")
        secret = self.access.token() or self.access.user
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if secret and parts.scheme == "http" and not local and not self.access.allow_http:
            raise UserError(
                f"{parts.hostname}: credentials would be sent in the clear over http. Use https, or allow_http: true."
            )
        for file in (self.access.certificate, self.access.key, self.access.ca_bundle):
            if file is not None and not Path(file).is_file():
                raise UserError(f"{file}: there is no such certificate or key.")
        self.url = self.url.rstrip("/")

    def studies(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Studies that match the filters (QIDO-RS), page by page, as DICOM JSON; each once.

        Raises:
            UserError: the answer is none to a search, or names more than a million studies.
        """
        seen: set[str] = set()
        offset, short = 0, False
        while True:
            query = {**filters, "limit": str(PAGE), "offset": str(offset)}
            try:
                content, _ = self._get("/studies", {"Accept": "application/dicom+json"}, query)
            except _RefusedError as error:
                if short and error.status in BEYOND_THE_END:
                    return
                raise
            except DecodeError as error:
                if short and error.reason == "gone":
                    return
                why = "has no /studies" if error.reason == "gone" else "answers with more than can be read"
                raise UserError(f"{self.url} {why}; is the address a DICOMweb root?") from None
            rows = _rows(content)
            if rows is None:
                raise UserError(
                    f"{self.url}: the answer to a search is no list of DICOM JSON; is this a DICOMweb root?"
                )
            before = len(seen)
            for row in rows:
                uid = attribute(row, STUDY)
                if uid not in seen:
                    seen.add(uid)
                    yield row
            # A page may be shorter than asked for: servers have limits of their own. One with nothing new is the last:
            # a server that ignores offset sends the same page for ever.
            if len(seen) == before:
                return
            if len(seen) > MOST_RESULTS:
                raise UserError(f"{self.url}: a search finds more than {MOST_RESULTS:,} studies; narrow it.")
            offset, short = offset + len(rows), len(rows) < PAGE

    def metadata(self, study: str) -> list[dict[str, Any]]:
        """Attributes of all instances of a study (WADO-RS metadata), as DICOM JSON.

        Raises:
            DecodeError: the study is gone (``gone``), the answer is too large (``too_large``) or none
                (``malformed``), or the server cannot give it (``server_error``).
        """
        path = f"/studies/{_uid(study)}/metadata"
        content, _ = self._get(path, {"Accept": "application/dicom+json"}, {}, one=True)
        rows = _rows(content)
        if rows is None:
            raise DecodeError("malformed", "the server's answer is no list of DICOM JSON")
        return rows

    def instance(self, study: str, series: str, instance: str) -> bytes:
        """One DICOM file.

        Raises:
            DecodeError: it is gone (``gone``), too large (``too_large``), not DICOM or another object (``malformed``),
                or the server cannot give it (``server_error``).
        """
        path = f"/studies/{_uid(study)}/series/{_uid(series)}/instances/{_uid(instance)}"
        accept = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        content, kind = self._get(path, {"Accept": accept}, {}, LARGEST_OBJECT, one=True)
        part = _first_part(content, kind)
        if not has_preamble(part):
            raise DecodeError("malformed", "the server's answer is not a DICOM file")
        if stated_instance(part) not in (None, instance):
            raise DecodeError("malformed", "the server sent another object than the one asked for")
        return part

    def _get(
        self,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        largest: int = LARGEST_ANSWER,
        one: bool = False,
    ) -> tuple[bytes, str]:
        """Content and type of an answer, after as many tries as patience allows.

        Args:
            path, headers, query, largest: of the request.
            one: it asks for one object, which may be at fault while the server is well.
        """
        import requests

        broken = (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError)
        start = time.monotonic()
        pause = self.patience.first_pause
        while True:
            wait = pause
            try:
                status, content, kind, told = self._once(path, headers, query, largest)
            except (requests.ConnectionError, requests.Timeout, *broken) as error:
                if isinstance(error, requests.exceptions.SSLError):
                    raise UserError(
                        f"{self._host()}: its certificate is not trusted. Name the file of the certificates that sign "
                        f"it with ca_bundle."
                    ) from None
                problem = "answers too slowly" if isinstance(error, requests.Timeout) else "does not answer"
                if isinstance(error, broken):
                    problem = "breaks off its answers"
            except (requests.RequestException, OSError) as error:
                raise UserError(
                    f"{self._host()}: the request cannot be made ({type(error).__name__}). Check url, ca_bundle, "
                    f"certificate and key."
                ) from None
            else:
                if status < 300:
                    self._lost = 0 if one else self._lost
                    return content, kind
                if status in (401, 403):
                    raise UserError(
                        f"{self._host()}: access refused ({status}). Check token, user, password, certificate."
                    )
                if status in (404, 410):
                    raise DecodeError("gone", "the server no longer has it")
                if status not in TRANSIENT:
                    raise _RefusedError(f"{self._host()}: the request was refused with status {status}.", status)
                problem = f"answers with status {status}"
                wait = max(wait, told)
            if time.monotonic() - start + wait > self.patience.retry_seconds:
                self._lost += one
                if one and self._lost <= MOST_LOST and self._answers():
                    raise DecodeError("server_error", "the server does not give it, although it answers a search")
                raise UserError(
                    f"{self._host()} {problem}; tried for {self.patience.retry_seconds:g} s. Run again when it is "
                    f"back: what is done is kept."
                )
            time.sleep(wait)
            pause = min(pause * 2, 30.0)

    def _answers(self) -> bool:
        """Whether the server answers a small search at once."""
        import requests

        try:
            status = self._once("/studies", {"Accept": "application/dicom+json"}, {"limit": "1"}, LARGEST_ANSWER)[0]
        except (requests.RequestException, OSError, DecodeError):
            return False
        return status < 300

    def _once(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, str], largest: int
    ) -> tuple[int, bytes, str, float]:
        """Status, content, type and the pause that the server asks for."""
        import requests

        deadline = time.monotonic() + self.patience.slowest
        with self._session().get(
            self.url + path,
            params=dict(query),
            headers=dict(headers),
            timeout=self.patience.timeout,
            stream=True,
            allow_redirects=False,
        ) as answer:
            told = answer.headers.get("Retry-After", "")
            asked = float(told) if told.isascii() and told.isdigit() else 0.0
            if answer.status_code >= 300:
                return answer.status_code, b"", "", asked
            content = bytearray()
            for chunk in _arriving(answer):
                content += chunk
                if len(content) > largest:
                    raise DecodeError("too_large", f"the server's answer is larger than {largest:,} bytes")
                if time.monotonic() > deadline:
                    raise requests.Timeout
            return answer.status_code, bytes(content), answer.headers.get("Content-Type", ""), asked

    def _session(self) -> Any:
        """One session a thread, with credentials for this server only."""
        session = getattr(self._sessions, "session", None)
        if session is None:
            requests = _requests()
            session = requests.Session()
            session.trust_env = False  # no password from ~/.netrc, no proxy that the user did not name here
            session.verify = self.access.ca_bundle or True
            if self.access.certificate:
                key = self.access.key
                session.cert = (self.access.certificate, key) if key else self.access.certificate
            token, password = self.access.token(), self.access.password()
            if token:
                session.headers["Authorization"] = f"Bearer {token}"
            elif self.access.user:
                session.auth = (self.access.user.encode(), (password or "").encode())
            self._sessions.session = session
        return session

    def _host(self) -> str:
        return urlsplit(self.url).netloc

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "access": self.access, "patience": self.patience, "_sessions": None, "_lost": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _sessions=threading.local())


def attribute(row: Mapping[str, Any], tag: str) -> str:
    """One attribute of DICOM JSON as text; several values are joined by a backslash, names of persons are left out.

    >>> attribute({"00080060": {"vr": "CS", "Value": ["DX"]}}, "00080060")
    'DX'
    """
    element = row.get(tag)
    values = element.get("Value") if isinstance(element, Mapping) else None
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ""
    text = "\\".join(str(v) for v in values if isinstance(v, str | int | float))[:256].strip()
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair is JSON, but no text


def _arriving(answer: Any) -> Iterator[bytes]:
    """Parts of an answer as they come in, so that one that trickles is seen to be slow."""
    import requests
    import urllib3

    if not hasattr(answer.raw, "read1"):  # urllib3 1
        yield from answer.iter_content(1024)
        return
    try:
        while chunk := answer.raw.read1(CHUNK, decode_content=True):
            yield chunk
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.Timeout from error
    except urllib3.exceptions.HTTPError as error:
        raise requests.exceptions.ChunkedEncodingError from error


def _requests() -> Any:
    try:
        import requests
    except ImportError as error:
        raise UserError("reading from a PACS needs the package requests (pip install requests).") from error
    return requests


def _secret(variable: str | None, file: str | None, what: str) -> str | None:
    if variable is not None:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise UserError(f"the environment variable {variable}, which should hold the {what}, is not set.")
        return _one_line(value, f"the environment variable {variable}", what)
    if file is not None:
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"{file}: the file that should hold the {what} cannot be read.") from error
        return _one_line(value, str(file), what)
    return None


def _one_line(value: str, where: str, what: str) -> str:
    """A secret as it may stand in a request; the error must not quote it."""
    if not value.isprintable() or (what == "token" and not value.isascii()):
        raise UserError(f"{where}: the {what} must be one line{' of ASCII text' if what == 'token' else ''}.")
    return value


def _uid(text: str) -> str:
    """A UID for use in an address; digits and points only, so that no answer can lead a request elsewhere."""
    if not is_uid(text):
        raise DecodeError("malformed", "the server names an object by what is not a UID")
    return text


def is_uid(text: str) -> bool:
    """Whether a text can be the UID of an object.

    >>> is_uid("1.2.840.1"), is_uid(".."), is_uid("")
    (True, False, False)
    """
    return re.fullmatch(r"[0-9][0-9.]{0,63}", text) is not None


def _rows(content: bytes) -> list[dict[str, Any]] | None:
    """The objects of a DICOM JSON answer, none for an empty one; None where it is no such answer."""
    if not content.strip():
        return []
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else None


def _first_part(content: bytes, kind: str) -> bytes:
    """The first part of a multipart answer, or the whole of a plain one."""
    if not kind.lower().startswith("multipart/"):
        return content
    header = Message()
    header["Content-Type"] = kind
    boundary = (header.get_boundary() or "").encode("latin-1", "replace")
    delimiter = b"--" + boundary
    begin = 0 if content.startswith(delimiter) else content.find(b"\r\n" + delimiter)
    start = content.find(b"\r\n\r\n", begin + len(delimiter))
    end = _delimiter(content, b"\r\n" + delimiter, start + 4)
    if not boundary or begin < 0 or start < 0 or end < 0:
        raise DecodeError("malformed", "the server's answer is not a whole multipart message")
    return content[start + 4 : end]


def _delimiter(content: bytes, delimiter: bytes, start: int) -> int:
    """Where a part ends; what only begins like its delimiter belongs to the part. -1: it does not end."""
    end = content.find(delimiter, start)
    while end >= 0 and not _closes(content, end + len(delimiter)):
        end = content.find(delimiter, end + 1)
    return end


def _closes(content: bytes, place: int) -> bool:
    return content[place : place + 2] == b"--" or content[place : place + 1] in (b"\r", b" ", b"\t")
