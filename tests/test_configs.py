"""Every shipped card, task and study can be read, and names only what is there."""

import pytest

from candor_monai.apps.options import run_options
from candor_monai.apps.study_file import read_study, study_cells
from candor_monai.data.cohorts.cards import list_cohorts
from candor_monai.data.cohorts.cards import load_card as load_cohort_card
from candor_monai.data.cohorts.registry import adapter_named
from candor_monai.data.tasks import list_tasks, load_task
from candor_monai.networks.cards import list_cards, load_card
from candor_monai.utils import resource

STUDIES = sorted(path.stem for path in resource("configs", "studies").glob("*.yaml"))


@pytest.mark.parametrize("name", list_cards())
def test_encoder_cards(name):
    card = load_card(name)
    assert card.name == name
    assert card.title
    assert card.licence


@pytest.mark.parametrize("name", list_cohorts())
def test_cohort_cards(name):
    card = load_cohort_card(name)
    assert card.name == name
    assert adapter_named(card.adapter)
    assert card.title
    assert card.obtain
    if isinstance(card.task, str):
        load_task(card.task)


@pytest.mark.parametrize("name", list_tasks())
def test_tasks(name):
    assert load_task(name).name


@pytest.mark.parametrize("name", STUDIES)
def test_studies_name_only_what_is_there(name, tmp_path):
    study = read_study(run_options(study=name))  # refuses any name or option that is not there
    cells = study_cells(study, tmp_path)
    assert [len(members) for members in cells] == [len(cohort.encoders) for cohort in study.cohorts]
    folders = [cell.folder for members in cells for cell in members]
    assert len(folders) == len(set(folders))
