"""A real MONAI Label server in its own environment, and MONAI Label's own client, loaded from there."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support import ROOT, module_from

VARIABLE = "CANDOR_LABEL_PYTHON"
ENCODER = "efficientnet_lite0"
FINDING = "Pneumonia"
DOTTED = "Opacity v1.2 (R.U.L.)"
START_SECONDS = 300


@functools.cache
def label_python() -> Path | None:
    """The python of the environment with monailabel: named by CANDOR_LABEL_PYTHON, else in .venv-label."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else ROOT / ".venv-label" / "bin" / "python"
    return path if path.exists() else None


needs_label_server = pytest.mark.skipif(
    label_python() is None,
    reason=f"the environment of MONAI Label is absent: make .venv-label (docs/monai_label.md) or set {VARIABLE}",
)


def in_environment(code: str) -> str:
    """What a piece of code prints when the environment's python runs it."""
    done = subprocess.run([str(label_python()), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.cache
def client_module() -> Any:
    """MONAI Label's client (``monailabel/client/client.py``): standard library and requests alone."""
    where = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('monailabel').origin))"
    path = Path(in_environment(where)) / "client" / "client.py"
    return module_from(path, "monailabel_client")


class Server:
    """``monailabel start_server`` on a free port of this machine.

    Args:
        folder: of the server's home and log.
        app: the app's folder.
        studies: folder or address.
        conf: ``--conf`` values.
        environment: further variables.
    """

    def __init__(self, folder: Path, app: Path, studies: str, conf: dict[str, str], **environment: str) -> None:
        self.folder, self.app, self.studies, self.conf = folder, app, studies, conf
        self.environment = environment
        self.log = folder / "server.log"
        self.process: subprocess.Popen | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start and wait until it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [str(label_python()), "-m", "monailabel.main", "start_server", "--app", str(self.app)]
        command += ["--studies", self.studies, "--host", "127.0.0.1", "--port", str(self.port)]
        for key, value in self.conf.items():
            command += ["--conf", key, value]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MONAI_LABEL_", "VIRTUAL_ENV"))}
        own = {"PYTHONPATH": str(ROOT), "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        own["CANDOR_MONAI_KEY_FILE"] = str(self.folder / "pseudonym.key")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, env={**kept, **own, **self.environment}, cwd=self.folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended ({self.process.returncode}):\n{self.tail()}")
            try:
                with urllib.request.urlopen(f"{self.url}/openapi.json", timeout=5):
                    return self
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        raise AssertionError(f"the server did not start:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self, kill: bool = False) -> None:
        """End it, at once with ``kill``."""
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(timeout=60)
            self.process = None

    def client(self, client_id: str | None = "reader") -> Any:
        """MONAI Label's own client."""
        return client_module().MONAILabelClient(self.url, tmpdir=str(self.folder), client_id=client_id)

    def request(self, method: str, path: str, **how: Any) -> Any:
        """A plain request."""
        import requests

        how.setdefault("timeout", 120)
        return requests.request(method, self.url + path, **how)

    def idle(self) -> None:
        """Wait until no task runs in a process of its own: MONAI Label refuses a second one (429)."""
        deadline = time.monotonic() + START_SECONDS
        while self.request("GET", "/scoring/?check_if_running=true").status_code == 200:
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.5)

    def score(self) -> dict[str, Any]:
        """Run the scoring method in the server's process."""
        answer = self.request("POST", "/scoring/candor?run_sync=true", json={}, timeout=1800)
        assert answer.status_code == 200, answer.text + self.tail()
        scored: dict[str, Any] = answer.json()
        return scored

    def infer(self, image_id: str, client_id: str = "reader", model: str = "candor") -> dict[str, Any]:
        """An answer about an image, by MONAI Label's client, which hands JSON over as bytes."""
        _, answer = self.client(client_id).infer(model, image_id, {"device": "cpu"})
        found: dict[str, Any] = json.loads(answer)
        return found

    def save(self, image_id: str, document: Any, client_id: str = "reader", name: str = "label.json") -> dict[str, Any]:
        """Save a label with MONAI Label's client."""
        path = self.folder / f"{client_id}.{name}"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        saved: dict[str, Any] = self.client(client_id).save_label(image_id, str(path))
        return saved


def copied_app(folder: Path) -> Path:
    """The app, copied as the documented command does."""
    from candor_monai.apps.label.app_copy import copy_label_app

    return copy_label_app(folder)


def write_png(path: Path, pixels: np.ndarray) -> None:
    """A grey image, whatever the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG")


def write_nifti(path: Path, pixels: np.ndarray) -> None:
    """The same image as a NIfTI file of one slice, columns first as NIfTI has them."""
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_name("plain.nii.gz" if path.name.lower().endswith(".gz") else "plain.nii")
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(pixels.T), np.eye(4)), plain)
    shutil.move(plain, path)


def radiographs(count: int) -> list[tuple[np.ndarray, int, str]]:
    """Pixels, label and patient of real radiographs, half of them positive; of phantoms where there are none."""
    import csv

    from tests.support import SHARED

    if SHARED.is_dir():
        with open(SHARED / "nih_cxr" / "labels.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        chosen = [r for value in ("1", "0") for r in [r for r in rows if r[FINDING] == value][: count // 2]]
        images = SHARED / "nih_cxr" / "images"
        return [
            (np.asarray(Image.open(images / row["image"]).convert("L")), int(row[FINDING]), row["patient_id"])
            for row in chosen
        ]
    from candor_monai.data.phantom import add_marker, backgrounds, random_marker

    rng = np.random.default_rng(7)
    made = backgrounds(rng, count)
    for image in made[: count // 2]:
        add_marker(image, random_marker(rng, "vertical"))
    grey = np.rint(made * 255).astype(np.uint8)
    return [(grey[i], int(i < count // 2), f"patient {i}") for i in range(count)]
