"""PadChest.

Labels are a printed list of whole names (mixed case, leading spaces, empty names). The literal text ``nan`` is no
label: the image stays unlabelled. ``exclude`` and ``suboptimal study`` mark images that the readers set aside.
An image whose list is empty, or names nothing but ``unchanged``, says nothing about a finding.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import unknown
from ..label_policy import MISSING_TEXTS, NEGATIVE, UNLABELLED
from ..label_tables import check_columns, check_unique
from .draft import Draft
from .label_lists import list_codes, literal_lists
from .source import Source

NEEDED = ("ImageID", "ImageDir", "PatientID", "Projection", "Labels", "MethodLabel")
COVARIATES = {
    "Projection": "view",
    "MethodLabel": "label_method",
    "MethodProjection": "view_method",
    "PatientSex_DICOM": "sex",
    "PatientBirth": "birth_year",
    "Pediatric": "pediatric",
    "Manufacturer_DICOM": "manufacturer",
    "BitsStored_DICOM": "bits_stored",
    "StudyID": "study",
}
SET_ASIDE = ("exclude", "suboptimal study")
NO_INFORMATION = ("unchanged",)


def read(
    source: Source,
    *,
    table: str | None = None,
    set_aside: str = "drop",
    no_information: str = "exclude",
    label_method: str = "all",
) -> Draft:
    """Read the label table.

    Args:
        source: the dataset.
        table: name of the table when several versions lie side by side.
        set_aside: ``drop`` or ``keep`` images labelled ``exclude`` or ``suboptimal study``.
        no_information: what images with an empty list or only ``unchanged`` are: ``exclude`` or ``negative``.
        label_method: ``all``, ``Physician`` or ``RNN_model``: who labelled the images to keep.
    """
    for name, value, known in (
        ("set_aside", set_aside, ("drop", "keep")),
        ("no_information", no_information, ("exclude", "negative")),
        ("label_method", label_method, ("all", "Physician", "RNN_model")),
    ):
        if value not in known:
            raise unknown(f"value of {name}:", str(value), known)
    pattern = "PADCHEST_chest_x_ray_images_labels_160K*.csv*"
    source.locate(pattern)
    path = source.table_path(pattern, chosen=table, option="table")
    rows = source.read(path, (*NEEDED, *COVARIATES))
    check_columns(rows, NEEDED, path)
    check_unique(rows["ImageID"], path)
    findings = source.vocabulary.of("padchest", source.findings("chest"))

    labels = rows["Labels"]
    named = ~labels.str.strip().str.lower().isin(MISSING_TEXTS).to_numpy(dtype=bool)
    own, lists = literal_lists(labels.where(named, "[]"), path.name)
    lists = [tuple(name.lower() for name in names) for names in lists]
    codes = list_codes((own, lists), findings, NEGATIVE)
    silent = np.array([set(names) <= set(NO_INFORMATION) for names in lists])[own]
    aside = np.array([not set(names).isdisjoint(SET_ASIDE) for names in lists])[own]
    codes[~named] = UNLABELLED
    if no_information == "exclude":
        codes[silent] = UNLABELLED

    records = pd.DataFrame({"image_id": rows["ImageID"]})
    records["image"] = _images(source, rows)
    records["patient_id"], records["site"] = rows["PatientID"], "padchest"
    for column, name in COVARIATES.items():
        if column in rows:
            values = rows[column]
            records[name] = values.where(~values.str.lower().isin(MISSING_TEXTS), None)
    draft = Draft(records, tuple(findings), codes)
    draft.found = {
        "rows of the label table": len(rows),
        "rows with labels": int(named.sum()),
        "rows after exclude, suboptimal study and no label": int((named & ~aside).sum()),
        "patients": int(rows["PatientID"].nunique()),
    }
    draft.notes["without_information"] = {"rows": int((silent & named).sum()), "become": no_information}
    if set_aside == "drop":
        draft.keep(~aside, "labelled exclude or suboptimal study")
    if label_method != "all":
        draft.keep((draft.records["label_method"] == label_method).to_numpy(dtype=bool), "labelled by another method")
    return draft


def _images(source: Source, rows: pd.DataFrame) -> pd.Series:
    """``<ImageDir>/<ImageID>``, below ``images/`` in some copies, flat in others."""
    top = source.files.listing("")
    below = source.files.listing("images")
    home: dict[str, str] = {}
    for folder in rows["ImageDir"].unique():
        if folder in top:
            home[folder] = f"{folder}/"
        elif folder in below:
            home[folder] = f"images/{folder}/"
        else:
            home[folder] = f"{folder}/" if any(d in top or d in below for d in ("0", "1", "54")) else ""
    if not any(home.values()) and below:
        home = dict.fromkeys(home, "images/")
    prefix = rows["ImageDir"].map(home)
    return prefix + rows["ImageID"]
