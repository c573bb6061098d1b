"""Faults of the feature store: after each, the next run ends with the bytes of an undisturbed one."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from candor_monai.data import folder_lock as lock_module
from candor_monai.data import shards
from candor_monai.data.encode_loader import EncodeLoader, EncodeRecords
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.store_rows import Sources
from candor_monai.handlers.feature_saver import FeatureSaver
from candor_monai.utils import DecodeError, UserError, atomic

N, SIZE, BATCH = 120, 8, 8
FINGERPRINT = {"encoder": "faults"}
IDS = [f"image{n:03d}" for n in range(N)]
BAD = {17: "truncated", 60: "corrupt", 61: "constant"}


class Pool:
    """Decodes by formula; counts what it was asked for."""

    def __init__(self, pause=0.0):
        self.decoded = []
        self.pause = pause

    def map(self, items):
        for index, *_ in items:
            time.sleep(self.pause)
            self.decoded.append(index)
            if index in BAD:
                yield index, DecodeError(BAD[index], "not an image"), None, 0.0
            else:
                pixels = np.random.default_rng(index).integers(0, 256, (3, SIZE, SIZE), dtype=np.uint8)
                yield index, pixels, SimpleNamespace(codec="formula"), 0.0


def encode(folder, pause=0.0):
    """One run over the cohort, as the evaluator does it but without torch; gives the pool."""
    store = FeatureStore(folder, FINGERPRINT)
    state = np.arange(N, dtype=np.int64)
    sources = Sources(state, state)
    lacking = set(store.missing(IDS, sources))
    missing = np.array([i in lacking for i in IDS])
    loader = EncodeLoader(EncodeRecords(IDS, IDS, sources, missing, lambda i: IDS[i]), Pool(pause), BATCH, SIZE)
    saver = FeatureSaver(store, loader, shard_rows=2 * BATCH)
    for batch in loader:
        images = batch["image"].numpy().reshape(BATCH, -1).astype(np.float32)
        saver.add(batch["index"].numpy(), batch["ok"].numpy(), images[:, :24] + 1)
    saver.flush()
    return loader.pool


def content(folder):
    """Everything that the store says about the cohort, as bytes."""
    store = FeatureStore(folder, FINGERPRINT)
    features, present = store.read(IDS)
    told = store.provenance(IDS).to_csv() + store.rejections(IDS).sort_values("image_id").to_csv()
    return features.tobytes(), present.tobytes(), told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    encode(folder)
    return content(folder)


def in_child(work):
    """Run ``work`` in a child forked from this warmed process; gives its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def killed(pid):
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def settled(folder):
    """Images that the store holds a statement about."""
    store = FeatureStore(folder, FINGERPRINT)
    return N - len(store.missing(IDS))


def kill_after(folder, seconds):
    pid = in_child(lambda: encode(folder, pause=0.0005))
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return killed(pid)


def check_next_run(folder, undisturbed):
    kept = settled(folder)
    pool = encode(folder)
    assert len(pool.decoded) == N - kept, "what is complete is not computed again"
    assert content(folder) == undisturbed
    assert FeatureStore(folder, FINGERPRINT).verify().set_aside == {}
    assert encode(folder).decoded == []


def run_random_kills(tmp_path, undisturbed, count, seed):
    chance = random.Random(seed)
    kills = 0
    for number in range(count):
        folder = tmp_path / f"kill{number}"
        for _ in range(chance.choice([1, 1, 2, 3])):  # some runs are killed more than once
            kills += kill_after(folder, chance.uniform(0.0, 0.16))
        check_next_run(folder, undisturbed)
    return kills


def test_killed_at_random_moments(tmp_path, undisturbed):
    assert run_random_kills(tmp_path, undisturbed, count=6, seed=1) >= 3


@pytest.mark.slow
def test_killed_at_fifty_random_moments(tmp_path, undisturbed):
    assert run_random_kills(tmp_path, undisturbed, count=50, seed=2) >= 30


def kill_at(monkeypatch, target, name, number, before):
    """SIGKILL this process before or after the ``number``-th call of a function."""
    whole = getattr(target, name)
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        if before and len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = whole(*args, **kwargs)
        if not before and len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(target, name, counted)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    "target, name",
    [(atomic.os, "fsync"), (atomic.os, "replace"), (shards.pa.ipc, "new_file"), (atomic.tempfile, "mkstemp")],
)
def test_killed_at_every_step_of_writing(tmp_path, undisturbed, monkeypatch, target, name, number, before):
    def work():
        kill_at(monkeypatch, target, name, number, before)
        encode(tmp_path / "store")

    assert killed(in_child(work))
    check_next_run(tmp_path / "store", undisturbed)


def shard_files(folder):
    return sorted(folder.glob("*.arrow"))


@pytest.mark.parametrize("kind", ["features", "rejected"])
@pytest.mark.parametrize("seed", range(4))
def test_one_flipped_bit(tmp_path, undisturbed, kind, seed, caplog):
    encode(tmp_path)
    chance = random.Random(seed)
    path = chance.choice([p for p in shard_files(tmp_path) if p.name.startswith(kind)])
    altered = bytearray(path.read_bytes())
    altered[chance.randrange(len(altered))] ^= 1 << chance.randrange(8)
    path.write_bytes(altered)
    check_next_run(tmp_path, undisturbed)
    assert path.name in caplog.text


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_truncation(tmp_path, undisturbed, share):
    encode(tmp_path)
    path = shard_files(tmp_path)[0]
    os.truncate(path, int(path.stat().st_size * share))
    check_next_run(tmp_path, undisturbed)


def test_a_shard_that_vanished(tmp_path, undisturbed):
    encode(tmp_path)
    shard_files(tmp_path)[1].unlink()
    check_next_run(tmp_path, undisturbed)


def test_a_shard_that_vanishes_while_it_is_in_use(tmp_path):
    encode(tmp_path)
    store = FeatureStore(tmp_path, FINGERPRINT)
    assert store.missing(IDS) == []
    for path in shard_files(tmp_path):
        path.unlink()
    with pytest.raises(UserError, match="changed while it was in use"):
        store.read(IDS)


def test_the_clock_set_back_by_a_year(tmp_path, undisturbed, monkeypatch):
    encode(tmp_path)
    shard_files(tmp_path)[-1].unlink()
    for path in shard_files(tmp_path):
        os.utime(path, (2e9, 2e9))
    monkeypatch.setattr(time, "time", lambda: 1e9)
    check_next_run(tmp_path, undisturbed)


FAILURES = [(atomic.os, "replace"), (atomic.os, "fsync"), (atomic.tempfile, "mkstemp")]


@pytest.mark.parametrize("target, name", FAILURES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("number", [1, 4])
def test_a_disk_that_refuses(tmp_path, undisturbed, monkeypatch, target, name, code, number):
    whole = getattr(target, name)
    calls = []

    def refuses(*args, **kwargs):
        calls.append(1)
        if len(calls) >= number:
            raise OSError(code, os.strerror(code))
        return whole(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, refuses)
        with pytest.raises(UserError) as told:
            encode(tmp_path / "store")
    expected = "no space left" if code in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
    assert expected in str(told.value)
    assert list((tmp_path / "store").glob(".*.tmp")) == []
    check_next_run(tmp_path / "store", undisturbed)


def test_a_file_that_cannot_grow_is_not_left_half_written(tmp_path, undisturbed):
    """The kernel itself cuts the write short."""

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            encode(tmp_path / "store")
        except UserError as error:
            (tmp_path / "told").write_text(str(error))

    os.waitpid(in_child(work), 0)
    assert "File too large" in (tmp_path / "told").read_text()
    assert list((tmp_path / "store").glob(".*.tmp")) == []
    assert shard_files(tmp_path / "store") == []
    check_next_run(tmp_path / "store", undisturbed)


def test_a_store_that_cannot_be_written_can_be_read(tmp_path, undisturbed, monkeypatch, caplog):
    encode(tmp_path)
    path = shard_files(tmp_path)[0]
    altered = bytearray(path.read_bytes())
    altered[-1] ^= 1
    path.write_bytes(altered)

    def refuses(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        for name in ("replace", "mkdir", "unlink"):
            patch.setattr(os, name, refuses)
        patch.setattr("pathlib.Path.mkdir", refuses)
        store = FeatureStore(tmp_path, FINGERPRINT)
        features, present = store.read(IDS)
        assert 0 < present.sum() < N
        assert f"{path.name} is ignored" in caplog.text
        mapped, _ = store.matrix(IDS, memory_bytes=10)
        assert np.array_equal(mapped, features)
        with pytest.raises(UserError, match="Read-only file system"):
            store.write(["new"], np.ones((1, 24), dtype=np.float32))
    assert path.exists()
    check_next_run(tmp_path, undisturbed)


def test_no_room_for_the_consolidated_matrix(tmp_path, monkeypatch):
    encode(tmp_path)
    monkeypatch.setattr("candor_monai.data.consolidated.shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(UserError, match="no space left"):
        FeatureStore(tmp_path, FINGERPRINT).matrix(IDS, memory_bytes=10)
    assert [p.name for p in (tmp_path / "consolidated").iterdir()] == []


def hold(folder, ready):
    with lock_module.folder_lock(folder):
        in_child(lambda: time.sleep(3))  # a worker that outlives its parent
        ready.touch()
        time.sleep(20)


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    ready = tmp_path / "ready"
    pid = in_child(lambda: hold(tmp_path / "out", ready))
    while not ready.exists():
        time.sleep(0.01)
    with pytest.raises(UserError, match=f"another run \\(process {pid}\\)"), lock_module.folder_lock(tmp_path / "out"):
        pass
    os.kill(pid, signal.SIGKILL)
    assert killed(pid)
    with lock_module.folder_lock(tmp_path / "out"):
        assert (tmp_path / "out" / ".lock").read_text() == f"{os.getpid()}\n"


def test_two_processes_writing_at_once_lose_nothing(tmp_path, undisturbed):
    """Two runs on one feature folder with different output folders: wasteful, never wrong."""
    pids = [in_child(lambda: encode(tmp_path / "store", pause=0.001)) for _ in range(2)]
    for pid in pids:
        os.waitpid(pid, 0)
    check_next_run(tmp_path / "store", undisturbed)
