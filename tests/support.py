"""What tests share: the real data and skipping without it, work in several threads, modules loaded from files."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="real data folder ../shared/data is absent")


def module_from(path: Path, name: str) -> ModuleType:
    """A file run as a module of its own, which is not kept in ``sys.modules``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def failures_in_threads(work: Callable[[int], None], count: int = 8) -> list[BaseException]:
    """Run ``work(0)`` to ``work(count - 1)`` in threads at once; what they raised."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # told by the test's thread
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed
