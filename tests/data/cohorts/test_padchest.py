"""PadChest: printed lists, literal nan, line breaks in cells, long ids."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
LONG = "216840111366964012819207061112010307142602253_04-014-084"


def row(name, labels, view="PA", folder="0", method="Physician"):
    return {
        "": "0",
        "ImageID": name,
        "ImageDir": folder,
        "StudyID": "20536686640136348236148679891455886468-2",
        "PatientID": "839860488694292331637988235681460987",
        "PatientBirth": "1930.0",
        "PatientSex_DICOM": "nan",
        "ViewPosition_DICOM": "POSTEROANTERIOR",
        "Projection": view,
        "MethodProjection": "Manual review of DICOM fields",
        "Manufacturer_DICOM": "ImagingDynamicsCompanyLtd",
        "BitsStored_DICOM": "12",
        "Report": "dos lineas\ncon salto, y coma",
        "MethodLabel": method,
        "Labels": labels,
        "labelCUIS": "['C0742855' 'C0036439']",
    }


ROWS = [
    row("a.png", "['pulmonary fibrosis', ' Pleural Effusion', '']"),
    row(f"{LONG}.png", "['atypical pneumonia', 'breast mass']", "AP_horizontal", "54"),
    row("c.png", "nan"),
    row("d.png", "['unchanged']"),
    row("e.png", "['']"),
    row("f.png", "['exclude']"),
    row("g.png", "['suboptimal study', 'pneumonia']"),
    row("h.png", "['normal']", "L", method="RNN_model"),
    row("i.png", "['normal']", "UNK"),
]


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / TABLE, ROWS)
    touch(tmp_path, [f"{r['ImageDir']}/{r['ImageID']}" for r in ROWS])
    return tmp_path


def test_nine_rows_by_hand(folder):
    cohort = load_cohort("padchest", folder)
    assert labels_of(cohort, "Pleural Effusion") == {"a.png": 1, f"{LONG}.png": 0, "h.png": 0}
    assert labels_of(cohort, "Pneumonia")[f"{LONG}.png"] == 1
    assert labels_of(cohort, "Lung Lesion")[f"{LONG}.png"] == 0
    assert cohort.records["patient_id"].iloc[0] == "839860488694292331637988235681460987"
    assert cohort.records["image"].tolist()[1] == f"54/{LONG}.png"
    assert cohort.records["sex"].isna().all()
    assert cohort.counts["left_out"] == {
        "labelled exclude or suboptimal study": 2,
        "view UNK not chosen": 1,
        "no label": 3,
    }
    assert cohort.counts["without_information"] == {"rows": 2, "become": "exclude"}


def test_policies(folder):
    kept = load_cohort("padchest", folder, set_aside="keep", no_information="negative")
    assert labels_of(kept, "Pneumonia")["g.png"] == 1
    assert labels_of(kept, "Pneumonia")["d.png"] == 0
    assert "c.png" not in labels_of(kept, "Pneumonia")
    doctors = load_cohort("padchest", folder, label_method="Physician")
    assert "h.png" not in labels_of(doctors, "Pneumonia")
    assert "Enlarged Cardiomediastinum" not in load_cohort("padchest", folder, preset="paper").findings


def test_flat_copies_and_copies_below_images(folder, tmp_path_factory):
    for prefix in ("", "images/"):
        other = tmp_path_factory.mktemp("flat")
        write_rows(other / TABLE, ROWS)
        touch(other, [f"{prefix}{r['ImageID']}" for r in ROWS])
        assert len(load_cohort("padchest", other)) == 3
    nested = tmp_path_factory.mktemp("nested")
    write_rows(nested / TABLE, ROWS)
    touch(nested, [f"images/{r['ImageDir']}/{r['ImageID']}" for r in ROWS])
    assert load_cohort("padchest", nested).records["image"].iloc[0] == "images/0/a.png"


def test_what_is_refused(folder):
    with pytest.raises(UserError, match="unknown value of set_aside"):
        load_cohort("padchest", folder, set_aside="no")
    write_rows(folder / TABLE, [*ROWS, row("z.png", "pneumonia")])
    with pytest.raises(UserError, match="row 10: 'pneumonia' is not a list"):
        load_cohort("padchest", folder)
    write_rows(folder / TABLE, [*ROWS, ROWS[0]])
    with pytest.raises(UserError, match=r"'a\.png' has two rows"):
        load_cohort("padchest", folder)
    write_rows(folder / TABLE.replace("01.02", "02.02"), ROWS)
    with pytest.raises(UserError, match="2 versions"):
        load_cohort("padchest", folder)
