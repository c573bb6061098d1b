"""Images of a cohort on a PACS: fetched ahead by a few threads, kept in a bounded folder or in memory only."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..utils import DecodeError, UserError
from ..utils.atomic import atomic_write
from .dicomweb_client import DicomWebClient


class PacsReader:
    """Reads ``studies/<uid>/series/<uid>/instances/<uid>`` from the server or from what was kept of it.

    Args:
        client: the server.
        concurrency: requests at once.
        cache_dir: folder that keeps what was fetched; None keeps nothing.
        cache_bytes: its largest size; the files fetched first go first.
    """

    def __init__(
        self,
        client: DicomWebClient,
        concurrency: int = 4,
        cache_dir: Path | None = None,
        cache_bytes: int = 20 << 30,
    ) -> None:
        self.client, self.concurrency = client, concurrency
        self.cache_dir, self.cache_bytes = cache_dir, cache_bytes
        self._next: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ahead: dict[str, Future[bytes]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._held: int | None = None

    def expect(self, images: Sequence[str]) -> None:
        """All images, in the order in which they will be asked for; without it nothing is fetched ahead."""
        self._next = dict(pairwise(images))

    def __call__(self, image: str) -> bytes:
        """The DICOM file of ``image``; those that follow it are fetched meanwhile.

        Raises:
            DecodeError: the server no longer has it.
            UserError: the server stays away or refuses access.
        """
        kept = self._read(image)
        with self._lock:
            if kept is None and image not in self._ahead:
                self._ahead[image] = self._submit(image)
            following = image
            for _ in range(2 * self.concurrency):
                following = self._next.get(following, "")
                if not following:
                    break
                if following not in self._ahead and self._kept(following) is None:
                    self._ahead[following] = self._submit(following)
            future = self._ahead.pop(image, None)
            # what was fetched ahead and never asked for must not pile up
            while len(self._ahead) > 4 * self.concurrency:
                self._ahead.pop(next(iter(self._ahead))).cancel()
        if future is None:
            assert kept is not None
            return kept
        content = future.result()
        self._keep(image, content)
        return content

    def file(self, image: str) -> Path:
        """The kept file of ``image``, fetched where it is not there.

        Raises:
            DecodeError: the server no longer has it, or the file does not fit into the cache.
            UserError: nothing is kept, or the server stays away or refuses access.
        """
        if self.cache_dir is None:
            raise UserError("images of a PACS are files only where they are kept: set cache_dir.")
        if (kept := self._kept(image)) is None:
            self(image)
            kept = self._kept(image)
        if kept is None:
            raise DecodeError("too_large", "the image is larger than the cache (cache_gigabytes)")
        return kept

    def _submit(self, image: str) -> Future[bytes]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="dicomweb")
        _, study, _, series, _, instance = image.split("/")
        return self._threads.submit(self.client.instance, study, series, instance)

    def _file(self, image: str) -> Path:
        assert self.cache_dir is not None
        name = hashlib.blake2b(f"{self.client.url}\x00{image}".encode(), digest_size=16).hexdigest()
        return self.cache_dir / name[:2] / f"{name}.dcm"

    def _kept(self, image: str) -> Path | None:
        if self.cache_dir is None:
            return None
        path = self._file(image)
        return path if path.is_file() else None

    def _read(self, image: str) -> bytes | None:
        """What was kept of ``image``; another process that shares the cache may take it away at any moment."""
        kept = self._kept(image)
        try:
            return None if kept is None else kept.read_bytes()
        except FileNotFoundError:
            return None

    def _keep(self, image: str, content: bytes) -> None:
        """Write a file to the cache, after making room, when there is one and it can hold the file."""
        if self.cache_dir is None or len(content) > self.cache_bytes:
            return
        with self._lock:
            if self._held is None:
                self.cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._held = sum(size for _, size, _ in self._files())
            if self._held + len(content) > self.cache_bytes:
                self._make_room(len(content))
            path = self._file(image)
            path.parent.mkdir(exist_ok=True, mode=0o700)
            atomic_write(path, content)
            self._held += len(content)

    def _make_room(self, size: int) -> None:
        assert self.cache_dir is not None
        assert self._held is not None
        oldest = sorted(self._files())
        self._held = sum(there for _, there, _ in oldest)  # others may have written and removed files
        for _, there, path in oldest:
            # a tenth more than is needed, so that the folder is not listed for every file
            if self._held + size <= self.cache_bytes - self.cache_bytes // 10:
                return
            self._held -= there
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Modification time, size and path of every file that is kept."""
        assert self.cache_dir is not None
        for path in self.cache_dir.glob("*/*.dcm"):
            try:
                found = path.stat()
            except FileNotFoundError:  # removed by another process meanwhile
                continue
            yield found.st_mtime_ns, found.st_size, path

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        del state["_lock"], state["_ahead"], state["_threads"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _ahead={}, _threads=None)
