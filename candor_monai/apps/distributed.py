"""One evaluation on many processes: who does what, and how they wait for each other.

Encoding is dealt out by blocks of images, scoring by matched groups (:mod:`.scoring`); everything else is the first
process's. The processes meet through the launcher's key-value store, polled without a time limit, and never in a
collective operation: one of them may encode or score for hours longer than another, and no timeout of a backend ends
the run. Features and results of groups travel by files.

:func:`start_processes` makes a process group all the same, so that ``idist.get_rank()`` is right in MONAI's and
Ignite's handlers (and in a user's own) while images are encoded. Ignite's own collective takes place at once, where all
are together. The group is gone before the first process writes what was found, where the others have ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..data.feature_store import FeatureStore
from ..handlers.run_context import RunContext
from ..utils.errors import UserError
from ..utils.told import told_briefly

# Seconds between two looks at the store, and between two lines about whom the first process waits for.
POLL, TELL = 0.1, 60.0
# Seconds that a network file system may take to show a file that another machine has written.
VISIBLE = 180.0

logger = logging.getLogger(__name__)


class Processes:
    """This process among those that share a run.

    Args:
        rank, world_size: which of how many.
        store: a ``torch.distributed`` store that all of them reach; None for a process alone.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, store: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self._turns: Counter[str] = Counter()

    @property
    def first(self) -> bool:
        """Whether this one prepares, writes results and tells."""
        return self.rank == 0

    def share(self, name: str, value: bytes = b"") -> bytes:
        """The first process's ``value``, in every process; the others wait for it.

        Every process calls this the same number of times with the same names.

        Args:
            name: what is shared.
            value: what it is; only the first process's counts.
        """
        self._turns[name] += 1
        if self.world_size == 1:
            return value
        key = f"{name}/{self._turns[name]}"
        if self.first:
            self.store.set(key, value)
            return value
        self._wait([key])
        return bytes(self.store.get(key))

    def collect(self, name: str, value: bytes = b"") -> list[bytes]:
        """Every process's ``value``, in the first process, which waits for them; nothing in the others: they go on."""
        self._turns[name] += 1
        if self.world_size == 1:
            return [value]
        keys = [f"{name}/{self._turns[name]}/{rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], value)
        if not self.first:
            return []
        self._wait(keys)
        return [bytes(self.store.get(key)) for key in keys]

    def deal(self, name: str, count: int) -> Iterator[int]:
        """Numbers from 0 to below ``count``, each in one process alone: whoever asks next gets the next.

        Every process calls this the same number of times with the same names.

        Args:
            name: what is dealt.
            count: how many there are.
        """
        self._turns[name] += 1
        key = f"{name}/{self._turns[name]}/next"
        for taken in itertools.count():
            number = taken if self.world_size == 1 else self.store.add(key, 1) - 1
            if number >= count:
                return
            yield number

    @contextmanager
    def first_before_others(self, name: str) -> Iterator[None]:
        """The block is run by the first process, then by the others."""
        if not self.first:
            self.share(name)
        yield
        if self.first:
            self.share(name)

    def _wait(self, keys: Sequence[str]) -> None:
        """Until all keys are in the store. A process that dies is the launcher's to notice: it ends the others."""
        told = time.monotonic()
        waiting = list(keys)
        while True:
            try:
                waiting = [key for key in waiting if not self.store.check([key])]
            except RuntimeError as error:
                raise UserError(f"process {self.rank}: the first process has ended before this one.") from error
            if not waiting:
                return
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                logger.info("waiting for other processes: %s", ", ".join(waiting))
            time.sleep(POLL)


_here = Processes()


def processes() -> Processes:
    """This process among those that share the run; one of one where none were started."""
    return _here


def launched() -> int:
    """Number of processes that a launcher such as ``torchrun`` says it has started.

    >>> launched()
    1
    """
    return int(os.environ.get("WORLD_SIZE") or 1) if "RANK" in os.environ else 1


def tell(text: str) -> None:
    """Print a line, in the first process."""
    if processes().first:
        print(text, flush=True)


@told_briefly
def start_processes(backend: str | None = None) -> None:
    """Join the processes that ``torchrun`` started; without a launcher, nothing. In a bundle: ``+initialize``.

    Args:
        backend: of ``torch.distributed``; None: ``nccl`` where each process has a GPU of its own, else ``gloo``.

    Raises:
        SystemExit: the processes cannot reach each other.
    """
    global _here
    if _here.store is not None or launched() == 1:
        return
    import ignite.distributed as idist
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    local, beside = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    devices = torch.cuda.device_count()
    backend = chosen_backend(backend, devices, beside)
    if devices:
        torch.cuda.set_device(local % devices)
    try:
        store, rank, world_size = next(rendezvous("env://"))
        store = dist.PrefixStore(f"candor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=world_size)
        idist.get_rank()  # Ignite's collective: now, while all are here
    except (RuntimeError, ValueError) as error:
        raise UserError(f"process {os.environ['RANK']} could not join the others: {error}") from error
    _here = Processes(rank, world_size, store)
    if not _here.first:
        logging.disable(logging.WARNING)
    logger.info("%d processes share the encoding and the scoring (%s)", world_size, backend)


def chosen_backend(asked: str | None, devices: int, beside: int) -> str:
    """The backend of ``torch.distributed``: NCCL only where each process of this machine has a GPU of its own.

    Args:
        asked: by the user; None: none is.
        devices: GPUs of this machine.
        beside: processes on this machine.

    Raises:
        UserError: NCCL is asked for where two processes would share a GPU, which it cannot.
    """
    if asked == "nccl" and devices < beside:
        raise UserError(f"--process_backend nccl: {beside} processes of this machine, {devices} GPU; take gloo.")
    return asked or ("nccl" if devices >= beside else "gloo")


def stop_processes() -> None:
    """Leave the process group, if there is one. In a bundle: ``finalize``."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    import ignite.distributed as idist

    idist.get_rank()  # so that Ignite knows of the group and goes back to one process with it
    idist.finalize()
    if dist.is_initialized():
        dist.destroy_process_group()


def rank_device() -> Any:
    """The device of this process: its own GPU, or the CPU where there is none."""
    import torch

    devices = torch.cuda.device_count()
    return torch.device(f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % devices}" if devices else "cpu")


def shared_missing(image_ids: Sequence[str], missing: np.ndarray) -> np.ndarray:
    """What the first process found missing, in every process, so that all deal out the same blocks.

    Processes that looked at the store one after the other would see different shards: an image might be encoded twice,
    or not at all.

    Args:
        image_ids: N ids, the same in every process.
        missing: shape (N,), bool: what this process found missing.

    Raises:
        UserError: another process has other images.
    """
    digest = hashlib.sha256("\n".join(image_ids).encode("utf-8", "surrogatepass")).digest()
    told = processes().share("missing", digest + np.packbits(missing).tobytes())
    if told[: len(digest)] != digest:
        raise UserError(
            f"process {processes().rank} finds other images than the first process ({len(image_ids)} here): every "
            "machine must see the same dataset folder and tables."
        )
    return np.unpackbits(np.frombuffer(told[len(digest) :], dtype=np.uint8), count=len(missing)).astype(bool)


@told_briefly
def gather_features(context: RunContext) -> None:
    """Wait, in the first process, until all have encoded; its store then shows everybody's shards.

    The others do not wait.

    Args:
        context: the run.

    Raises:
        SystemExit: a file that another process has written cannot be seen.
    """
    if processes().world_size == 1:
        return
    store = context.store if isinstance(context.store, FeatureStore) else None
    names = [] if store is None else sorted(path.name for path in store.folder.glob("*.arrow"))
    told = processes().collect("encoded", json.dumps(names).encode())
    if store is not None and processes().first:
        until_visible(
            store.folder, {name for names in told for name in json.loads(names)}, "Name it with --feature_dir."
        )
        store.refresh()


@told_briefly
def go_on_alone() -> None:
    """Go on as one process; any but the first ends here with success.

    The first one takes over the processor cores of those beside it: no number depends on how many there are.

    Raises:
        SystemExit: this process is not the first (status 0).
    """
    global _here
    here = _here
    if here.world_size == 1:
        return
    stop_processes()
    if not here.first:
        raise SystemExit(0)
    import torch

    torch.set_num_threads(torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    _here = Processes(store=here.store)


def until_visible(folder: Path, names: set[str], what_to_do: str) -> None:
    """Wait until files that other processes have written are seen here; a network file system may take a while.

    Args:
        folder: where they are.
        names: of the files.
        what_to_do: the end of the message when they cannot be seen.

    Raises:
        UserError: they are not seen in time.
    """
    deadline = time.monotonic() + VISIBLE
    while absent := sorted(name for name in names if not (folder / name).exists()):
        if time.monotonic() > deadline:
            raise UserError(
                f"{len(absent)} files that other processes wrote, {absent[0]} among them, cannot be seen in "
                f"{folder}: every machine must write into the same folder. {what_to_do}"
            )
        if folder.is_dir():
            os.listdir(folder)
        time.sleep(10 * POLL)
