"""Covariates: what may name a group in every output, and what may not."""

import pandas as pd
import pytest

from candor_monai.data.cohorts.covariates import Covariates, is_identifying
from candor_monai.utils import UserError


def covariates(**columns):
    return Covariates(pd.DataFrame(columns, dtype=str), None, pd.Series(["a.dcm", "b.dcm"]), "labels.csv")


def test_a_column_is_read_and_blanks_are_missing():
    values = covariates(ward=["3", " "]).get("ward")
    assert values[0] == "3"
    assert values.isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "name",
    [
        *("PatientName", "PatientID", "PatientBirthDate", "StudyInstanceUID", "ImageComments"),
        *(
            "StudyDescription",
            "SeriesDescription",
            "AdmittingDiagnosesDescription",
            "Occupation",
            "CurrentPatientLocation",
        ),
        *("ScheduledProcedureStepID", "ReferringPhysicianTelephoneNumbers"),
    ],
)
def test_what_identifies_people_is_no_covariate(name):
    assert is_identifying(name)
    with pytest.raises(UserError, match=name):
        covariates(**{name: ["x", "y"]}).get(name)


@pytest.mark.parametrize("name", ["PatientSex", "PatientAge", "KVP", "InstitutionName", "SOPClassUID", "a column"])
def test_what_many_share_is_one(name):
    assert not is_identifying(name)
    assert covariates(**{name: ["x", "y"]}).get(name).tolist() == ["x", "y"]


def test_a_patient_id_is_taken_for_its_role_alone():
    lookup = covariates(PatientID=["p1", "p2"])
    assert lookup.role("patient", {"patient": "PatientID"}, "PatientID").tolist() == ["p1", "p2"]
    with pytest.raises(UserError, match="PatientID"):
        lookup.role("view", {"view": "PatientID"}, "View")
