"""What processes that touch untrusted bytes may use, set in one place for all kinds of them.

Imports nothing beyond the standard library: workers call it before they load anything else.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

_KEPT = ("PATH", "PYTHON", "LD_", "LC_", "LANG", "VIRTUAL_ENV", "CONDA", "HOME", "TMPDIR", "SYSTEMROOT")
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


def limit_process(memory_bytes: int) -> None:
    """Bound this process: its address space; no file written, no core dump left behind.

    Args:
        memory_bytes: address space; a lower limit that the system has set stays.
    """
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def worker_environment() -> dict[str, str]:
    """Environment of a worker: what starting Python needs and nothing else.

    A subverted worker finds no secrets in it; libraries start no threads of their own, which would take memory.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return environment | {
        "PYTHONPATH": os.pathsep.join([*path, _PACKAGE_ROOT]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
