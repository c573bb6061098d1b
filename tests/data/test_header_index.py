"""The header index: what it reads, what it refuses, what it remembers, what it cannot be hurt by."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from candor_monai.data import header_pool
from candor_monai.data.header_index import header_index
from candor_monai.data.header_pool import read_headers
from candor_monai.data.header_reading import HeaderError, read_header
from candor_monai.utils import UserError
from tests.support import SHARED, needs_shared


def dicom(path: Path, pixels: np.ndarray | None = None, **attributes: object) -> Path:
    """A radiograph of the pixels given (8 bit), or of 2 × 3."""
    pixels = np.arange(6, dtype=np.uint16).reshape(2, 3) if pixels is None else pixels
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    ds.SOPClassUID, ds.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    ds.Modality, ds.Rows, ds.Columns = "DX", *pixels.shape
    ds.BitsAllocated = ds.BitsStored = 8 * pixels.itemsize
    ds.HighBit, ds.PixelRepresentation, ds.SamplesPerPixel = ds.BitsStored - 1, 0, 1
    ds.PhotometricInterpretation = "MONOCHROME2"
    for keyword, value in attributes.items():
        setattr(ds, keyword, value)
    if pydicom.__version__ < "3":
        ds.is_little_endian, ds.is_implicit_VR = True, False
    ds.PixelData = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path)
    return path


def test_one_header_by_hand(tmp_path):
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "272479007", "SCT", "postero-anterior"
    path = dicom(tmp_path / "a.dcm", ViewCodeSequence=[code], KVP="90", PatientID="007", PixelSpacing=[0.1, 0.2])
    header = read_header(str(path), ["Modality", "KVP", "PatientID", "PixelSpacing", "StationName"])
    assert header == {
        "Modality": "DX",
        "KVP": "90",
        "PatientID": "007",
        "PixelSpacing": "0.1\\0.2",
        "StationName": "",
        "ViewCode": "272479007",
        "ViewCodeMeaning": "postero-anterior",
        "TransferSyntaxUID": "1.2.840.10008.1.2.1",
    }


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.nii", "a.nii.gz"])
def test_an_image_of_another_format_has_no_header(tmp_path, name):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    if ".nii" in name:
        nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), tmp_path / name)
    else:
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / name).rename(tmp_path / "a.dcm")
    ((_, answer),) = read_headers([str(tmp_path / "a.dcm")], ["Modality"], memory_bytes=1 << 29)
    assert answer.header == {"Modality": "", "ViewCode": "", "ViewCodeMeaning": "", "TransferSyntaxUID": ""}
    table = header_index(tmp_path, ["a.dcm"], workers=1)
    assert table.loc[0, ["reason", "View", "ViewRule"]].tolist() == ["", "", "missing"]


def deflate_bomb(path: Path) -> Path:
    """A small file whose header inflates to 640 MiB."""
    path = dicom(path)
    raw = path.read_bytes()
    start = raw.index(b"\x08\x00\x16\x00")
    meta = raw[:start].replace(b"1.2.840.10008.1.2.1\x00", b"1.2.840.10008.1.2.1.99")
    length = int.from_bytes(meta[140:144], "little") + 2
    meta = meta[:140] + length.to_bytes(4, "little") + meta[144:]
    at = meta.index(b"1.2.840.10008.1.2.1.99")
    meta = meta[: at - 2] + (22).to_bytes(2, "little") + meta[at:]
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = [squeeze.compress(b"\x09\x00\x10\x10OB\x00\x00" + (40 << 24).to_bytes(4, "little"))]
    body += [squeeze.compress(bytes(1 << 24)) for _ in range(40)]
    path.write_bytes(meta + b"".join(body) + squeeze.flush())
    return path


def nested(path: Path, depth: int = 3000) -> Path:
    """Sequences inside sequences."""
    path = dicom(path)
    raw = path.read_bytes()
    start = raw.index(b"\x08\x00\x16\x00")
    item = b"\x08\x00\x40\x11SQ\x00\x00\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
    path.write_bytes(raw[:start] + item * depth)
    return path


def test_bad_files_cost_one_row_each(tmp_path):
    files = {
        "good": dicom(tmp_path / "good"),
        "empty": tmp_path / "empty",
        "text.dcm": tmp_path / "text.dcm",
        "cut.dcm": dicom(tmp_path / "cut.dcm"),
        "bomb.dcm": deflate_bomb(tmp_path / "bomb.dcm"),
        "nested.dcm": nested(tmp_path / "nested.dcm"),
        "last.dcm": dicom(tmp_path / "last.dcm"),
    }
    files["empty"].write_bytes(b"")
    files["text.dcm"].write_bytes(b"%PDF-1.4 encrypted")
    files["cut.dcm"].write_bytes(files["cut.dcm"].read_bytes()[:140])
    index = header_index(tmp_path, [*files, "absent.dcm"], workers=1, memory_bytes=512 << 20).set_index("file")
    assert index.loc["good", "reason"] == index.loc["last.dcm", "reason"] == ""
    assert index.loc["good", "Modality"] == "DX"
    assert index.loc["empty", "reason"] == index.loc["text.dcm", "reason"] == "not_dicom"
    assert index.loc["bomb.dcm", "reason"] in ("too_large", "malformed", "killed")
    assert index.loc["absent.dcm", "reason"] == "unreadable"
    assert index.loc["cut.dcm", "reason"] in ("malformed", "not_dicom", "unreadable", "")
    assert "/" not in "".join(index["message"])


def test_no_preamble_is_read_and_rubbish_is_not(tmp_path):
    path = dicom(tmp_path / "a.dcm")
    (tmp_path / "b").write_bytes(path.read_bytes()[132:])
    assert read_header(str(tmp_path / "b"))["Modality"] == "DX"
    (tmp_path / "c").write_bytes(b"\x08\x00rubbish that is no element")
    with pytest.raises(HeaderError):
        read_header(str(tmp_path / "c"))


def test_a_process_that_dies_or_hangs_costs_its_file(tmp_path, monkeypatch):
    paths = [str(dicom(tmp_path / f"{i}.dcm")) for i in range(5)]
    helper = tmp_path / "helper.py"
    helper.write_text(
        "import json, os, sys, time\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    for path in json.loads(line)['paths']:\n"
        "        if path.endswith('1.dcm'): os.kill(os.getpid(), 9)\n"
        "        if path.endswith('3.dcm'): time.sleep(60)\n"
        "        print(json.dumps({'header': {}}), flush=True)\n"
    )
    real = header_pool.subprocess.Popen

    def popen(command, **options):
        return real([command[0], str(helper)], **options)

    monkeypatch.setattr(header_pool.subprocess, "Popen", popen)
    answers = dict(read_headers(paths, [], workers=1, seconds=1.0))
    assert [answers[i].reason for i in range(5)] == ["", "killed", "", "timeout", ""]


@pytest.mark.parametrize(
    "garbage", ['{"header": {"Mod', "[]", "null", '{"header": 5}', '{"header": {"Rows": 5}}', "\\0"]
)
def test_an_answer_that_is_none_costs_its_file(tmp_path, monkeypatch, garbage):
    helper = tmp_path / "helper.py"
    helper.write_text(
        "import json, sys\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    for path in json.loads(line)['paths']:\n"
        f"        print({garbage!r} if path.endswith('b') else json.dumps({{'header': {{}}}}), flush=True)\n"
    )
    real = header_pool.subprocess.Popen
    monkeypatch.setattr(header_pool.subprocess, "Popen", lambda command, **o: real([command[0], str(helper)], **o))
    answers = dict(read_headers(["a", "b", "c"], [], workers=1, seconds=20.0))
    assert [answers[i].reason for i in range(3)] == ["", "killed", ""]


def test_altered_bytes_never_stop_the_reading(tmp_path):
    whole = dicom(tmp_path / "whole", SeriesDescription="CHEST PA", KVP="90", PixelSpacing=[0.1, 0.2]).read_bytes()
    chance = np.random.default_rng(0)
    paths = []
    for i in range(150):
        raw = bytearray(whole)
        for place in chance.integers(128, len(raw), size=chance.integers(1, 8)):
            raw[place] = chance.integers(256)
        if i % 3 == 0:
            del raw[chance.integers(132, len(raw)) :]
        path = tmp_path / f"{i}"
        path.write_bytes(raw)
        paths.append(str(path))
    answers = dict(read_headers(paths, memory_bytes=512 << 20, seconds=10))
    assert sorted(answers) == list(range(150))
    for answer in answers.values():
        assert (answer.header is None) == bool(answer.reason)
        assert answer.reason in ("", "malformed", "not_dicom", "unreadable", "too_large")
        assert answer.header is None or all(isinstance(v, str) and len(v) <= 256 for v in answer.header.values())


def test_a_process_that_does_not_start_is_told(tmp_path):
    path = dicom(tmp_path / "a.dcm")
    with pytest.raises(UserError, match="does not start"):
        list(read_headers([str(path)], memory_bytes=1 << 20))


def test_the_process_sees_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("PACS_TOKEN", "secret")
    seen = {}
    real = header_pool.subprocess.Popen

    def popen(command, **options):
        seen.update(options["env"])
        return real(command, **options)

    monkeypatch.setattr(header_pool.subprocess, "Popen", popen)
    assert dict(read_headers([str(dicom(tmp_path / "a.dcm"))], workers=1))[0].header["Modality"] == "DX"
    assert "PACS_TOKEN" not in seen


def test_index_is_kept_and_brought_up_to_date(tmp_path, monkeypatch):
    root, kept = tmp_path / "data", tmp_path / "index"
    files = [f"{i}.dcm" for i in range(6)]
    for name in files:
        dicom(root / name, PatientID=name)
    asked: list[str] = []
    real = read_headers

    def counting(paths, *rest, **options):
        asked.extend(paths)
        return real(paths, *rest, **options)

    monkeypatch.setattr("candor_monai.data.header_index.read_headers", counting)
    monkeypatch.setattr("candor_monai.data.header_index.SHARD", 4)
    first = header_index(root, files, index_dir=kept, workers=1)
    assert len(asked) == 6
    shards = sorted(kept.rglob("*.parquet"))
    assert len(shards) == 2
    assert all(stat.S_IMODE(s.stat().st_mode) == 0o600 for s in shards)
    asked.clear()
    assert header_index(root, files, index_dir=kept).equals(first)
    assert asked == []
    shards[0].unlink()
    dicom(root / "0.dcm", PatientID="changed")
    os.utime(root / "0.dcm", ns=(1, 1))
    again = header_index(root, files, index_dir=kept, workers=1)
    assert again["PatientID"].tolist() == ["changed", *files[1:]]
    assert 1 < len(asked) < 6
    asked.clear()
    header_index(root, files, index_dir=kept)
    assert asked == []


def test_a_torn_shard_is_read_again(tmp_path):
    root, kept = tmp_path / "data", tmp_path / "index"
    dicom(root / "a.dcm", PatientID="p")
    header_index(root, ["a.dcm"], index_dir=kept, workers=1)
    shard = next(kept.rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:100])
    assert header_index(root, ["a.dcm"], index_dir=kept, workers=1)["PatientID"].tolist() == ["p"]


def test_index_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be kept here"):
        header_index(tmp_path, [], index_dir=tmp_path / "file")


@needs_shared
def test_real_collection():
    root = SHARED / "dicom"
    files = sorted(p.name for p in root.iterdir())
    index = header_index(root, files)
    assert index["file"].tolist() == files
    assert set(index.loc[index["reason"] == "not_dicom", "file"]) >= {"manifest.csv", "pydicom__rtstruct.dump"}
    assert (index["reason"] == "").sum() >= 108
    assert index.set_index("file").loc["dwv__gdcm-CR-MONO1-10-chest.dcm", "View"] == "PA"


@pytest.mark.parametrize("reason", ["timeout", "killed", "unreadable"])
def test_what_may_be_read_next_time_is_tried_again(tmp_path, monkeypatch, reason):
    dicom(tmp_path / "a.dcm", PatientID="p")
    (tmp_path / "text.dcm").write_text("no DICOM")
    files, index = ["a.dcm", "text.dcm"], tmp_path / "index"
    with monkeypatch.context() as busy:
        answers = [
            (0, header_pool.HeaderAnswer(None, reason, "busy")),
            (1, header_pool.HeaderAnswer(None, "not_dicom")),
        ]
        busy.setattr("candor_monai.data.header_index.read_headers", lambda *_, **__: iter(answers))
        assert header_index(tmp_path, files, index_dir=index)["reason"].tolist() == [reason, "not_dicom"]
    tried = []

    def read(paths, *more, **how):
        tried.extend(Path(path).name for path in paths)
        return read_headers(paths, *more, **how)

    monkeypatch.setattr("candor_monai.data.header_index.read_headers", read)
    assert header_index(tmp_path, files, index_dir=index)["PatientID"].tolist() == ["p", ""]
    assert tried == ["a.dcm"]
    header_index(tmp_path, files, index_dir=index)
    assert tried == ["a.dcm"]


def test_a_table_in_the_index_that_is_none_of_its_own_is_passed_over(tmp_path):
    dicom(tmp_path / "a.dcm", PatientID="p")
    index = tmp_path / "index"
    header_index(tmp_path, ["a.dcm"], index_dir=index)
    (shard,) = index.rglob("*.parquet")
    pd.DataFrame({"file": ["a.dcm"]}).to_parquet(shard)
    assert header_index(tmp_path, ["a.dcm"], index_dir=index)["PatientID"].tolist() == ["p"]
