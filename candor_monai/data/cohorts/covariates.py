"""Values of a covariate for each image: a column of the label table, else an attribute of the DICOM header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ...utils.names import names_of
from ..label_tables import find_column
from .draft import Draft


def is_keyword(name: str) -> bool:
    """Whether a name is that of a DICOM attribute.

    >>> is_keyword("ManufacturerModelName"), is_keyword("orig_width")
    (True, False)
    """
    from pydicom.datadict import tag_for_keyword

    return tag_for_keyword(name) is not None


# Value representations of names, dates, times, ids and free text, and attributes of other ones (LO, SH) that identify
# somebody or hold what somebody wrote about a patient.
_IDENTIFYING_VR = frozenset({"PN", "DA", "DT", "TM", "UI", "LT", "ST", "UT", "UC", "UR"})
_IDENTIFYING = frozenset(
    {
        "AccessionNumber",
        "AdmissionID",
        "AdmittingDiagnosesDescription",
        "BranchOfService",
        "ClinicalTrialSubjectID",
        "ClinicalTrialSubjectReadingID",
        "CountryOfResidence",
        "CurrentPatientLocation",
        "FillerOrderNumberImagingServiceRequest",
        "InsurancePlanIdentification",
        "IssuerOfPatientID",
        "MedicalAlerts",
        "MedicalRecordLocator",
        "MilitaryRank",
        "Occupation",
        "OtherPatientIDs",
        "PatientAddress",
        "PatientID",
        "PatientInstitutionResidence",
        "PatientReligiousPreference",
        "PatientTelephoneNumbers",
        "PerformedProcedureStepDescription",
        "PerformedProcedureStepID",
        "PlacerOrderNumberImagingServiceRequest",
        "ReasonForStudy",
        "ReferringPhysicianTelephoneNumbers",
        "RegionOfResidence",
        "RequestedProcedureDescription",
        "RequestedProcedureID",
        "ScheduledProcedureStepDescription",
        "ScheduledProcedureStepID",
        "SeriesDescription",
        "ServiceEpisodeDescription",
        "ServiceEpisodeID",
        "SpecialNeeds",
        "StudyDescription",
        "StudyID",
    }
)


def is_identifying(name: str) -> bool:
    """Whether a name is that of a DICOM attribute by which somebody may be known: a name, id, date or free text.

    >>> is_identifying("PatientName"), is_identifying("StudyDate"), is_identifying("PatientSex"), is_identifying("view")
    (True, True, False, False)
    """
    from pydicom.datadict import dictionary_VR, tag_for_keyword

    tag = tag_for_keyword(name)
    if tag is None or name == "SOPClassUID":
        return False
    return name in _IDENTIFYING or bool(_IDENTIFYING_VR & set(dictionary_VR(tag).split(" or ")))


# What is kept of DICOM files: keyword -> values; None keeps all.
Filters = Mapping[str, Sequence[str] | None]


def header_filters(
    modalities: Sequence[str] | None, sop_classes: Sequence[str] | None, body_parts: Sequence[str] | None
) -> Filters:
    """Filters by the options that cohorts of DICOM files have in common."""
    return {"Modality": modalities, "SOPClassUID": sop_classes, "BodyPartExamined": body_parts}


_DAYS = {"D": 1.0, "W": 7.0, "M": 365.25 / 12, "Y": 365.25}


def _years(text: str) -> str | float:
    """An age as DICOM writes it, in years; any other text as it is.

    >>> _years("063Y"), _years("006M"), _years("63,5")
    (63.0, 0.5, '63,5')
    """
    age = re.fullmatch(r"(\d{3})([DWMY])", text)
    return int(age[1]) * _DAYS[age[2]] / 365.25 if age else text


class Covariates:
    """Looks up covariates of the joined images.

    Args:
        table: the row of each image, as text.
        headers: header of each DICOM file, or None when none were read.
        images: path of each image.
        where: name of the table, for messages.
    """

    def __init__(self, table: pd.DataFrame, headers: pd.DataFrame | None, images: pd.Series, where: str) -> None:
        self.table, self.where = table, where
        self.headers = None if headers is None else headers.set_index("file").reindex(images).reset_index(drop=True)

    def get(self, name: str, identifying: bool = False) -> pd.Series:
        """Values of a covariate; blanks are missing.

        Args:
            name: a column of the table or a DICOM keyword.
            identifying: take it even if it identifies people: it will leave the process as a pseudonym only.

        Raises:
            UserError: neither the table nor the headers have it, or it identifies people.
        """
        if not identifying and is_identifying(name):
            raise UserError(
                f"covariate {name!r} is a name, id, date or free text of DICOM: its values would be in every output. "
                "Match by something that many patients share, such as ManufacturerModelName."
            )
        if name in self.table.columns:
            values = self.table[find_column(self.table, name, self.where)].str.strip()
        elif self.headers is not None and name in self.headers.columns:
            values = self.headers[name].reset_index(drop=True)
        else:
            known = [str(c) for c in self.table.columns]
            if is_keyword(name):
                raise UserError(
                    f"covariate {name!r} is a DICOM attribute; {self.where} has no such column and none of the images "
                    f"is a DICOM file."
                )
            raise unknown(f"column of {self.where} or DICOM attribute:", name, known)
        return values.where(values.notna() & (values != ""), None)

    def role(self, role: str, roles: Mapping[str, str], keyword: str) -> Any:
        """Values of a role: its column, else the header's attribute, else None."""
        if role in roles and (roles[role] != "ViewPosition" or roles[role] in self.table.columns):
            return self.get(roles[role], identifying=role == "patient")
        return self.get(keyword, identifying=role == "patient") if self.headers is not None else None

    def binned(self, values: pd.Series, name: str, edges: Sequence[float]) -> pd.Series:
        """Numbers replaced by the interval they fall into, e.g. ``[60, 90)``; what is not a number is missing.

        An age as DICOM writes it (``063Y``, ``018M``) counts in years.

        Raises:
            UserError: fewer than two edges, edges that do not rise, or not one value is a number.
        """
        cuts = np.asarray([float(e) for e in edges])
        if len(cuts) < 2 or not (np.diff(cuts) > 0).all():
            raise UserError(f"bins of {name!r} must be two or more rising numbers, are {list(edges)}.")
        numbers = pd.to_numeric(values.map(_years, na_action="ignore"), errors="coerce").to_numpy(dtype=np.float64)
        given = values.notna().to_numpy(dtype=bool)
        if given.any() and np.isnan(numbers).all():
            raise UserError(f"bins of {name!r}: none of its values is a number.")
        place = np.searchsorted(cuts, numbers, side="right")
        names = [f"below {cuts[0]:g}", *(f"[{a:g}, {b:g})" for a, b in pairwise(cuts))]
        names.append(f"{cuts[-1]:g} and above")
        texts = [None if np.isnan(n) else names[p] for n, p in zip(numbers, place, strict=True)]
        return pd.Series(texts, dtype=object, index=values.index)

    def reject_unreadable(self, draft: Draft) -> None:
        """Leave out DICOM files whose header could not be read, each with its reason."""
        assert self.headers is not None
        reasons = self.headers["reason"].fillna("")
        for reason in sorted(set(reasons) - {""}):
            hit = (reasons == reason).to_numpy(dtype=bool)
            messages = self.headers.loc[hit, "message"].iloc[0]
            self.reject(draft, hit, reason, messages)
            reasons = self.headers["reason"].fillna("")

    def filter(self, draft: Draft, filters: Filters) -> None:
        """Leave out DICOM files by modality, SOP class and body part, each with the value that ruled it out."""
        assert self.headers is not None
        for keyword, wanted in filters.items():
            if not wanted:
                continue
            kept = {w.upper() for w in names_of(wanted)}
            values = self.headers[keyword].fillna("").astype(str)
            for value in sorted(set(values)):
                if value.upper() not in kept:
                    hit = (self.headers[keyword].fillna("") == value).to_numpy(dtype=bool)
                    reason = {"Modality": "modality", "SOPClassUID": "sop_class"}.get(keyword, "body_part")
                    # a code is told, free text that a site wrote in its place is not
                    told = value if re.fullmatch(r"[A-Z0-9._]{1,64}", value) else "another value"
                    self.reject(draft, hit, reason, f"{keyword} is {told if value else 'not given'}")

    def view_rules(self) -> dict[str, int]:
        """How the views were found, by rule."""
        assert self.headers is not None
        rules = self.headers["ViewRule"].dropna().value_counts().sort_index()
        return {str(rule): int(n) for rule, n in rules.items() if rule}

    def reject(self, draft: Draft, hit: np.ndarray, reason: str, message: str) -> None:
        """Leave out images, here and in the draft."""
        if hit.any():
            assert self.headers is not None
            draft.reject(hit, reason, message, stage="header")
            self.headers = self.headers[~hit].reset_index(drop=True)
