"""What bounded decoding costs: images per second of one worker beside the same decoding in this process.

Run: ``python -m tests.benchmarks.bench_decoding [rounds]``. Both are measured in turn, several times, in one run; the
best time of each counts. On a busy machine the processor time tells more than the wall time.
Files: the real PNGs of ``../shared/data/nih_cxr`` where they are, as PNG and written as DICOM
(headers made), and one larger DICOM radiograph written by the test corpus.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.decoding import canonical, decode
from tests.data.dicom_corpus import dicom_bytes
from tests.support import SHARED

SIZE = 224


def real_images(folder: Path) -> list[Path]:
    """Up to 611 radiographs, or as many made ones."""
    found = sorted((SHARED / "nih_cxr" / "images").glob("*.png"))
    if found:
        return found
    random = np.random.default_rng(0)
    for i in range(300):
        rough = Image.fromarray(random.integers(0, 256, (32, 32), dtype=np.uint8))
        rough.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return sorted(folder.glob("*.png"))


def as_dicom(paths: list[Path], folder: Path) -> list[Path]:
    """The same pixels in DICOM files."""
    written = []
    for path in paths:
        target = folder / f"{path.stem}.dcm"
        target.write_bytes(dicom_bytes(np.asarray(Image.open(path).convert("L"))))
        written.append(target)
    return written


def large_dicom(folder: Path, count: int = 40) -> list[Path]:
    """12-bit radiographs of 2,000 × 2,400 pixels."""
    random = np.random.default_rng(1)
    rough = Image.fromarray(random.integers(0, 256, (60, 50), dtype=np.uint8)).resize((2000, 2400), 2)
    pixels = np.asarray(rough).astype(np.uint16) * 16
    paths = []
    for i in range(count):
        (folder / f"large{i}.dcm").write_bytes(
            dicom_bytes(pixels, BitsStored=12, WindowCenter="2048", WindowWidth="4096", photometric="MONOCHROME1")
        )
        paths.append(folder / f"large{i}.dcm")
    return paths


def timed(run: Callable[[], object], pids: Callable[[], list[int]] = list) -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process and of ``pids``."""
    begin, cpu = time.perf_counter(), time.process_time() + sum(map(processor_seconds, pids()))
    run()
    return time.perf_counter() - begin, time.process_time() + sum(map(processor_seconds, pids())) - cpu


def processor_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(paths: list[Path], rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best wall and processor seconds in this process, with one worker, and with two."""
    here: list[tuple[float, float]] = []
    pooled: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        here.append(timed(lambda: [canonical(decode(path), SIZE) for path in paths]))
        for workers, times in pooled.items():
            with DecodePool(workers=workers, size=SIZE) as pool:
                list(pool.map(enumerate(paths[:8])))  # start and warm up
                times.append(timed(lambda pool=pool: list(pool.map(enumerate(paths))), pool.pids))  # type: ignore[misc]
    return np.min(here, axis=0), np.min(pooled[1], axis=0), np.min(pooled[2], axis=0)


def main(rounds: int = 5) -> None:
    """Print a table; fail when one worker loses more than 5 %."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        png = real_images(folder)
        kinds = {"PNG 256": png, "DICOM 256": as_dicom(png, folder), "DICOM 2400 x 2000": large_dicom(folder)}
        print(
            f"{'files':18} {'here/s':>8} {'1 worker/s':>11} {'2 workers/s':>12} {'1 worker / here':>16}"
            f" {'processor time, here / 1 worker':>33}"
        )
        worst = 1.0
        for name, paths in kinds.items():
            here, one, two = measure(paths, rounds)
            n = len(paths)
            wall, cpu = here / one
            print(f"{name:18} {n / here[0]:8.0f} {n / one[0]:11.0f} {n / two[0]:12.0f} {wall:16.3f} {cpu:33.3f}")
            worst = min(worst, wall)
    if worst < 0.95:
        sys.exit(f"one bounded worker reaches {worst:.1%} of decoding in the process; 95 % is the target")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
