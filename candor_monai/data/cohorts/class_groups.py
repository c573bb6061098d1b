"""Cohorts of many classes: each class a finding, asked among the images of its group."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import NEGATIVE, POSITIVE, UNLABELLED
from .draft import Draft


def class_draft(records: pd.DataFrame, classes: pd.Series, groups: pd.Series, rule: str) -> Draft:
    """Codes of every class that shares its group with another; the others are left out.

    An image is positive for its own class, negative for the other classes of its group, and unlabelled for classes
    of other groups.

    Args:
        records: as in Draft.
        classes: class of each image.
        groups: group of each image; one group a class.
        rule: how images of a class alone in its group are counted in ``left_out``.

    Raises:
        UserError: a class has two groups.

    >>> records = pd.DataFrame({"image_id": list("abc"), "image": list("abc")})
    >>> draft = class_draft(records, pd.Series(["x", "y", "z"]), pd.Series(["g", "g", "h"]), "alone")
    >>> draft.findings, draft.codes.tolist(), draft.left_out
    (('x', 'y'), [[1, 0], [0, 1]], {'alone': 1})
    """
    pairs = pd.DataFrame({"class": classes, "group": groups}).drop_duplicates()
    if pairs["class"].duplicated().any():
        name = pairs.loc[pairs["class"].duplicated(), "class"].iloc[0]
        raise UserError(f"class {name!r} has images in two groups.")
    size = pairs["group"].value_counts()
    kept = pairs[pairs["group"].map(size) > 1].sort_values("class")
    findings = tuple(kept["class"])
    own, group = classes.to_numpy(dtype=object), groups.to_numpy(dtype=object)
    codes = np.full((len(records), len(findings)), UNLABELLED, dtype=np.int8)
    for f, (name, of) in enumerate(zip(kept["class"], kept["group"], strict=True)):
        codes[group == of, f] = NEGATIVE
        codes[own == name, f] = POSITIVE
    draft = Draft(records, findings, codes)
    draft.notes["classes"] = {"all": len(pairs), "kept": len(findings), "groups": len(size)}
    draft.keep(np.isin(own, list(findings)), rule)
    return draft
