"""Labels as a cohort of one's own: a label table and a card, so that what was labelled can be evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ...data.cohorts.selection import FIRST_READING, REREAD_BY, SELECTED_BY
from ...utils import UserError, atomic_path, atomic_write
from ...visualize.csv_files import csv_text, spreadsheet_text
from .images import LabelImages
from .readings import Label
from .rereads import reread_kind

CARD = "cohort.yaml"
TABLE = "labels"
UID = "SOPInstanceUID"


def export_labels(
    folder: str | Path,
    images: LabelImages,
    labels: Mapping[str, Label],
    findings: Sequence[str],
    pacs: Mapping[str, Any] | None = None,
) -> Path:
    """Write the labels of a datastore's images.

    Args:
        folder: made when it is not there.
        images: the datastore's images.
        labels: of the images that have one.
        findings: those to export.
        pacs: options of the ``dicomweb`` adapter, where the images are on a PACS and their ids are SOPInstanceUIDs.

    Returns:
        ``cohort.yaml``, the card of the cohort; beside it lies ``labels.csv``, or ``labels.parquet`` where a name or id
        begins like a spreadsheet's formula and could not stand in a CSV file as it is.

    Raises:
        UserError: no image of the datastore is labelled, a finding has the name of another column, or the folder
            cannot be written.
    """
    folder = Path(folder).absolute()
    table = label_table(images, labels, findings)
    if pacs is not None:
        table = table.drop(columns="image", errors="ignore").rename(columns={"image_id": UID})
    by_file = "image" in table.columns
    texts = [*table.columns, *(t for column in table.columns for t in table[column] if isinstance(t, str))]
    exact = all(spreadsheet_text(text) == text for text in texts)
    path = folder / f"{TABLE}.{'csv' if exact else 'parquet'}"
    card: dict[str, Any] = {
        "name": images.name,
        "adapter": "table" if pacs is None else "dicomweb",
        "title": "Labels exported from the label desk",
        "match_on": list(images.match_on),
        "options": {
            "labels": str(path),
            "findings": list(findings),
            "image_column": UID if pacs is not None else "image" if by_file else "image_id",
            "covariates": [name for name in images.covariates if name not in ("site", "view")],
            "blank": "exclude",
            "uncertain": "exclude",
            **(pacs or {}),
        },
    }
    try:
        if exact:
            atomic_write(path, csv_text(table, list(table.columns)))
        else:
            with atomic_path(path) as temporary:
                table.astype("string").to_parquet(temporary, index=False)
        atomic_write(folder / CARD, yaml.safe_dump(card, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UserError(f"{folder}: the labels cannot be written ({error.strerror or error}).") from error
    return folder / CARD


def label_table(images: LabelImages, labels: Mapping[str, Label], findings: Sequence[str]) -> pd.DataFrame:
    """One row an image with a label of some finding, in the order of the ids: the columns of docs/labels.md.

    Raises:
        UserError: no such image, or a finding has the name of another column.
    """
    own = ["image_id", "image", "patient_id", *images.covariates, SELECTED_BY, REREAD_BY]
    for finding in findings:
        if finding in own or finding.startswith(FIRST_READING):
            raise UserError(f"finding {finding!r} has the name of a column of the exported table; name it otherwise.")
    rows: list[dict[str, Any]] = []
    for record in images.table.to_dict("records"):
        label = labels.get(str(record["image_id"]))
        if label is None or all(label.findings.get(finding) is None for finding in findings):
            continue
        first = label.readings[0].findings
        again = reread_kind(label)
        rows.append(
            {
                "image_id": record["image_id"],
                "image": record["image"],
                "patient_id": record["patient"],
                **{name: record[name] for name in images.covariates},
                **{finding: label.findings.get(finding) for finding in findings},
                SELECTED_BY: label.readings[0].selected_by,
                REREAD_BY: again,
                **{f"{FIRST_READING}{f}": first.get(f) if again is not None else None for f in findings},
            }
        )
    if not rows:
        raise UserError("no image of the datastore is labelled yet: there is nothing to export.")
    table = pd.DataFrame(rows, dtype=object).sort_values("image_id", kind="stable", ignore_index=True)
    for column in ("image", "patient_id"):
        if table[column].isna().all():
            table = table.drop(columns=column)
        elif column == "image" and table[column].isna().any():
            table[column] = table[column].where(table[column].notna(), table["image_id"])
    return table
