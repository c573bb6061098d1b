"""Open-I: MeSH headings, ids that differ between sources, three layouts."""

from __future__ import annotations

import tarfile

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows


def report(number, terms, images):
    majors = "".join(f"<major>{t}</major>" for t in terms)
    parents = "".join(f'<parentImage id="{i}"/>' for i in images)
    return f'<eCitation><uId id="CXR{number}"/><MeSH>{majors}<automatic>edema</automatic></MeSH>{parents}</eCitation>'


REPORTS = {
    1: (["normal"], ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001"]),
    4: (
        ["Pulmonary Disease, Chronic Obstructive", "Opacity/lung/base/left", "Fractures, Bone/ribs"],
        ["CXR4_IM-2050-1001"],
    ),
    5: (["No Indexing"], ["CXR5_IM-2117-1003002"]),
    7: (["Technical Quality of Image Unsatisfactory ", "Thickening/pleura/apex"], ["CXR7_IM-2263-1001"]),
    9: (["Opacity/retrocardiac", "Mass/mediastinum"], ["CXR9_IM-2407-1001"]),
    10: (["Pneumonia/lung"], []),
}
IMAGES = [i for _, images in REPORTS.values() for i in images]


@pytest.fixture
def folder(tmp_path):
    for number, (terms, images) in REPORTS.items():
        path = tmp_path / f"ecgen-radiology/{number}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(report(number, terms, images))
    touch(tmp_path, [f"NLMCXR_png/{i}.png" for i in IMAGES])
    return tmp_path


def test_six_reports_by_hand(folder):
    cohort = load_cohort("openi", folder)
    opacity = labels_of(cohort, "Lung Opacity")
    assert opacity == {
        "CXR1_1_IM-0001-3001": 0,
        "CXR1_1_IM-0001-4001": 0,
        "CXR4_IM-2050-1001": 1,
        "CXR7_IM-2263-1001": 0,
        "CXR9_IM-2407-1001": 0,
    }
    assert labels_of(cohort, "Fracture")["CXR4_IM-2050-1001"] == 1
    assert labels_of(cohort, "Pleural Other")["CXR7_IM-2263-1001"] == 1
    assert cohort.counts["left_out"] == {"no label": 1}
    assert cohort.counts["reports_without_an_image"] == 1
    assert cohort.records["patient_id"].tolist()[:3] == ["CXR1", "CXR1", "CXR4"]
    assert cohort.groups()[1] == ("site=openi|view=(missing)",)
    wide = load_cohort("openi", folder, extras=["opacity_anywhere"])
    assert labels_of(wide, "Lung Opacity")["CXR9_IM-2407-1001"] == 1


def test_views_from_kaggles_projections(folder):
    rows = [
        {"uid": 1, "filename": "1_IM-0001-3001.dcm.png", "projection": "Frontal"},
        {"uid": 1, "filename": "1_IM-0001-4001.dcm.png", "projection": "Lateral"},
        {"uid": 4, "filename": "4_IM-2050-1001.dcm.png", "projection": "Frontal"},
    ]
    write_rows(folder / "indiana_projections.csv", rows)
    cohort = load_cohort("openi", folder, views=["PA", "L"])
    assert cohort.records["view"].tolist() == ["PA", "L", "PA"]
    write_rows(folder / "tsne.csv", [{"imageid": "CXR7_IM-2263-1001", "tsne-view": "L"}])
    other = load_cohort("openi", folder, views_table="tsne.csv", views=["L"])
    assert other.records["image_id"].tolist() == ["CXR7_IM-2263-1001"]


def test_packed_reports_and_dicom_files(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    with tarfile.open(root / "NLMCXR_reports.tgz", "w:gz") as archive:
        archive.add(folder / "ecgen-radiology", "ecgen-radiology")
    touch(root, ["NLMCXR_dcm/1/1_IM-0001-3001.dcm", "NLMCXR_dcm/4/4_IM-2050-1001.dcm"])
    cohort = load_cohort("openi", root)
    assert cohort.records["image"].tolist() == ["NLMCXR_dcm/1/1_IM-0001-3001.dcm", "NLMCXR_dcm/4/4_IM-2050-1001.dcm"]


def test_a_packed_report_that_is_too_long_is_told_and_not_left_out(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    long = folder / "ecgen-radiology/4.xml"
    long.write_text(long.read_text() + " " * (1 << 20))
    with tarfile.open(root / "NLMCXR_reports.tgz", "w:gz") as archive:
        archive.add(folder / "ecgen-radiology", "ecgen-radiology")
    with pytest.raises(UserError, match=r"ecgen-radiology/4\.xml: not a report of Open-I"):
        load_cohort("openi", root)


def test_kaggles_repack(tmp_path):
    write_rows(
        tmp_path / "indiana_reports.csv",
        [{"uid": 1, "MeSH": "normal"}, {"uid": 4, "MeSH": "Opacity/lung/base/left;Fractures, Bone/ribs"}],
    )
    rows = [
        {"uid": 1, "filename": "1_IM-0001-4001.dcm.png", "projection": "Frontal"},
        {"uid": 4, "filename": "4_IM-2050-1001.dcm.png", "projection": "Lateral"},
    ]
    write_rows(tmp_path / "indiana_projections.csv", rows)
    touch(tmp_path, [f"images/images_normalized/{r['filename']}" for r in rows])
    cohort = load_cohort("openi", tmp_path)
    assert labels_of(cohort, "Lung Opacity") == {"CXR1_IM-0001-4001": 0, "CXR4_IM-2050-1001": 1}
    assert cohort.path(0).is_file()


@pytest.mark.parametrize(
    "text",
    [
        "<eCitation>",
        '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
        "<eCitation/>",
        '<?xml version="1.0" encoding="x"?><a/>',
    ],
)
def test_reports_that_are_none(folder, text):
    (folder / "ecgen-radiology/11.xml").write_text(text)
    with pytest.raises(UserError, match=r"ecgen-radiology/11\.xml: "):
        load_cohort("openi", folder)


def test_reports_that_cannot_be_read(folder, tmp_path_factory):
    (folder / "ecgen-radiology/11.xml").mkdir()
    with pytest.raises(UserError, match=r"11\.xml: cannot be read: Is a directory\.$"):
        load_cohort("openi", folder)
    root = tmp_path_factory.mktemp("packed")
    (root / "NLMCXR_reports.tgz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"NLMCXR_reports\.tgz: cannot be read: .*\.$") as error:
        load_cohort("openi", root)
    assert "\n" not in str(error.value)
