"""Decoding in bounded workers: one bad file is one rejected row, whatever it does to a worker."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.data.store_rows import stat_sources
from candor_monai.utils.errors import DecodeError, UserError
from tests.data.dicom_corpus import SECRET, deflate_bomb, dicom_bytes, ramp


def png(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(path, "PNG")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    return [png(tmp_path / f"{i}.png", random.integers(0, 256, (30, 20), dtype=np.uint8)) for i in range(12)]


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with DecodePool(workers=2, size=16) as shared:
        yield shared


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A path whose opening waits for ever, like a file system that hangs."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def reasons(results: list) -> list[str]:
    return [r.pixels.reason if isinstance(r.pixels, DecodeError) else "ok" for r in results]


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(400):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def test_by_hand(pool: DecodePool, files: list[Path]):
    (result,) = pool.map([("a", files[0])])
    np.testing.assert_array_equal(result.pixels, canonical(decode(files[0]), 16))
    assert (result.index, result.pixels.shape, result.meta.format) == ("a", (3, 16, 16), "png")
    assert 0 < result.seconds < 60


def test_stages_are_timed_and_workers_added(files: list[Path]):
    with DecodePool(workers=1, size=16) as pool:
        (first,) = pool.map([("a", files[0])])
        assert set(pool.spent) == {"read", "decode", "transform"}
        assert all(spent > 0 for spent in pool.spent.values())
        assert sum(pool.spent.values()) == pytest.approx(first.seconds, abs=1e-6)
        pool.grow(3)
        assert pool.workers == 3
        list(pool.map(enumerate(files * 20)))
        assert len(pool.pids()) == 3
        pool.grow(1)
        assert (pool.workers, len(pool.pids())) == (3, 3), "none is taken away"


def test_results_are_those_of_this_process_in_order(pool: DecodePool, files: list[Path]):
    results = list(pool.map(enumerate(files * 5)))
    assert [r.index for r in results] == list(range(60))
    for result, path in zip(results, files * 5, strict=True):
        np.testing.assert_array_equal(result.pixels, canonical(decode(path), 16))


def test_bytes_of_any_size_and_original_resolution(files: list[Path]):
    random = np.random.default_rng(1)
    big = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (700, 900, 3), dtype=np.uint8)).save(big, "PNG")
    data = [big.getvalue(), files[0].read_bytes()] * 4
    with DecodePool(workers=1, size=None) as pool:
        for result, source in zip(pool.map(enumerate(data)), data, strict=True):
            np.testing.assert_array_equal(result.pixels, canonical(decode(source), None))
        stored = ramp(top=1000)
        image = pool.decode(dicom_bytes(stored))
        np.testing.assert_array_equal(image.pixels, decode(dicom_bytes(stored)).pixels)
        assert image.pixels.dtype == np.uint16


def test_bad_files_are_rows_of_their_own(pool: DecodePool, files: list[Path], tmp_path: Path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short.png").write_bytes(files[0].read_bytes()[:100])
    (tmp_path / "text.dcm").write_text(SECRET)
    unreadable = png(tmp_path / "secret.png", np.arange(9, dtype=np.uint8).reshape(3, 3))
    unreadable.chmod(0)
    names = ["empty", "short.png", "text.dcm", "missing.png", ".", "0.png"]
    results = list(pool.map((name, tmp_path / name) for name in names))
    assert reasons(results) == ["empty_file", "truncated", "unknown_format", "not_found", "unreadable", "ok"]
    assert not any(SECRET in str(r.pixels) or str(tmp_path) in str(r.pixels) for r in results[:-1])
    if os.geteuid() != 0:
        assert reasons(list(pool.map([(0, unreadable)]))) == ["unreadable"]


def test_files_that_changed_or_vanished_since_the_index(pool: DecodePool, files: list[Path]):
    same, touched, grown, gone = files[:4]
    states = stat_sources([same, touched, grown, gone])
    seen = list(zip(states.size.tolist(), states.mtime_ns.tolist(), strict=True))
    os.utime(touched, ns=(1, 1))
    grown.write_bytes(grown.read_bytes() + b"x")
    gone.unlink()
    items = [(i, path, identity) for i, (path, identity) in enumerate(zip(files, seen, strict=False))]
    assert reasons(list(pool.map(items))) == ["ok", "changed", "changed", "vanished"]


def test_a_hanging_file_system_is_a_timeout_and_the_rest_goes_on(files: list[Path], fifo: Path):
    with DecodePool(workers=2, size=16, seconds=4) as pool:
        start = time.monotonic()
        results = list(pool.map(enumerate([*files[:3], fifo, *files[3:]])))
        assert time.monotonic() - start < 60
    assert reasons(results) == ["ok"] * 3 + ["timeout"] + ["ok"] * 9


def test_a_killed_worker_costs_the_one_image(files: list[Path], fifo: Path):
    with DecodePool(workers=1, size=16) as pool:
        stop = threading.Event()

        def kill() -> None:
            while not stop.wait(0.5):
                for pid in pool.pids():
                    os.kill(pid, signal.SIGKILL)

        list(pool.map(enumerate(files[:2])))
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            (result,) = pool.map([(0, fifo)])
        finally:
            stop.set()
            killer.join()
        assert result.pixels.reason == "killed"
        assert reasons(list(pool.map(enumerate(files)))) == ["ok"] * 12


def test_an_innocent_image_survives_one_killed_worker(files: list[Path]):
    with DecodePool(workers=1, size=16) as pool:
        results = pool.map(enumerate(files * 20))
        done = [next(results)]
        os.kill(pool.pids()[0], signal.SIGKILL)
        done += results
    assert reasons(done) == ["ok"] * 240


def test_memory_is_bounded(files: list[Path], tmp_path: Path):
    large = tmp_path / "large.png"
    Image.new("RGB", (7000, 7000)).save(large, "PNG")
    bomb = tmp_path / "bomb.dcm"
    bomb.write_bytes(deflate_bomb(300 << 20))
    with DecodePool(workers=1, size=16, memory_bytes=256 << 20) as pool:
        results = list(pool.map(enumerate([large, files[0], bomb, files[1]])))
        assert reasons(results) == ["memory", "ok", "memory", "ok"]
        status = Path(f"/proc/{pool.pids()[0]}/status").read_text()
    assert int(status.split("VmPeak:")[1].split()[0]) <= 256 << 10


def test_prefetch_is_bounded(files: list[Path]):
    taken = []

    def items() -> Iterator[tuple[int, Path]]:
        for i in range(100):
            taken.append(i)
            yield i, files[i % 12]

    with DecodePool(workers=1, size=16, prefetch=8) as pool:
        results = pool.map(items())
        next(results)
        assert len(taken) == 8
        results.close()
        assert reasons(list(pool.map(enumerate(files)))) == ["ok"] * 12


def test_many_threads_share_a_pool(pool: DecodePool, files: list[Path]):
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(reasons(list(pool.map(enumerate(files)))))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["ok"] * 12] * 4


def test_workers_end_with_the_pool_and_start_again(files: list[Path]):
    pool = DecodePool(workers=1, size=16)
    list(pool.map(enumerate(files[:1])))
    (pid,) = pool.pids()
    pool.close()
    assert gone(pid)
    assert pool.pids() == []
    assert reasons(list(pool.map(enumerate(files[:1])))) == ["ok"]
    (pid,) = pool.pids()
    del pool
    assert gone(pid)


def test_workers_end_with_their_owner(files: list[Path]):
    code = (
        "import os, sys, time\n"
        "from candor_monai.data.decode_pool import DecodePool\n"
        "pool = DecodePool(workers=1, size=8)\n"
        "list(pool.map([(0, sys.argv[1])]))\n"
        "print(pool.pids()[0], flush=True)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(files[0])], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    assert gone(pid)


def test_a_forked_child_starts_workers_of_its_own(pool: DecodePool, files: list[Path]):
    list(pool.map(enumerate(files)))
    child = os.fork()
    if child == 0:
        own = DecodePool(workers=1, size=16)
        good = reasons(list(pool.map(enumerate(files)))) == reasons(list(own.map(enumerate(files)))) == ["ok"] * 12
        own.close()
        pool.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert reasons(list(pool.map(enumerate(files)))) == ["ok"] * 12


def test_a_copy_has_the_settings_and_no_workers(pool: DecodePool):
    for other in (pickle.loads(pickle.dumps(pool)), copy.copy(pool)):
        assert other.pids() == []
        assert (other.size, other.seconds, other.options) == (pool.size, pool.seconds, pool.options)


def test_options_reach_the_workers():
    frames = np.stack([ramp(top=100), ramp(top=100)[::-1]])
    data = dicom_bytes(frames[0], NumberOfFrames=2, PixelData=frames.astype("<u2").tobytes())
    with DecodePool(workers=1, size=8, options=DecodeOptions(frame=1)) as pool:
        (result,) = pool.map([(0, data)])
    np.testing.assert_array_equal(result.pixels, canonical(decode(data, DecodeOptions(frame=1)), 8))


def test_nothing_of_torch_or_monai_is_loaded_in_a_worker():
    code = (
        "import sys, candor_monai.data.decode_worker, candor_monai.data.decoding\n"
        "print([m for m in ('torch', 'monai', 'pandas', 'scipy', 'pydicom', 'nibabel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"workers": 0}, "decode workers 0"),
        ({"workers": True}, "decode workers True"),
        ({"memory_bytes": 1000}, "decode memory 1000"),
        ({"seconds": 0}, "decode seconds 0"),
        ({"seconds": float("nan")}, "decode seconds nan"),
    ],
)
def test_bad_settings(settings: dict, match: str):
    with pytest.raises(UserError, match=match):
        DecodePool(**settings)


def test_workers_that_cannot_start_are_told(monkeypatch: pytest.MonkeyPatch, files: list[Path]):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with DecodePool(workers=1) as pool, pytest.raises(UserError, match="did not start"):
        list(pool.map([(0, files[0])]))


def test_many_open_files_do_not_disturb(files: list[Path]):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"only {hard} open files allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with DecodePool(workers=1, size=16) as pool:
            assert reasons(list(pool.map(enumerate(files)))) == ["ok"] * 12
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_worker_does_is_logged_once(files: list[Path], caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="candor_monai.data.decode_pool"), DecodePool(workers=1, size=16) as pool:
        list(pool.map(enumerate(files)))
    (record,) = caplog.records
    assert "voi=lut, window=0, full_range=auto" in record.getMessage()


def test_a_worker_that_stopped_reading_is_a_timeout(files: list[Path]):
    big = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (900, 900), dtype=np.uint8)).save(big, "PNG")
    with DecodePool(workers=1, size=16, seconds=4) as pool:
        list(pool.map(enumerate(files[:1])))
        os.kill(pool.pids()[0], signal.SIGSTOP)
        assert reasons(list(pool.map(enumerate([big.getvalue(), files[0].read_bytes()])))) == ["timeout", "ok"]
