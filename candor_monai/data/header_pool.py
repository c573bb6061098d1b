"""Many DICOM headers at once, in processes with a memory and a time limit that a bad file cannot get around."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..utils import UserError
from .header_reading import KEYWORDS
from .header_worker import READY
from .worker_limits import worker_environment

BATCH = 64
LARGEST_ANSWER = 1 << 24  # characters


@dataclass(frozen=True)
class HeaderAnswer:
    """What became of one file: its header (of a DICOMDIR, the files it refers to), or the reason why there is none."""

    header: dict[str, str] | None
    reason: str = ""
    message: str = ""
    files: tuple[str, ...] = ()


class _Worker:
    """One child process; replaced when it dies or falls silent."""

    def __init__(self, memory_bytes: int, seconds: float) -> None:
        self.memory_bytes, self.seconds = memory_bytes, seconds
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "candor_monai.data.header_worker", str(self.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=worker_environment(),
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != READY:
            self.stop()
            raise UserError(
                f"the process that reads DICOM headers does not start. Try '{sys.executable} -m "
                f"candor_monai.data.header_worker {self.memory_bytes}' to see why; the memory limit may be too low."
            )
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process = None

    def read(self, paths: Sequence[str], keywords: Sequence[str], dicomdir: bool = False) -> Iterator[HeaderAnswer]:
        """Answers for ``paths`` in order; a file that kills or stalls the process is answered for and skipped."""
        done = 0
        while done < len(paths):
            process = self.process or self.start()
            assert process.stdin is not None
            try:
                request = {"paths": list(paths[done:]), "keywords": list(keywords), "dicomdir": dicomdir}
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                self.stop()
                continue
            while done < len(paths):
                line, timed_out = self._line(process)
                answer = _answer(line)
                if answer is None:  # it ended, maybe in the middle of a line, or a file has taken it over
                    self.stop()
                    reason = "timeout" if timed_out else "killed"
                    what = f"took longer than {self.seconds:g} s" if timed_out else "brought the reading process down"
                    yield HeaderAnswer(None, reason, f"reading the header {what}")
                    done += 1
                    break
                yield answer
                done += 1

    def _line(self, process: subprocess.Popen[str]) -> tuple[str, bool]:
        """The next line, ``""`` when the process ended, and whether it was ended for being too slow."""
        assert process.stdout is not None
        fired = threading.Event()

        def too_slow() -> None:
            fired.set()
            process.kill()

        timer = threading.Timer(self.seconds, too_slow)
        timer.daemon = True
        timer.start()
        try:
            return process.stdout.readline(LARGEST_ANSWER), fired.is_set()
        finally:
            timer.cancel()


def _answer(line: str) -> HeaderAnswer | None:
    """A process's answer about one file; None for a line that is none."""
    try:
        told = json.loads(line)
        header, files = told.get("header"), tuple(map(str, told.get("files", ())))
        texts = header is None or all(isinstance(text, str) for pair in header.items() for text in pair)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return HeaderAnswer(header, str(told.get("reason", "")), str(told.get("message", "")), files) if texts else None


def read_dicomdirs(paths: Sequence[str], *, memory_bytes: int = 1 << 30, seconds: float = 60.0) -> list[HeaderAnswer]:
    """Files that each DICOMDIR refers to, read in a process with the same limits."""
    worker = _Worker(memory_bytes, seconds)
    try:
        return list(worker.read(paths, (), dicomdir=True))
    finally:
        worker.stop()


def read_headers(
    paths: Sequence[str],
    keywords: Sequence[str] = KEYWORDS,
    *,
    workers: int = 2,
    memory_bytes: int = 1 << 30,
    seconds: float = 20.0,
) -> Iterator[tuple[int, HeaderAnswer]]:
    """Headers of many files, in the order in which they are ready.

    Args:
        paths: files.
        keywords: DICOM keywords.
        workers: number of processes.
        memory_bytes: address space of each process.
        seconds: longest time for one file.

    Yields:
        index into ``paths`` and its answer; each index once.
    """
    batches: queue.SimpleQueue[tuple[int, Sequence[str]]] = queue.SimpleQueue()
    for start in range(0, len(paths), BATCH):
        batches.put((start, paths[start : start + BATCH]))
    answers: queue.Queue[tuple[int, HeaderAnswer] | BaseException | None] = queue.Queue(maxsize=8 * BATCH)
    stopped = threading.Event()

    def put(item: tuple[int, HeaderAnswer] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                answers.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def work() -> None:
        worker = _Worker(memory_bytes, seconds)
        try:
            while not stopped.is_set():
                start, batch = batches.get_nowait()
                for offset, answer in enumerate(worker.read(batch, keywords)):
                    put((start + offset, answer))
        except queue.Empty:
            pass
        except BaseException as error:  # handed to the caller's thread
            put(error)
        finally:
            worker.stop()
            put(None)

    count = max(1, min(workers, (len(paths) + BATCH - 1) // BATCH))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            item = answers.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        stopped.set()
        for thread in threads:
            thread.join(timeout=5)
