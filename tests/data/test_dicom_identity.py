"""Which object a file is: every transfer syntax, files whose two statements differ, and files that say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from candor_monai.data.dicom_identity import stated_instance
from tests.data.dicom_corpus import dicom_bytes, mutated
from tests.data.test_header_index import dicom

UID = "1.2.826.0.1.3680043.8.498.77"


def test_the_data_set_comes_before_the_meta_information(tmp_path):
    file = dicom(tmp_path / "a.dcm", SOPInstanceUID=UID).read_bytes()  # its meta information names another one
    assert stated_instance(file) == UID
    sequence = b"\x08\x00\x06\x00SQ\0\0\xff\xff\xff\xff"  # of unknown length: what follows cannot be found
    start = file.index(b"\x08\x00\x16\x00UI")
    assert stated_instance(file[:start] + sequence + file[start:]) not in (None, UID)


def test_transfer_syntaxes():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for syntax in (ImplicitVRLittleEndian, ExplicitVRLittleEndian):
        assert stated_instance(dicom_bytes(pixels, syntax=syntax, SOPInstanceUID=UID, Modality="DX")) == UID
    meta = b"\x02\x00\x03\x00UI\x04\x001.4\0"
    for syntax in (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.2\0"):
        uid = b"\x02\x00\x10\x00UI" + bytes([len(syntax), 0]) + syntax
        assert stated_instance(bytes(128) + b"DICM" + meta + uid + b"\x08\x00\x18\x00UI\x04\x001.5\0" * 2) == "1.4"


@pytest.mark.parametrize("file", [b"", bytes(132), bytes(128) + b"DICM" + b"\x02\x00", bytes(1 << 20)])
def test_files_that_say_nothing(file):
    assert stated_instance(file) is None


def test_broken_files_end(tmp_path):
    file = dicom(tmp_path / "a.dcm", SOPInstanceUID=UID).read_bytes()
    found = [stated_instance(mutated(file, seed)) for seed in range(300)]
    assert UID in found
    assert all(uid is None or len(uid) <= 64 for uid in found)
