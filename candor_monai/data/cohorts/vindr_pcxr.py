"""VinDr-PCXR (PediCXR): children's radiographs.

Most of the twelve findings exist only as ``class_name`` of the annotations, not as a column of the image labels; an
image is positive when any annotation, or any of the columns named, says so. The publisher's spellings
(``Brocho-pneumonia``, ``rad_ID``) are kept. The tables lie in the root. No patient id and no view survive.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import NEGATIVE, POSITIVE
from ..label_tables import check_columns
from .draft import Draft
from .source import Source
from .vindr_cxr import column_marks, corner_boxes, reader_votes, vindr_draft

LABEL, ANNOTATION = "label:", "annotation:"


def read(source: Source) -> Draft:
    """Read image labels and annotations of both splits.

    Args:
        source: the dataset.
    """
    source.locate("image_labels_train.csv*", "image_labels_test.csv*")
    findings = source.vocabulary.of("vindr_pcxr", source.findings("chest"))
    columns = {f: [n[len(LABEL) :] for n in names if n.startswith(LABEL)] for f, names in findings.items()}
    classes = {f: [n[len(ANNOTATION) :] for n in names if n.startswith(ANNOTATION)] for f, names in findings.items()}
    odd = [n for names in findings.values() for n in names if not n.startswith((LABEL, ANNOTATION))]
    if odd:
        raise UserError(f"the chest vocabulary of vindr_pcxr: {odd[0]!r} must begin with {LABEL} or {ANNOTATION}")
    images, codes, boxes, split, found = [], [], [], [], {}
    for name in ("train", "test"):
        path = source.find_table(f"image_labels_{name}.csv*")
        if path is None:
            continue
        table = source.read(path)
        check_columns(table, ["image_id"], path)
        image, votes = reader_votes(table, column_marks(table, columns, path))
        part = np.where(votes > 0, POSITIVE, NEGATIVE).astype(np.int8)
        path = source.table_path(f"annotations_{name}.csv*")
        marks = source.read(path)
        check_columns(marks, ("image_id", "class_name"), path)
        row = pd.Index(image).get_indexer(pd.Index(marks["image_id"]))
        for f, names in enumerate(classes.values()):
            hit = marks["class_name"].isin(names).to_numpy(dtype=bool) & (row >= 0)
            part[row[hit], f] = POSITIVE
        boxes.append(corner_boxes(marks, classes, path))
        images.append(image)
        codes.append(part)
        split += [name] * len(image)
        found[f"{name} images"] = len(image)
    if not images:
        raise source.no_table("image_labels_train.csv", "image_labels_test.csv")
    ids = pd.concat(images, ignore_index=True)
    draft = vindr_draft("vindr_pcxr", ids, split, tuple(findings), np.concatenate(codes))
    draft.found = found
    draft.boxes = pd.concat(boxes, ignore_index=True)
    return draft
