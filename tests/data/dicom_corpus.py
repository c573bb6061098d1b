"""DICOM files written for the tests: what the collected real files lack, and broken ones.

Pixels are small and asymmetric, headers are made up. Works with pydicom 2.4 and 3.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

DX = "1.2.840.10008.5.1.4.1.1.1.1"
SECRET = "S3CR3T"


def ramp(rows: int = 6, columns: int = 4, top: int = 4095, dtype: Any = np.uint16) -> np.ndarray:
    """Values rising along the rows, brightest at the bottom right."""
    return np.linspace(0, top, rows * columns).astype(dtype).reshape(rows, columns)


def dicom_bytes(
    pixels: np.ndarray | None,
    *,
    syntax: str = ExplicitVRLittleEndian,
    photometric: str = "MONOCHROME2",
    frames: list[bytes] | None = None,
    without: tuple[str, ...] = (),
    secrets: bool = False,
    preamble: bool = True,
    **attributes: Any,
) -> bytes:
    """A DICOM file.

    Args:
        pixels: (rows, columns[, 3]) stored values, or None for a file without pixels.
        syntax: transfer syntax.
        photometric: photometric interpretation.
        frames: compressed frames, put in place of the pixels' own bytes.
        without: keywords left out.
        secrets: fill the patient's and other text attributes with :data:`SECRET`.
        preamble: False writes a bare data set without file meta information.
        attributes: further attributes or replacements.
    """
    meta = FileMetaDataset()
    meta.FileMetaInformationGroupLength = 0  # filled when written
    meta.MediaStorageSOPClassUID = DX
    meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    meta.TransferSyntaxUID = syntax
    dataset = FileDataset(
        "",
        {},
        file_meta=meta,
        preamble=bytes(128),
        is_implicit_VR=syntax == ImplicitVRLittleEndian,
        is_little_endian=syntax != ExplicitVRBigEndian,
    )
    dataset.SOPClassUID = DX
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.Modality = "DX"
    if secrets:
        dataset.PatientName = f"{SECRET}^Name"
        dataset.PatientID = f"{SECRET}-id"
        dataset.StudyDescription = f"{SECRET} description"
        dataset.InstitutionName = f"{SECRET} hospital"
        dataset.StudyDate = "19870605"
        dataset.WindowCenterWidthExplanation = f"{SECRET} window"
        dataset.RescaleType = SECRET
    if pixels is not None:
        bits = pixels.dtype.itemsize * 8
        dataset.Rows, dataset.Columns = pixels.shape[:2]
        dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
        if pixels.ndim == 3:
            dataset.PlanarConfiguration = 0
        dataset.PhotometricInterpretation = photometric
        dataset.BitsAllocated = bits
        dataset.BitsStored = attributes.get("BitsStored", bits)
        dataset.HighBit = dataset.BitsStored - 1
        dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
        big = syntax == ExplicitVRBigEndian
        raw = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")).tobytes()
        dataset.PixelData = raw + b"\0" * (len(raw) % 2)
        dataset["PixelData"].VR = "OW" if bits > 8 else "OB"
        if frames is not None:
            dataset.PixelData = encapsulate(frames)
            dataset["PixelData"].VR = "OB"
            dataset["PixelData"].is_undefined_length = True
    with warnings.catch_warnings():  # pydicom warns of values that are wrong on purpose
        warnings.simplefilter("ignore")
        for keyword, value in attributes.items():
            setattr(dataset, keyword, value)
    for keyword in without:
        if keyword == "TransferSyntaxUID":
            continue
        delattr(dataset, keyword)
    return _written(dataset, preamble, "TransferSyntaxUID" not in without)


def _written(dataset: FileDataset, preamble: bool, with_syntax: bool) -> bytes:
    buffer = io.BytesIO()
    dataset.save_as(buffer)
    data = buffer.getvalue()
    start = 144 + struct.unpack_from("<I", data, 140)[0]
    if not preamble:
        return data[start:]
    if not with_syntax:
        element = b"\x02\x00\x02\x00UI" + struct.pack("<H", len(DX) + len(DX) % 2) + DX.encode() + b"\0" * (len(DX) % 2)
        group = b"\x02\x00\x00\x00UL" + struct.pack("<HI", 4, len(element))
        return bytes(128) + b"DICM" + group + element + data[start:]
    return data


def rle_frame(pixels: np.ndarray) -> bytes:
    """Pixels as an RLE frame: one segment of literal runs a byte plane, most significant first."""
    planes = [pixels] if pixels.ndim == 2 else [pixels[..., i] for i in range(3)]
    segments = []
    for plane in planes:
        raw = plane.astype(plane.dtype.newbyteorder(">")).tobytes()
        size = plane.dtype.itemsize
        for byte in range(size):
            data = raw[byte::size]
            runs = b"".join(
                bytes([len(part) - 1]) + part for part in (data[i : i + 128] for i in range(0, len(data), 128))
            )
            segments.append(runs + b"\0" * (len(runs) % 2))
    offsets = np.cumsum([64, *map(len, segments)])[:-1]
    header = struct.pack("<I", len(segments)) + b"".join(struct.pack("<I", int(o)) for o in offsets)
    return header.ljust(64, b"\0") + b"".join(segments)


def look_up(entries: list[int] | np.ndarray, first: int = 0, bits: int = 16, packed: bool = False) -> Sequence:
    """A modality or VOI LUT sequence of one table."""
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(entries) % 65536, first % 65536, bits])
    item.ModalityLUTType = "US"
    if packed:
        item.add_new("LUTData", "OW", np.asarray(entries, dtype="<u2").tobytes())
    else:
        item.add_new("LUTData", "US", [int(entry) for entry in entries])
    return Sequence([item])


def functional_groups(*windows: tuple[float, float]) -> Sequence:
    """Per-frame functional groups with one window a frame."""
    groups = []
    for center, width in windows:
        window = Dataset()
        window.WindowCenter, window.WindowWidth = center, width
        group = Dataset()
        group.FrameVOILUTSequence = Sequence([window])
        groups.append(group)
    return Sequence(groups)


def nested_sequences(depth: int) -> bytes:
    """A file whose header holds sequences of undefined length, one in another."""
    inner = b""
    for _ in range(depth):
        item = b"\xfe\xff\x00\xe0\xff\xff\xff\xff" + inner + b"\xfe\xff\x0d\xe0\x00\x00\x00\x00"
        inner = b"\x40\x00\x75\x02SQ\0\0\xff\xff\xff\xff" + item + b"\xfe\xff\xdd\xe0\x00\x00\x00\x00"
    data = dicom_bytes(ramp())
    start = data.index(b"\xe0\x7f\x10\x00")
    return data[:start] + inner + data[start:]


def deflate_bomb(inflated: int = 1 << 30) -> bytes:
    """A small deflated file that inflates to a header of ``inflated`` bytes."""
    data = dicom_bytes(ramp())
    start = 144 + struct.unpack_from("<I", data, 140)[0]
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    head = b"\x08\x00\x80\x00OB\0\0" + struct.pack("<I", inflated)
    body = [deflater.compress(head)]
    zeros = bytes(1 << 20)
    body += [deflater.compress(zeros) for _ in range(inflated >> 20)]
    body += [deflater.compress(data[start:]), deflater.flush()]
    return deflated_meta() + b"".join(body)


def deflated(data: bytes) -> bytes:
    """An explicit little-endian file as a deflated one."""
    start = 144 + struct.unpack_from("<I", data, 140)[0]
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflated_meta() + deflater.compress(data[start:]) + deflater.flush()


def deflated_meta() -> bytes:
    """Preamble and file meta information of a deflated file."""
    uid = b"1.2.840.10008.1.2.1.99"
    element = b"\x02\x00\x10\x00UI" + struct.pack("<H", len(uid)) + uid
    group = b"\x02\x00\x00\x00UL" + struct.pack("<HI", 4, len(element))
    return bytes(128) + b"DICM" + group + element


def corruptions(data: bytes, seed: int = 0) -> dict[str, bytes]:
    """Twelve broken versions of a file."""
    random = np.random.default_rng([seed, len(data)])
    middle = len(data) // 2
    pixels = data.rfind(b"\xe0\x7f\x10\x00")
    pixels = middle if pixels < 0 else pixels
    noisy = bytearray(data)
    for place in random.integers(min(132, len(data) - 1), len(data), 32):
        noisy[place] ^= int(random.integers(1, 256))

    def patched(place: int, value: bytes) -> bytes:
        return data[:place] + value + data[place + len(value) :]

    rows = data.find(b"\x28\x00\x10\x00")
    bits = data.find(b"\x28\x00\x00\x01")
    return {
        "empty": b"",
        "preamble_only": data[:132],
        "cut_in_header": data[: max(pixels // 2, 1)],
        "cut_at_pixels": data[:pixels],
        "cut_in_pixels": data[: pixels + (len(data) - pixels) // 2],
        "cut_last_bytes": data[:-8],
        "bit_flips": bytes(noisy),
        "zeroed_tail": data[:middle] + bytes(len(data) - middle),
        "wrong_length": patched(pixels + 8, b"\xf0\xff\xff\x7f"),
        "absurd_rows": patched(rows + 8, b"\xff\xff") if rows > 0 else data[: middle // 2],
        "wrong_bits": patched(bits + 8, b"\x07\x00") if bits > 0 else data[: middle // 3],
        "no_magic": b"\0" * 132 + data[132:],
    }


def mutated(data: bytes, seed: int) -> bytes:
    """A seeded mutation of a file: flips, overwritten runs, planted lengths, deletions, insertions, cuts."""
    random = np.random.default_rng(seed)
    result = bytearray(data)
    for _ in range(1 if random.random() < 0.6 else int(random.integers(2, 6))):
        if len(result) < 16:
            break
        # Most of what a decoder trusts stands at the start.
        reach = len(result) if random.random() < 0.6 else min(len(result), 2048)
        place = int(random.integers(0, reach))
        length = int(random.integers(1, 64))
        kind = random.choice(7, p=[0.4, 0.2, 0.05, 0.05, 0.2, 0.05, 0.05])
        if kind == 0:
            result[place] ^= 1 << int(random.integers(0, 8))
        elif kind == 1:
            result[place : place + length] = random.integers(0, 256, length, dtype=np.uint8).tobytes()
        elif kind == 2:
            del result[place : place + length]
        elif kind == 3:
            result[place:place] = random.integers(0, 256, length, dtype=np.uint8).tobytes()
        elif kind == 4:
            planted = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\xfe\xff\xdd\xe0", b"\x01\0\0\0"]
            result[place : place + 4] = planted[int(random.integers(0, len(planted)))]
        elif kind == 5:
            result[place:place] = result[place : place + length * 16]
        else:
            del result[place:]
    return bytes(result)
