"""A reader of DICOMweb servers: QIDO-RS search and WADO-RS retrieval. It never writes to the server.

Transient failures (no connection, a timeout, 429, 5xx) are tried again with growing pauses; when a server stays away
the run stops, as what is done is kept and a second run goes on from there. An object that is gone costs its own image
only. Secrets come from the environment or from files, are sent to the named server only, and appear in no message.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..utils import DecodeError, UserError
from .dicom_header import has_preamble

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
LARGEST_OBJECT = 512 << 20
LARGEST_ANSWER = 256 << 20
CHUNK = 1 << 16


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

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{parts.hostname or self.url!r}: the PACS address must begin with https:// (or http://).")
        if parts.username or parts.password:
            raise UserError("the PACS address must not hold a user or password: name them with user and password_env.")
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
        """Studies that match the filters (QIDO-RS), page by page, as DICOM JSON."""
        yield from self._pages("/studies", filters)

    def metadata(self, study: str) -> list[dict[str, Any]]:
        """Attributes of all instances of a study (WADO-RS metadata), as DICOM JSON.

        Raises:
            DecodeError: the study is gone (``gone``).
        """
        content, _ = self._get(f"/studies/{_uid(study)}/metadata", {"Accept": "application/dicom+json"}, {})
        rows = _json(content)
        if not isinstance(rows, list):
            raise DecodeError("malformed", "the server's metadata are not a list")
        return rows

    def instance(self, study: str, series: str, instance: str) -> bytes:
        """One DICOM file.

        Raises:
            DecodeError: it is gone (``gone``), too large (``too_large``) or not DICOM (``malformed``).
        """
        path = f"/studies/{_uid(study)}/series/{_uid(series)}/instances/{_uid(instance)}"
        accept = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        content, kind = self._get(path, {"Accept": accept}, {}, LARGEST_OBJECT)
        part = _first_part(content, kind)
        if not has_preamble(part):
            raise DecodeError("malformed", "the server's answer is not a DICOM file")
        return part

    def _pages(self, path: str, filters: Mapping[str, str], page: int = 500) -> Iterator[dict[str, Any]]:
        offset, seen = 0, set()
        while True:
            query = {**filters, "limit": str(page), "offset": str(offset)}
            content, _ = self._get(path, {"Accept": "application/dicom+json"}, query)
            rows = _json(content) if content else []
            if not isinstance(rows, list):
                raise UserError(f"{self.url}: the answer to a search is not a list; is this a DICOMweb root?")
            fresh = [row for row in rows if json.dumps(row, sort_keys=True) not in seen]
            seen |= {json.dumps(row, sort_keys=True) for row in fresh}
            yield from fresh
            # a server that ignores offset sends the same page for ever
            if len(rows) < page or not fresh:
                return
            offset += len(rows)

    def _get(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, str], largest: int = LARGEST_ANSWER
    ) -> tuple[bytes, str]:
        """Content and type of an answer, after as many tries as patience allows."""
        import requests

        start = time.monotonic()
        pause = self.patience.first_pause
        while True:
            wait = pause
            try:
                status, content, kind, told = self._once(path, headers, query, largest)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                if isinstance(error, requests.exceptions.SSLError):
                    raise UserError(
                        f"{self._host()}: its certificate is not trusted. Name the file of the certificates that sign "
                        f"it with ca_bundle."
                    ) from None
                problem = "does not answer" if not isinstance(error, requests.Timeout) else "answers too slowly"
            else:
                if status < 300:
                    return content, kind
                if status in (401, 403):
                    raise UserError(
                        f"{self._host()}: access refused ({status}). Check token, user, password, certificate."
                    )
                if status in (404, 410):
                    raise DecodeError("gone", "the server no longer has it")
                if status not in TRANSIENT:
                    raise UserError(f"{self._host()}: the request was refused with status {status}.")
                problem = f"answers with status {status}"
                wait = max(wait, told)
            if time.monotonic() - start + wait > self.patience.retry_seconds:
                raise UserError(
                    f"{self._host()} {problem}; tried for {self.patience.retry_seconds:g} s. Run again when it is "
                    f"back: what is done is kept."
                )
            time.sleep(wait)
            pause = min(pause * 2, 30.0)

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
            asked = float(told) if told.isdigit() else 0.0
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
                session.auth = (self.access.user, password or "")
            self._sessions.session = session
        return session

    def _host(self) -> str:
        return urlsplit(self.url).netloc

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "access": self.access, "patience": self.patience, "_sessions": None}

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
    return "\\".join(str(v) for v in values if isinstance(v, str | int | float))[:256].strip()


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
        value = os.environ.get(variable)
        if not value:
            raise UserError(f"the environment variable {variable}, which should hold the {what}, is not set.")
        return value
    if file is not None:
        try:
            return Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: the file that should hold the {what} cannot be read.") from error
    return None


def _uid(text: str) -> str:
    """A UID for use in an address; digits and points only, so that no answer can lead a request elsewhere."""
    if not text or len(text) > 64 or not all(c.isdigit() or c == "." for c in text):
        raise DecodeError("malformed", "the server names an object by what is not a UID")
    return text


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError("the server's answer is not DICOM JSON; is the address a DICOMweb root?") from error


def _first_part(content: bytes, kind: str) -> bytes:
    """The first part of a multipart answer, or the whole of a plain one."""
    if not kind.lower().startswith("multipart/"):
        return content
    fields = [f.strip() for f in kind.split(";")]
    boundary = next((f.split("=", 1)[1].strip('"') for f in fields if f.lower().startswith("boundary=")), "")
    start = content.find(b"\r\n\r\n")
    end = content.find(b"\r\n--" + boundary.encode(), start + 4)
    if not boundary or start < 0 or end < 0:
        raise DecodeError("malformed", "the server's answer is not a whole multipart message")
    return content[start + 4 : end]
