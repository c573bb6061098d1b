"""DDI: truth values as text, the older column."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort

from .trees import labels_of, touch, write_rows


@pytest.mark.parametrize("column, values", [("malignant", ("True", "False")), ("malignancy(malig=1)", ("1", "0"))])
def test_two_images_by_hand(tmp_path, column, values):
    rows = [
        {"": i, "DDI_ID": i + 1, "DDI_file": f"00000{i + 1}.png", "skin_tone": "56", column: v, "disease": "nevus"}
        for i, v in enumerate(values)
    ]
    write_rows(tmp_path / "ddi_metadata.csv", rows)
    touch(tmp_path, ["000001.png", "000002.png"])
    cohort = load_cohort("ddi", tmp_path)
    assert labels_of(cohort, "Malignancy") == {"000001.png": 1, "000002.png": 0}
    assert cohort.records["skin_tone"].tolist() == ["56", "56"]
    assert cohort.observations().patient is None
