"""The list of images to leave out."""

import pytest

from candor_monai.apps.opening import listed_images
from candor_monai.utils import UserError

from ..bundles.small_cohort import IMAGES, run_bundle, table_options, write_small_cohort


def test_ids_stand_as_they_are(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_bytes("\ufeffa b\r\n\nc\u2028d\ne\x0bf".encode())
    assert listed_images(path) == {"a b", "c\u2028d", "e\x0bf"}


def test_a_nul_character_is_refused_by_line(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("a\nb\x00\n")
    with pytest.raises(UserError, match=r"ids\.txt, line 2: holds a NUL character"):
        listed_images(path)


def test_ids_that_are_none_are_told(tmp_path):
    cohort = write_small_cohort(tmp_path / "data")
    (tmp_path / "ids.txt").write_text("images/000.png\nimages/0001.png\nx\n")
    options = table_options(cohort, tmp_path / "eval", probe=False, leave_out=str(tmp_path / "ids.txt"))
    workflow = run_bundle("candor_eval", **options)
    context = workflow.parser.get_parsed_content("context")
    (told,) = [text for text in context.warnings if "leave_out" in text]
    assert told == "2 of 3 ids of --leave_out are none of cohort 'table': 'images/0001.png', 'x'."
    assert int(context.features()[1].sum()) == IMAGES - 1
