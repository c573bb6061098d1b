"""Who is let in: MONAI Label's own authentication in front of the app.

MONAI Label 0.8.5 verifies a token without naming the algorithms that it accepts, which every PyJWT since 2.0 refuses:
with a PyJWT that it admits (>= 2.8.0) no token is accepted. With PyJWT 1.7.1 it works; docs/monai_label.md says what
that means. The environment keeps that release in a folder of its own, for these tests alone.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from .server_support import Server, copied_app, label_python, needs_label_server, write_png

pytestmark = needs_label_server

TOKENS = """
import base64, json, sys, time, jwt
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import rsa
keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
private = [k.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()) for k in keys]
public = keys[0].public_key().public_bytes(s.Encoding.DER, s.PublicFormat.SubjectPublicKeyInfo)
def token(roles, key=0, seconds=3600):
    said = {"preferred_username": "dr", "exp": int(time.time()) + seconds, "realm_access": {"roles": roles}}
    made = jwt.encode(said, private[key], algorithm="RS256")
    return made if isinstance(made, str) else made.decode()
print(json.dumps({
    "public": base64.b64encode(public).decode(),
    "user": token(["monailabel-user"]),
    "annotator": token(["monailabel-user", "monailabel-annotator"]),
    "nobody": token([]),
    "old": token(["monailabel-user"], seconds=-10),
    "forged": token(["monailabel-user"], key=1),
}))
"""


def old_pyjwt() -> Path | None:
    """Folder with PyJWT 1.7.1 in the environment, if it was put there."""
    python = label_python()
    folder = None if python is None else python.parent.parent / "pyjwt-1.7.1"
    return folder if folder is not None and folder.is_dir() else None


@pytest.fixture(scope="module")
def tokens():
    done = subprocess.run(
        [str(label_python()), "-W", "ignore", "-c", TOKENS], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def realm(tokens) -> Iterator[str]:
    """What an identity provider says of its realm: its public key."""

    class Realm(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"public_key": tokens["public"]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *what: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Realm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/realms/ward"
    server.shutdown()


def started(folder: Path, realm: str, **environment: str) -> Server:
    for i in range(4):
        write_png(folder / "chest" / f"{i}.png", np.full((32, 32), 50 * i, np.uint8))
    settings = {"MONAI_LABEL_AUTH_ENABLE": "true", "MONAI_LABEL_AUTH_REALM_URI": realm, **environment}
    conf = {"encoder": "blind", "findings": "Edema"}
    return Server(folder, copied_app(folder / "app"), str(folder / "chest"), conf, **settings).start()


def status(server: Server, token: str | None, path: str = "/info/", method: str = "GET", **how: object) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return server.request(method, path, headers=headers, **how).status_code


def test_no_token_is_refused_and_so_is_any_with_todays_pyjwt(realm, tokens, tmp_path):
    server = started(tmp_path, realm)
    try:
        for path, method in (
            ("/info/", "GET"),
            ("/activelearning/random", "POST"),
            ("/infer/candor?image=0.png", "POST"),
        ):
            assert status(server, None, path, method) == 401
            assert status(server, "no.token", path, method) == 401
        # as long as MONAI Label names no algorithms; when this is 200, docs/monai_label.md is to be changed
        assert status(server, tokens["user"]) == 401
        assert status(server, None, "/auth/") == 200
        assert not server.client().auth_valid_token()
    finally:
        server.stop(kill=True)


@pytest.mark.skipif(old_pyjwt() is None, reason="PyJWT 1.7.1 is not in pyjwt-1.7.1 of the environment")
def test_tokens_and_roles_with_an_old_pyjwt(realm, tokens, tmp_path):
    from tests.support import ROOT

    server = started(tmp_path, realm, PYTHONPATH=f"{old_pyjwt()}:{ROOT}")
    label = {"label": ("label.json", b'{"findings": {"Edema": 1}}')}
    where = "/datastore/label?image=0.png"
    try:
        assert status(server, None) == 401
        assert status(server, tokens["forged"]) == 401
        assert status(server, tokens["old"]) == 401
        assert status(server, tokens["nobody"]) == 403
        assert status(server, tokens["user"]) == 200
        assert status(server, tokens["user"], where, "PUT", files=label) == 403
        assert status(server, tokens["annotator"], where, "PUT", files=label) == 200
        assert status(server, tokens["annotator"], "/datastore/label?id=0.png&tag=final", "DELETE") == 403
        client = server.client()
        client.update_auth({"token_type": "Bearer", "access_token": tokens["user"]})
        assert client.auth_valid_token()
        assert client.next_sample("random", {})["id"].endswith(".png")
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
        # an unsigned token is refused too, if clumsily
        assert status(server, f"{none}.{tokens['user'].split('.')[1]}.") in (401, 500)
    finally:
        server.stop(kill=True)
