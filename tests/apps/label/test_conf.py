"""Options of the MONAI Label app, as its command line gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from candor_monai.apps.label.conf import label_options
from candor_monai.utils import UserError

GIVEN = {"encoder": "blind", "findings": "Edema"}


def test_text_becomes_options():
    options = label_options(
        "/data/chest/",
        "/srv/app",
        {
            "encoder": "rad_dino",
            "findings": "['Pleural effusion, left', 'Mass v1.2']",
            "match_on": "site,view",
            "k": "3",
            "cohort": "table",
            "cohort_options": "{'labels': 'meta.csv'}",
            "reserve_minutes": "5",
            "recent_hours": "0",
        },
    )
    run = options.run
    assert run.findings == ("Pleural effusion, left", "Mass v1.2")
    assert (run.encoder, run.match_on, run.measure.k, run.batch_size) == ("rad_dino", ("site", "view"), 3, 8)
    assert (run.cohort, run.cohort_options) == ("table", {"labels": "meta.csv"})
    assert (options.reserve_seconds, options.recent_seconds) == (300.0, 0.0)
    assert options.state_dir == Path("/data/chest.labels")
    assert options.features_folder == Path("/data/chest.labels/features")
    assert not options.pacs
    assert label_options("/d", "/a", {**GIVEN, "match_on": "[]"}).run.match_on == ()


def test_of_a_pacs():
    options = label_options("https://pacs.example:8042/dicom-web/", "/srv/app", {**GIVEN, "modalities": "DX"})
    assert options.pacs
    assert options.studies == "https://pacs.example:8042/dicom-web"
    assert options.state_dir == Path("/srv/app/labels/pacs_example_8042_dicom_web")
    assert options.modalities == ("DX",)


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"encoder": "blind"}, "--conf findings is needed"),
        ({"findings": "Edema"}, "--conf encoder is needed"),
        ({**GIVEN, "finding": "x"}, "unknown --conf key 'finding'. Did you mean 'findings'?"),
        ({**GIVEN, "k": "many"}, "--conf k must be a whole number"),
        ({**GIVEN, "findings": "[Edema, Edema]"}, "--conf findings names 'Edema' twice"),
        ({**GIVEN, "findings": "[Edema"}, "--conf findings must be written as"),
        ({**GIVEN, "decoding": "voi"}, "--conf decoding must be a mapping"),
        ({**GIVEN, "reserve_minutes": "-1"}, "reserve_minutes must be at least 0"),
    ],
)
def test_mistakes_are_named(conf, told):
    with pytest.raises(UserError) as error:
        label_options("/data", "/srv/app", conf)
    assert told in str(error.value)
