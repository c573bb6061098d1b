"""Decoding in bounded worker processes: a bad file is one rejected row and nothing else.

The main process owns the workers. Each is a fresh interpreter (``subprocess``, never ``fork``: the main process has
threads and CUDA), limited in memory by the kernel and in time by a watchdog, and replaced when it died or hung.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from candor_monai.utils.errors import DecodeError, UserError

from .decode_worker import REPLY, REQUEST
from .decoded_image import REASONS, DecodedImage, DecodeOptions, ImageMeta
from .decoding import CANONICAL_SIZE, channels_first
from .worker_limits import worker_environment

logger = logging.getLogger(__name__)

# What a worker does with an image, one after the other: the last one is the canonical size.
STAGES = ("read", "decode", "transform")
LEAST_MEMORY = 192 * 2**20  # libraries and a small image

_AHEAD = 2  # requests a worker holds: it never waits for the main process between two images
_START_SECONDS = 60.0
_STARTS = 3
_LARGEST_REPLY = 1 << 31
_PIPE_BYTES = 16384  # surely less than a pipe holds, so sending it never waits for the worker
_F_SETPIPE_SZ = 1031


class Decoded(NamedTuple):
    """One result of :meth:`DecodePool.map`.

    Attributes:
        index: as given.
        pixels: (3, rows, columns) uint8, or the reason why there are none.
        meta: metadata of the image, or None.
        seconds: time the worker spent on it (reading included).
    """

    index: Any
    pixels: np.ndarray | DecodeError
    meta: ImageMeta | None
    seconds: float


class DecodePool:
    """Worker processes that decode image files.

    Usable from threads, notebooks, pytest and every rank of a distributed run; each process has its own. Workers start
    with the first image and end with :meth:`close`, with the ``with`` block, or with the process.

    Args:
        workers: number of processes.
        memory_bytes: address space of each (RLIMIT_AS).
        seconds: time one image may take, reading it included.
        options: see :class:`DecodeOptions`.
        size: canonical size, one number or (rows, columns); None keeps the original resolution (still 8 bits).
        prefetch: results decoded ahead of the consumer; by default 64, or 4 a worker at original resolution.

    Attributes:
        spent: seconds of all workers together in each of :data:`STAGES`, over the results that were given.

    Raises:
        UserError: a value is out of range, or the workers cannot start.

    >>> with DecodePool(workers=1, size=2) as pool:
    ...     [(index, str(error)) for index, error, _, _ in pool.map([("a", "/no/such/file.png")])]
    [('a', 'there is no file at this path')]
    """

    def __init__(
        self,
        workers: int = 2,
        memory_bytes: int = 1 << 30,
        seconds: float = 60.0,
        options: DecodeOptions | None = None,
        size: int | tuple[int, int] | None = CANONICAL_SIZE,
        prefetch: int | None = None,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise UserError(f"decode workers {workers!r}: use a whole number of at least 1")
        if memory_bytes < LEAST_MEMORY:
            raise UserError(f"decode memory {memory_bytes} bytes: a worker needs at least {LEAST_MEMORY}")
        if not (math.isfinite(seconds) and seconds > 0):
            raise UserError(f"decode seconds {seconds!r}: use a positive number")
        self.workers = workers
        self.memory_bytes = int(memory_bytes)
        self.seconds = float(seconds)
        self.options = options or DecodeOptions()
        self.size = size
        self.prefetch = prefetch or (64 if size is not None else 4 * workers)
        self.spent = dict.fromkeys(STAGES, 0.0)
        self._state: _Crew | None = None
        self._lock = threading.Lock()

    def map(self, items: Iterable[Sequence[Any]]) -> Generator[Decoded, None, None]:
        """Decode files, in order, at most ``prefetch`` ahead of the consumer.

        Args:
            items: (index, source) or (index, source, expected): source is a path or the file's bytes, expected the
                (size, modification time in ns) the file had when the cohort was read, or None.

        Yields:
            one :class:`Decoded` an item, in the items' order.
        """
        waiting: deque[tuple[Any, Future[_Result]]] = deque()
        source = iter(items)
        try:
            exhausted = False
            while True:
                while not exhausted and len(waiting) < self.prefetch:
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    index, path, *rest = item
                    waiting.append((index, self._submit(path, rest[0] if rest else None, True)))
                if not waiting:
                    return
                index, future = waiting.popleft()
                result = future.result()
                for stage, spent in zip(STAGES, result.stages, strict=False):
                    self.spent[stage] += spent
                if isinstance(result.pixels, DecodeError):
                    yield Decoded(index, result.pixels, None, result.seconds)
                else:
                    yield Decoded(index, channels_first(result.pixels), result.meta, result.seconds)
        finally:
            for _, future in waiting:
                future.cancel()

    def decode(self, source: str | os.PathLike[str] | bytes, expected: tuple[int, int] | None = None) -> DecodedImage:
        """Decode one image at full depth and resolution, as :func:`candor_monai.data.decode` does, in a worker.

        Raises:
            DecodeError: the image cannot be shown.
        """
        result = self._submit(source, expected, False).result()
        if isinstance(result.pixels, DecodeError):
            raise result.pixels
        assert result.meta is not None
        return DecodedImage(result.pixels, result.meta)

    def grow(self, workers: int) -> None:
        """Go on with this many workers; those that are there stay."""
        with self._lock:
            self.workers = max(self.workers, workers)
            if self._state is not None and self._state.owner == os.getpid():
                self._state.grow(self.workers)

    def close(self) -> None:
        """End the workers; results not yet fetched are lost."""
        with self._lock:
            crew, self._state = self._state, None
        if crew is not None:
            _close_crew(crew)

    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        crew = self._state
        return [] if crew is None else [pid for pid in (member.pid for member in crew.members) if pid is not None]

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: a copy in another process starts workers of its own."""
        state = dict(self.__dict__)
        state["_state"] = None
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _submit(
        self, source: str | os.PathLike[str] | bytes, expected: tuple[int, int] | None, eight_bit: bool
    ) -> Future[_Result]:
        request: dict[str, Any] = {"kind": "path", "eight_bit": eight_bit}
        data = b""
        if isinstance(source, (bytes, bytearray)):
            request["kind"], data = "bytes", bytes(source)
        else:
            request["path"] = os.path.abspath(os.fsdecode(source))
            request["expected"] = None if expected is None else [int(number) for number in expected]
        with self._lock:
            if self._state is None or self._state.owner != os.getpid():  # also after a fork: workers stay the parent's
                self._state = crew = _Crew(self)
                weakref.finalize(self, _close_crew, crew)
            return self._state.submit(json.dumps(request).encode(), data)


