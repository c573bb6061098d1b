"""Broken files by the thousand: each ends as a picture or as a row with a reason, and the workers stay as they were.

The long tier is ``pytest -m slow tests/data/test_fuzzed_files.py``: 10,000 mutations over every collected file.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from candor_monai.data.codecs import JPEG_BASELINE, JPEG_LS, RLE
from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.decoded_image import REASONS
from candor_monai.data.decoding import DecodeOptions, decode
from candor_monai.utils.errors import DecodeError
from tests.data.dicom_corpus import corruptions, deflated, dicom_bytes, look_up, mutated, ramp, rle_frame
from tests.support import SHARED

# Sure signs that a file, not the machine, is to blame.
ALLOWED = set(REASONS) - {"timeout", "killed", "memory", "failed", "no_codec", "vanished", "changed", "unreadable"}


def written() -> dict[str, bytes]:
    """Valid files of every kind, small."""
    import jpeg_ls

    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (24, 20), dtype=np.uint8)
    wide = random.integers(0, 4096, (24, 20)).astype(np.uint16)
    colour = random.integers(0, 256, (24, 20, 3), dtype=np.uint8)

    def saved(pixels: np.ndarray, kind: str) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()

    files = {
        "grey.png": saved(grey, "PNG"),
        "wide.png": saved(wide, "PNG"),
        "colour.png": saved(colour, "PNG"),
        "grey.jpg": saved(grey, "JPEG"),
        "colour.jpg": saved(colour, "JPEG"),
        "wide.tif": saved(wide, "TIFF"),
        "grey.nii": nibabel.Nifti1Image(grey.T, np.eye(4)).to_bytes(),
        "wide.nii.gz": gzip.compress(nibabel.Nifti1Image(wide.T.astype(np.float32), np.eye(4)).to_bytes(), mtime=0),
        "native.dcm": dicom_bytes(wide, BitsStored=12, WindowCenter="2048", WindowWidth="4096"),
        "tables.dcm": dicom_bytes(wide, VOILUTSequence=look_up(np.arange(4096), bits=12)),
        "deflated.dcm": deflated(dicom_bytes(wide)),
        "jpeg.dcm": dicom_bytes(grey, syntax=JPEG_BASELINE, frames=[saved(grey, "JPEG")]),
        "jpeg_ls.dcm": dicom_bytes(grey, syntax=JPEG_LS[0], frames=[bytes(jpeg_ls.encode(grey).tobytes())]),
        "rle.dcm": dicom_bytes(wide, syntax=RLE, BitsStored=12, frames=[rle_frame(wide)]),
        "bare.dcm": dicom_bytes(ramp(), preamble=False),
    }
    return files


@cache
def valid(limit: int) -> dict[str, bytes]:
    """The written files, and the collected DICOM files of at most ``limit`` bytes that load (a frame chosen)."""
    files = written()
    for path in sorted((SHARED / "dicom").glob("*")) if SHARED.is_dir() else ():
        if path.stat().st_size <= limit and path.suffix != ".csv":
            try:
                decode(path, DecodeOptions(frame=0))
            except DecodeError:
                continue
            files[path.name] = path.read_bytes()
    return files


def outcomes(cases: Iterator[tuple[str, bytes]], memory: list[int] | None = None) -> Counter[str]:
    """Reasons (or ``ok``) of many files, each checked; ``memory`` gets the workers' resident MiB now and then."""
    found: Counter[str] = Counter()
    names: list[str] = []

    def items() -> Iterator[tuple[int, bytes]]:
        for index, (name, data) in enumerate(cases):
            names.append(name)
            yield index, data

    with DecodePool(workers=2, size=32, seconds=30, options=DecodeOptions(frame=0)) as pool:
        for index, pixels, meta, _ in pool.map(items()):
            if isinstance(pixels, DecodeError):
                assert pixels.reason in ALLOWED, f"{names[index]}: {pixels.reason}: {pixels}"
                assert str(pixels)
                found[pixels.reason] += 1
            else:
                assert meta is not None
                assert meta.stored_minimum < meta.stored_maximum, names[index]
                found["ok"] += 1
            if memory is not None and index % 500 == 499:
                pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pool.pids()]
                memory.append(max(pages) * 4096 >> 20)
    assert sum(found.values()) == len(names)
    return found


def test_the_files_themselves_load():
    files = valid(200_000)
    assert outcomes(iter(files.items())) == {"ok": len(files)}


def test_twelve_corruptions_of_each():
    files = valid(200_000)
    found = outcomes(
        (f"{name} {kind}", broken) for name, data in files.items() for kind, broken in corruptions(data).items()
    )
    assert sum(found.values()) == 12 * len(files)
    assert found["empty_file"] == len(files)
    assert found["truncated"] > len(files) / 2


@pytest.mark.parametrize("first", [0, 100_000])
def test_a_sample_of_mutations(first: int):
    files = list(valid(50_000).items())
    cases = (
        (f"{files[i % len(files)][0]} seed {i}", mutated(files[i % len(files)][1], i))
        for i in range(first, first + 2000)
    )
    found = outcomes(cases)
    assert found["ok"] > 200
    assert len(found) > 5


@pytest.mark.slow
def test_ten_thousand_mutations_in_flat_memory():
    files = list(valid(10_000_000).items())
    cases = ((f"{files[i % len(files)][0]} seed {i}", mutated(files[i % len(files)][1], i)) for i in range(10_000))
    memory: list[int] = []
    found = outcomes(cases, memory)
    print(found, memory)
    half = len(memory) // 2
    # Medians: a sample also holds the image that is being decoded, and some are large.
    assert np.median(memory[half:]) <= 1.25 * np.median(memory[:half]) + 16
