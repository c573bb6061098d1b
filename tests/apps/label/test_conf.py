"""Options of the MONAI Label app, as its command line gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from candor_monai.apps.label.conf import label_options
from candor_monai.apps.label.labels import LabelStore
from candor_monai.apps.label.studies import import_labels, open_studies
from candor_monai.utils import UserError

from .server_support import write_png

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


def test_a_cohort_of_ones_own_brings_its_labels(tmp_path):
    for name in ("a", "b", "c"):
        write_png(tmp_path / "chest" / f"{name}.png", np.zeros((8, 8), np.uint8))
    table = "image,patient_id,view,Edema,Mass\na.png,p,AP,1,\nb.png,q,PA,0,1\nc.png,r,PA,,\n"
    (tmp_path / "chest" / "meta.csv").write_text(table)
    own = {"findings": "Edema,Mass", "cohort": "table", "cohort_options": "{labels: meta.csv, blank: exclude}"}
    options = label_options(str(tmp_path / "chest"), "/srv/app", {**GIVEN, **own})
    cohort = open_studies(options)
    assert cohort.records["image_id"].tolist() == ["a.png", "b.png", "c.png"]
    assert cohort.records["patient_id"].tolist() == ["p", "q", "r"]
    store = LabelStore(options.state_dir / "labels", options.run.findings)
    store.save("a.png", {"Edema": 0}, "random")
    assert import_labels(cohort, store) == 1
    assert store.get("a.png").findings == {"Edema": 0}
    assert (store.get("b.png").findings, store.get("b.png").current.selected_by) == (
        {"Edema": 0, "Mass": 1},
        "imported",
    )
    assert store.get("c.png") is None
    assert import_labels(cohort, store) == 0


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
