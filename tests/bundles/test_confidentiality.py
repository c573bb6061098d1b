"""Nothing that identifies a patient leaves the process: a cohort whose headers and table are full of marked secrets.

What may appear: image ids and paths relative to the dataset folder (the user's own names), the values of the covariates
that images are matched by, finding names, and what describes pixels.
"""

import base64
import contextlib
import logging
import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pydicom
import pytest
from pydicom.datadict import DicomDictionary, keyword_for_tag
from pydicom.dataset import FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian

from candor_monai.handlers import results_saver
from candor_monai.visualize.results_files import read_results

from .small_cohort import run_bundle, table_options, write_small_cohort

IMAGES, PATIENTS = 24, 12
# Marks of secrets: words in texts, and digits where only digits may stand.
WORD, DATE, TIME, DIGITS = "zebrafink", "19370719", "235347.112233", "31415926535"
MARKS = (WORD, DATE, TIME, DIGITS)
TEXT_VR = ("PN", "LO", "SH", "LT", "ST", "UT", "UC", "AE")
VALUES = {"DA": DATE, "TM": TIME, "DT": DATE + TIME, "UI": f"1.2.{DIGITS}", "AS": "097Y", "IS": DIGITS[:9]}
GROUPS = (0x0008, 0x0010, 0x0012, 0x0018, 0x0020, 0x0032, 0x0038, 0x0040, 0x0088)
# What an image could not be shown or read without.
KEPT = {"SOPClassUID", "NumberOfFrames", "Rows", "Columns", "ReferencedFrameNumber"}


def dicom(path, number, rng):
    """A radiograph whose every text, name, date and UID is marked."""
    dataset = pydicom.Dataset()
    for tag, (vr, _, _, retired, keyword) in DicomDictionary.items():
        if (tag >> 16) not in GROUPS or not keyword or retired or keyword in KEPT:
            continue
        if vr in TEXT_VR:
            value = f"{WORD}^{number}" if vr == "PN" else f"{WORD} {number}"[: 16 if vr in ("SH", "AE") else 60]
        elif vr in VALUES and vr != "IS":
            value = VALUES[vr]
        else:
            continue
        dataset.add_new(tag, vr, value)
    dataset.PatientBirthDate, dataset.PatientAge, dataset.AccessionNumber = DATE, "097Y", f"{WORD}acc{number}"
    dataset.PatientID, dataset.PatientName = f"{WORD}-{number % PATIENTS}", f"{WORD}^Karl"
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.1.1", f"1.2.{DIGITS}.{number}"
    item = pydicom.Dataset()
    item.add_new("CodeMeaning", "LO", f"{WORD} in a sequence")
    dataset.ProcedureCodeSequence = Sequence([item])
    block = dataset.private_block(0x0099, f"{WORD} private", create=True)
    block.add_new(0x01, "LO", f"{WORD} behind a private tag")
    dataset.Modality, dataset.ViewPosition = "DX", "AP" if number % 2 else "PA"
    dataset.PatientSex = "O"
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel, dataset.PixelRepresentation = 48, 40, 1, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.PixelData = rng.integers(0, 256, (48, 40), dtype=np.uint8).tobytes()
    dataset["PixelData"].VR = "OB"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.SourceApplicationEntityTitle = WORD
    dataset.preamble = WORD.encode().ljust(128, b"\0")
    save(dataset, path)


def save(dataset, path):
    with contextlib.suppress(TypeError):
        dataset.save_as(path, enforce_file_format=True)
        return
    dataset.is_implicit_VR, dataset.is_little_endian = False, True
    dataset.save_as(path, write_like_original=False)


def damage(path, keyword, value):
    """Put a marked text where a header needs something else."""
    dataset = pydicom.dcmread(path)
    dataset[keyword]._value = value
    dataset[keyword].VR = "LO"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydicom.config.settings, "writing_validation_mode", pydicom.config.IGNORE)
        save(dataset, path)


