"""Compiled loops and the code that is kept of them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from candor_monai.metrics.compiled import KeptFiles, compiled
from tests.support import module_from

SOURCE = """
from candor_monai.metrics.compiled import compiled

@compiled
def first(values):
    return values[0, 1] + {added}
"""


@pytest.fixture
def module(tmp_path: Path) -> Callable[[], ModuleType]:
    """Imports a file with a compiled function as a new process would; code is kept beside it."""

    def fresh(added: int = 0) -> ModuleType:
        path = tmp_path / "loops.py"
        text = SOURCE.format(added=added)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            os.utime(path, ns=(added, added))
        return module_from(path, "loops")

    return fresh


VALUES = np.arange(6.0).reshape(2, 3)


def kept(folder: Path, ending: str) -> list[Path]:
    return sorted(folder.rglob(f"*.{ending}"))


def hits(loaded: ModuleType) -> int:
    return sum(loaded.first.stats.cache_hits.values())


def test_code_is_kept_for_every_signature(module, tmp_path):
    assert module().first(VALUES) == 1.0
    assert module().first(np.asfortranarray(VALUES)) == 1.0
    again = module()
    assert again.first(VALUES) == again.first(np.asfortranarray(VALUES)) == 1.0
    assert hits(again) == 2
    assert len(kept(tmp_path, "nbc")) == 2


def test_code_of_an_older_source_is_not_used_and_goes(module, tmp_path):
    module().first(VALUES)
    assert module(added=5).first(VALUES) == 6.0
    assert len(kept(tmp_path, "nbc")) == 1


def test_two_that_write_at_once_keep_their_own_code(module, monkeypatch):
    """The second has read the index before the first has written anything."""
    one, two = module(), module()
    write = KeptFiles._save_index
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(KeptFiles, "_save_index", lambda files, found: waiting.append(lambda: write(files, found)))
    one.first(VALUES)
    two.first(np.asfortranarray(VALUES))
    monkeypatch.undo()
    for do in waiting:
        do()
    again = module()
    assert again.first(VALUES) == 1.0
    assert again.first(np.asfortranarray(VALUES)) == 1.0


def test_one_killed_before_its_index_leaves_the_older_source_s_code_unused(module, monkeypatch):
    module().first(VALUES)
    monkeypatch.setattr(KeptFiles, "_save_index", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    module(added=5).first(VALUES)
    monkeypatch.undo()
    assert module(added=5).first(VALUES) == 6.0


def damages() -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    yield "empty", lambda _: b""
    yield "cut", lambda whole: whole[: len(whole) // 2]
    yield "a few bytes", lambda whole: whole[:20]
    yield "zeros", lambda whole: whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)
    yield "another thing", lambda _: pickle.dumps({"a": 1})


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize(("name", "damage"), list(damages()))
def test_damaged_files_are_made_again(name, damage, ending, module, tmp_path):
    module().first(VALUES)
    (path,) = kept(tmp_path, ending)
    path.write_bytes(damage(path.read_bytes()))
    assert module().first(VALUES) == 1.0
    again = module()
    assert again.first(VALUES) == 1.0
    assert hits(again) == 1


def test_what_cannot_be_kept_is_told_and_ends_nothing(module, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptFiles, "_save_data", full)
    assert module().first(VALUES) == 1.0
    assert "first: compiled code cannot be kept in" in caplog.text
    assert "No space left on device" in caplog.text
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_a_folder_in_the_place_of_the_index(module, tmp_path, caplog):
    module().first(VALUES)
    (path,) = kept(tmp_path, "nbi")
    path.unlink()
    path.mkdir()
    assert module().first(VALUES) == 1.0
    assert "cannot be kept" in caplog.text


def test_nowhere_to_keep_anything(monkeypatch):
    def nowhere(*_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("candor_monai.metrics.compiled.KeptCode.__init__", nowhere)

    @compiled
    def twice(value):
        return 2 * value

    assert twice(3) == 6


def test_without_compiling_the_loops_are_python_s(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)

    def own(value):
        return value

    assert compiled(own) is own


def test_a_whole_measure_without_compiling():
    script = (
        "import numpy as np\n"
        "from candor_monai.metrics import Observations, Options, evaluate\n"
        "labels = np.arange(60)[:, None] % 2\n"
        "features = (np.random.default_rng(0).standard_normal((60, 8)) + labels).astype(np.float32)\n"
        "seen = Observations([f'i{i}' for i in range(60)], labels, ['effusion'])\n"
        "result = evaluate(features, seen, Options(permutations=40, redraws=3, resamples=20))\n"
        "print([result.rows[0][name] for name in ('D', 'D_total_lo', 'chance_null', 'D_redraw_mean')])\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env=os.environ | {"NUMBA_DISABLE_JIT": off},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for off in ("0", "1")
    ]
    assert told[0] == told[1]
    assert "None" not in told[0]