class _Result(NamedTuple):
    pixels: np.ndarray | DecodeError
    meta: ImageMeta | None
    seconds: float
    stages: tuple[float, ...]


class _Task:
    """One request, its future, and how often it took a worker down."""

    def __init__(self, header: bytes, data: bytes) -> None:
        self.header, self.data = header, data
        self.future: Future[_Result] = Future()
        self.started = False
        self.tries = 0


class _Crew:
    """The members (one thread and one process each) that share a queue of tasks."""

    def __init__(self, pool: DecodePool) -> None:
        self.owner = os.getpid()
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        settings = json.dumps(
            {
                "memory_bytes": pool.memory_bytes,
                "seconds": pool.seconds,
                "options": pool.options.as_dict(),
                "size": pool.size,
            }
        )
        logger.info(
            "decoding in %d processes of %d MiB, %g s an image; display: %s",
            pool.workers,
            pool.memory_bytes >> 20,
            pool.seconds,
            ", ".join(f"{name}={value}" for name, value in pool.options.as_dict().items()),
        )
        self._settings, self._seconds = settings, pool.seconds
        self.members: list[_Member] = []
        self.grow(pool.workers)
        self.closed = False

    def grow(self, workers: int) -> None:
        while len(self.members) < workers:
            self.members.append(_Member(self._settings, self._seconds, self.tasks))

    def submit(self, header: bytes, data: bytes) -> Future[_Result]:
        task = _Task(header, data)
        self.tasks.put(task)
        return task.future

    def close(self) -> None:
        self.closed = True
        for _ in self.members:
            self.tasks.put(None)
        for member in self.members:
            member.stop()
        for member in self.members:
            member.join()
        with contextlib.suppress(queue.Empty):
            while True:
                task = self.tasks.get_nowait()
                if task is not None:
                    task.future.cancel()