@pytest.fixture(autouse=True)
def caches_of_its_own(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for number in range(IMAGES):
        name = f"image{number:02d}.dcm"
        dicom(folder / name, number, rng)
        patient = f"{WORD}-{number % PATIENTS}"
        rows.append([name, patient, int(number % 3 == 0), int(number % 4 == 0), f"{WORD} Karl", DATE, f"{WORD} report"])
    columns = ["image", "patient_id", "Edema", "Mass", "name", "birth_date", "report"]
    whole = (folder / "image00.dcm").read_bytes()
    (folder / "image20.dcm").write_bytes(whole[: len(whole) - 1000])  # too few pixels
    (folder / "image21.dcm").write_bytes(whole[:3000])  # cut inside the header
    damage(folder / "image22.dcm", "PhotometricInterpretation", WORD)
    damage(folder / "image23.dcm", "BitsStored", WORD)
    rows.append([*rows[5][:1], f"{WORD}-other", *rows[5][2:]])  # two rows that disagree about the patient
    rows.append(["absent.dcm", *rows[6][1:]])
    pd.DataFrame(rows, columns=columns).to_csv(folder / "labels.csv", index=False)
    return folder


def as_read(path):
    """All that a file says: its bytes and, where they are compressed, what is inside."""
    parts = [path.read_bytes()]
    if path.suffix == ".parquet":
        parts += [*texts_of(pq.read_table(path)), str(pq.read_schema(path)).encode()]
    elif path.suffix == ".arrow":
        parts += texts_of(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            parts += [name.encode() + arrays[name].tobytes() for name in arrays.files]
    return parts


def texts_of(table):
    return [
        str(column.to_pylist()).encode() for column in table.columns if not pa.types.is_fixed_size_list(column.type)
    ]


def secrets_in(content):
    lower = content.lower()
    forms = {mark: (mark.encode(), mark.encode("utf-16-le"), base64.b64encode(mark.encode())[:-4]) for mark in MARKS}
    return [mark for mark, spelt in forms.items() if any(form.lower() in lower for form in spelt)]


def assert_clean(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert secrets_in(str(path.relative_to(folder)).encode()) == [], path
        for part in as_read(path):
            assert secrets_in(part) == [], path


def test_secrets_are_found_where_they_are(cohort, tmp_path):
    """The search itself: it finds each mark in the files of the cohort and in each kind of output."""
    assert secrets_in((cohort / "image03.dcm").read_bytes()) == list(MARKS)
    assert secrets_in((cohort / "labels.csv").read_bytes()) == [WORD, DATE]
    pq.write_table(pa.table({"a": [f"x{WORD.upper()}"] * 100}), tmp_path / "a.parquet", compression="zstd")
    np.savez_compressed(tmp_path / "a.npz", a=np.frombuffer(WORD.encode() * 9, np.uint8))
    for name in ("a.parquet", "a.npz"):
        assert any(secrets_in(part) for part in as_read(tmp_path / name)), name


def test_no_secret_in_any_output_log_or_message(cohort, tmp_path, monkeypatch, caplog, capfd):
    key = tmp_path / "key" / "pseudonym.key"
    monkeypatch.setenv("CANDOR_MONAI_KEY_FILE", str(key))
    caplog.set_level(logging.DEBUG)
    tracking = {}
    with contextlib.suppress(ImportError):
        import mlflow  # noqa: F401

        tracking = {"tracking": "mlflow", "tracking_uri": f"sqlite:///{tmp_path}/out/mlflow.db", "run_name": "small"}
    output = tmp_path / "out" / "eval"
    output.parent.mkdir()
    monkeypatch.chdir(output.parent)  # where mlflow leaves its artifacts
    options = table_options(cohort, output, batch_size=8, k=2)
    run_bundle("doctor", **options)
    with monkeypatch.context() as patch:  # what a run that is killed while it scores would leave is looked at too
        patch.setattr(results_saver, "forget_scored", lambda folder: None)
        run_bundle("candor_eval", **tracking, **options)
    assert list((output / "scored").glob("*.npz"))
    rejected = pd.read_csv(output / "rejected.csv").set_index("image_id")["reason"].to_dict()
    assert rejected["image20.dcm"] == "truncated"
    assert rejected["image05.dcm"] == "contradictory_rows"
    assert {"image21.dcm", "image22.dcm", "image23.dcm", "absent.dcm"} <= set(rejected)
    results = read_results(output / "results.json")
    assert results["accounting"]["scored"] == IMAGES - 5
    assert (output / "report.html").read_text().count("data:image/") > 0, "the report shows images"
    assert pq.read_table(output / "queries.parquet")["patient"].null_count == 0
    assert not tracking or (output.parent / "mlflow.db").stat().st_size > 10_000
    assert_clean(output.parent)
    captured = capfd.readouterr()
    for text in (captured.out, captured.err, caplog.text, *(str(r.args) + str(r.exc_info) for r in caplog.records)):
        assert secrets_in(text.encode()) == []
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "change",
    [
        {"findings": ["Edema", "Mas"]},
        {"match_on": ["PatientNam"]},
        {"patient_column": "patent_id"},
        {"labels": "missing.csv"},
        {"join_on": "accession_number"},
        {"bins": {"PatientName": [0, 1]}, "match_on": ["PatientName"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_users_mistake_tells_no_secret(change, cohort, tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.setenv("CANDOR_MONAI_KEY_FILE", str(tmp_path / "pseudonym.key"))
    caplog.set_level(logging.DEBUG)
    bins = {"cohort_options": {"bins": change["bins"]}} if "bins" in change else {}
    change = {name: value for name, value in change.items() if name != "bins"}
    with pytest.raises(SystemExit) as refused:
        run_bundle("doctor", **table_options(cohort, tmp_path / "eval", **change, **bins))
    captured = capfd.readouterr()
    chain, error = [], refused.value
    while error is not None:
        chain.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    for text in (*chain, captured.out, captured.err, caplog.text):
        assert secrets_in(text.encode()) == []


def test_the_index_of_headers_is_for_its_owner_alone(cohort, tmp_path, monkeypatch):
    """The one place that keeps header values lies with the user's caches, outside of the output folder."""
    monkeypatch.setenv("CANDOR_MONAI_KEY_FILE", str(tmp_path / "pseudonym.key"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    run_bundle("doctor", **table_options(cohort, tmp_path / "eval"))
    shards = list((tmp_path / "caches").rglob("*.parquet"))
    assert shards
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in shards)
    assert_clean(tmp_path / "eval")


def test_a_key_that_others_can_read_is_refused(cohort, tmp_path, monkeypatch):
    key = tmp_path / "pseudonym.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o640)
    monkeypatch.setenv("CANDOR_MONAI_KEY_FILE", str(key))
    with pytest.raises(SystemExit, match="chmod 600"):
        run_bundle("candor_eval", **table_options(cohort, tmp_path / "eval", k=2, probe=False, write_report=False))


def test_the_words_that_pydicom_knows_are_covered():
    """Patient name, id, birth date and the like are among the elements that are filled."""
    names = {keyword_for_tag(tag) for tag in DicomDictionary if (tag >> 16) in GROUPS}
    assert names >= {"PatientName", "PatientID", "PatientBirthDate", "AccessionNumber", "InstitutionName", "StudyDate"}
    assert names >= {
        "PatientComments",
        "OtherPatientNames",
        "ReferringPhysicianName",
        "StudyInstanceUID",
        "OperatorsName",
    }


def test_pooled_cohorts_that_lie_elsewhere_leave_no_folder_in_the_outputs(tmp_path):
    home = tmp_path / "home_of_somebody"
    parts = []
    for label in ("north", "south"):
        folder = write_small_cohort(home / f"{label}_data")
        (folder / "images" / "003.png").write_bytes(b"not an image")
        part = {"cohort": "table", "label": label, "dataset_dir": str(folder), "labels": "labels.csv"}
        parts.append({**part, "findings": ["Edema"], "patient_column": "patient_id", "match_on": ["view"]})
    (home / "study").mkdir()
    options = {"cohort": "pooled", "task": "chest", "dataset_dir": str(home / "study"), "encoder": "blind"}
    options |= {"cohort_options": {"cohorts": parts}, "output_dir": str(tmp_path / "eval"), "probe": False}
    run_bundle("candor_eval", **options, permutations=19, resamples=50, progress=False, batch_size=16)
    rejected = pd.read_csv(tmp_path / "eval" / "rejected.csv")
    assert rejected["file"].tolist() == ["north/images/003.png", "south/images/003.png"]
    for path in (tmp_path / "eval").rglob("*"):
        if path.is_file():
            assert home.name.encode() not in path.read_bytes(), path
