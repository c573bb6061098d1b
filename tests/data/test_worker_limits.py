"""Limits and environment of workers, seen from inside one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from candor_monai.data.worker_limits import worker_environment

SEEN = """
import json, resource, sys
from candor_monai.data.worker_limits import limit_process
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
limit_process(2 << 30)
kinds = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE)
print(json.dumps([resource.getrlimit(kind) for kind in kinds]))
"""


def _inside(code: str, *arguments: str) -> str:
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, env=worker_environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("already,expected", [(0, 2 << 30), (1 << 30, 1 << 30), (4 << 30, 2 << 30)])
def test_a_lower_limit_of_the_system_stays(already, expected):
    assert json.loads(_inside(SEEN, str(already))) == [[expected, expected], [0, 0], [0, 0]]


def test_no_secret_reaches_a_worker(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PACS_PASSWORD", "secret")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/own", ""]))
    found = json.loads(_inside("import json, os; print(json.dumps(dict(os.environ)))"))
    assert "secret" not in found.values()
    assert found["PYTHONPATH"].split(os.pathsep)[0] == "/own"
    assert "" not in found["PYTHONPATH"].split(os.pathsep)  # the folder at hand holds no module of ours
    assert found["OMP_NUM_THREADS"] == "1"