class _Member:
    """A thread that keeps one worker process busy and replaces it when it fails."""

    def __init__(self, settings: str, seconds: float, tasks: queue.SimpleQueue[_Task | None]) -> None:
        self._settings, self._seconds, self._tasks = settings, seconds, tasks
        self._held: deque[_Task] = deque()  # sent to the worker, oldest first
        self._again: deque[_Task] = deque()  # to be sent again after the worker was replaced
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._answered = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="candor-decode", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the worker, once it can decode."""
        process = self._process
        return process.pid if process is not None and self._ready else None

    def stop(self) -> None:
        """Tell the thread to end and kill the worker."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()  # the thread sees the end of the pipe and closes it

    def join(self) -> None:
        """Wait for the thread, not for one whose worker hangs in the kernel."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _work(self) -> None:
        closing = False
        while not self._stopped:
            try:
                while not closing and len(self._held) < _AHEAD:
                    task = self._next()
                    if task is None:
                        break
                    if task is _CLOSE:
                        closing = True
                    elif task.started or task.future.set_running_or_notify_cancel():
                        task.started = True
                        self._send(task)
                if self._held:
                    self._settle(self._held[0], *self._receive(time.monotonic() + self._seconds))
                elif closing:
                    break
            except _Dead as dead:
                if not self._stopped:
                    self._replace(dead)
            except Exception as error:  # a fault of ours must not leave a consumer waiting for ever
                self._fail(error)
        self._fail(UserError("the decode pool was closed while an image was being decoded"))
        self._end()

    def _fail(self, error: Exception) -> None:
        """Hand an error to everyone who waits for this member."""
        for task in (*self._held, *self._again):
            if task.started:
                task.future.set_exception(error)
            else:
                task.future.cancel()
        self._held.clear()
        self._again.clear()
        self._end()

    def _next(self) -> _Task | None:
        """The next task to send: one to be repeated first; waits only when nothing is in the worker.

        A request with much data waits for an idle worker: one that is writing its answer does not read.
        """
        if self._again:
            task: _Task | None = self._again.popleft()
        else:
            try:
                task = self._tasks.get(block=not self._held)
            except queue.Empty:
                return None
        if task is None:
            return _CLOSE
        if self._held and len(task.data) > _PIPE_BYTES:
            self._again.appendleft(task)
            return None
        return task

    def _send(self, task: _Task) -> None:
        self._held.append(task)
        process = self._started() if self._process is None else self._process
        assert process.stdin is not None
        view = memoryview(REQUEST.pack(len(task.header), len(task.data)) + task.header + task.data)
        descriptor, deadline = process.stdin.fileno(), time.monotonic() + self._seconds
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        while view:
            if not poller.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                raise _Dead("timeout")
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _Dead("killed") from None

    def _settle(self, task: _Task, answer: dict[str, Any], pixels: bytearray) -> None:
        """Check an answer (a worker may have been subverted by a file) and hand it over."""
        self._answered += 1
        try:
            seconds = float(answer["seconds"])
            stages = tuple(float(spent) for spent in answer["stages"])
            if "reason" in answer:
                reason, message = answer["reason"], str(answer["message"])
                if reason not in REASONS:
                    raise ValueError
                result = _Result(DecodeError(reason, message), None, seconds, stages)
            else:
                if answer["dtype"] not in ("uint8", "uint16"):
                    raise ValueError
                array = np.frombuffer(pixels, dtype=answer["dtype"]).reshape(answer["shape"])
                result = _Result(array, ImageMeta(**answer["meta"]), seconds, stages)
        except (KeyError, TypeError, ValueError):
            raise _Dead("killed") from None
        if isinstance(result.pixels, DecodeError) and result.pixels.reason == "memory" and self._answered > 1:
            raise _Dead("memory")  # memory may have been lost to files before this one: once more in a fresh worker
        self._held.popleft()
        task.future.set_result(result)

    def _replace(self, dead: _Dead) -> None:
        """End the worker; its oldest task is to blame, or gets one more try; all others are sent again."""
        status = self._end()
        tasks = list(self._held)
        self._held.clear()
        # A worker that had served other files may have been swollen by them, or killed for them: one more try, alone.
        again = dead.reason == "memory" or (dead.reason == "killed" and self._answered > 0 and not tasks[0].tries)
        self._answered = 0
        if again:
            tasks[0].tries += 1
        else:
            blamed = tasks.pop(0)
            message = f"reading and decoding took more than {self._seconds:g} s"
            if dead.reason == "killed":
                message = f"the decoding process ended with status {status}"
            blamed.future.set_result(_Result(DecodeError(dead.reason, message), None, self._seconds, ()))
        self._again.extendleft(reversed(tasks))

    def _started(self) -> subprocess.Popen[bytes]:
        """A new worker; one that dies on its way (killed by a busy system) is started again."""
        for _ in range(_STARTS):
            try:
                return self._start()
            except _Dead:
                self._end()
        raise UserError(
            "the decode worker did not start; check that "
            f"'{sys.executable} -m candor_monai.data.decode_worker' finds the package, and the memory limit"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "candor_monai.data.decode_worker", self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=worker_environment(),
            bufsize=0,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        with contextlib.suppress(OSError):
            import fcntl

            fcntl.fcntl(process.stdout, _F_SETPIPE_SZ, 1 << 20)
        answer, _ = self._receive(time.monotonic() + _START_SECONDS)
        if not answer.get("ready"):
            raise _Dead("killed")
        self._ready = True
        return process

    def _receive(self, deadline: float) -> tuple[dict[str, Any], bytearray]:
        """One answer of the worker; what it already wrote is read before its time is judged."""
        header_length, data_length = REPLY.unpack(self._read(REPLY.size, deadline))
        if data_length > _LARGEST_REPLY or header_length > 1 << 20:
            raise _Dead("killed")
        try:
            answer = json.loads(bytes(self._read(header_length, deadline)))
        except ValueError:
            raise _Dead("killed") from None
        return answer, self._read(data_length, deadline)

    def _read(self, count: int, deadline: float) -> bytearray:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poller = select.poll()  # select() refuses descriptors above 1023, which a busy main process has
        poller.register(descriptor, select.POLLIN)
        buffer = bytearray(count)
        view, filled = memoryview(buffer), 0
        while filled < count:
            left = deadline - time.monotonic()
            if not poller.poll(max(left, 0.0) * 1000):
                raise _Dead("timeout")
            got = os.readv(descriptor, [view[filled:]])
            if not got:
                raise _Dead("killed")
            filled += got
        return buffer

    def _end(self) -> int | None:
        """Kill the worker; one in an uninterruptible read (hanging file system) is left to the kernel."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return None
        status = process.poll()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        return process.returncode if status is None else status


class _Dead(Exception):
    """The worker died (``killed``), took too long (``timeout``) or ran out of memory (``memory``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_CLOSE = _Task(b"", b"")


def _close_crew(crew: _Crew) -> None:
    if crew.owner == os.getpid() and not crew.closed:
        crew.close()


_shared_pools: dict[DecodeOptions, DecodePool] = {}
_shared_lock = threading.Lock()


def shared_pool(options: DecodeOptions | None = None) -> DecodePool:
    """The pool of one worker that readers of this process share, for these options."""
    options = options or DecodeOptions()
    with _shared_lock:
        if options not in _shared_pools:
            _shared_pools[options] = DecodePool(workers=1, options=options)
        return _shared_pools[options]
