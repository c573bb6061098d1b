"""The paper's tables from rows worked by hand."""

import pandas as pd

from candor_monai.apps.head_tables import table_2, table_3, table_4, write_tables
from candor_monai.metrics.combination_rules import ORACLE, RULES


def test_table_2_takes_the_task_rows() -> None:
    probe = [
        {"encoder": "a", "level": "finding", "auroc": 0.9, "auroc_sd": 0.1, "logme": 1.0, "reason": None},
        {"encoder": "a", "level": "task", "auroc": 0.7, "auroc_sd": 0.02, "logme": -0.5, "reason": None},
        {"encoder": "b", "level": "task", "auroc": None, "auroc_sd": None, "logme": None, "reason": "1 of 2 findings"},
    ]
    discordance = {"a": [{"level": "task", "D": 0.4, "D_all": 0.8, "margin_auroc": 0.65}]}
    rows = table_2(probe, discordance).rows
    assert [row["encoder"] for row in rows] == ["a", "b"]
    assert (rows[0]["AUROC"], rows[0]["margin"], rows[0]["D"]) == (0.7, 0.65, 0.4)
    assert (rows[1]["AUROC"], rows[1]["margin"], rows[1]["why not"]) == (None, None, "1 of 2 findings")


def test_table_3_names_impurity_and_confidence_as_the_paper_does() -> None:
    scores = ("maximum softmax", "neighborhood impurity")
    detection = [
        {"encoder": name, "level": level, "score": score, "auroc": value, "rows": 3}
        for name, level, values in ((None, "all", (0.8, 0.6)), ("a", "encoder", (0.9, 0.7)), ("a", "site", (0.1, 0.2)))
        for score, value in zip(scores, values, strict=True)
    ]
    table = table_3(detection)
    assert table.columns == ("encoder", "r", "Conf.", "rows")
    assert table.rows == [
        {"encoder": "all", "Conf.": 0.8, "r": 0.6, "rows": 3},
        {"encoder": "a", "Conf.": 0.9, "r": 0.7, "rows": 3},
    ]


def _rules() -> list[dict]:
    return [
        {"rule": rule, "sample": sample, "subset": subset, "rate": 0.25 if sample == "capped" else 0.5, "n_pairs": 8}
        for rule in (*RULES, ORACLE)
        for sample in ("capped", "uncapped")
        for subset in ("positives", "majority-discordant positives", "negatives")
    ]


def test_table_4_has_a_row_for_each_rule_with_the_published_value_beside_it() -> None:
    table = table_4(_rules())
    assert [row["rule"] for row in table.rows] == [*RULES, ORACLE]
    first = table.rows[0]
    assert (first["discordant"], first["discordant, uncapped"], first["n all"]) == (0.25, 0.5, 8)
    assert (first["paper discordant"], first["paper all"]) == (0.426, 0.218)
    assert table.rows[-1]["paper all"] is None


def test_files_carry_the_notes_and_read_back(tmp_path) -> None:
    files = write_tables([table_4(_rules())], tmp_path / "tables", ["Not a safety check."])
    assert [path.name for path in files] == ["table_4.csv", "table_4.md", "table_4.tex"]
    assert "Not a safety check." in files[1].read_text()
    assert "Not a safety check." in files[2].read_text()
    frame = pd.read_csv(files[0])
    assert frame["discordant"].tolist() == [0.25] * 7
