from __future__ import annotations

from candor_monai.visualize.further_tables import MOST_ROWS, WARNING, further_tables

from . import synthetic


def test_heads_by_hand():
    document = synthetic.one_encoder()
    document["probe"] = [
        {"encoder": "rad_dino", "task": "chest", "finding": "Edema", "level": "finding", "auroc": 0.7}
        | {"auroc_lo": 0.6, "auroc_hi": 0.8, "miss_rate": None, "n_test_positive": 1200, "reason": None},
        {
            "encoder": "rad_dino",
            "task": "chest",
            "finding": "",
            "level": "task",
            "auroc": 0.75,
            "n_test_positive": None,
        },
    ]
    (table,) = further_tables(document)
    assert table.columns == ("finding", "AUROC", "n test positive")
    assert table.numeric == (False, True, True)
    assert table.rows == (("all", "0.750", "–"), ("Edema", "0.700 (0.600 to 0.800)", "1,200"))
    assert table.note == WARNING


def test_encoders_and_groups_are_named_where_there_are_several():
    document = synthetic.three_encoders(compared=False)
    document["probe"] = [
        {"encoder": e, "task": "chest", "finding": "Edema", "group": g, "level": "group", "auroc": 0.7}
        for e in ("rad_dino", "dinov3_s")
        for g in ("view=AP", "")
    ]
    *_, table = further_tables(document)
    assert table.columns == ("encoder", "finding", "group", "AUROC")
    assert table.rows[0] == ("RAD-DINO", "Edema", "view AP", "0.700")
    assert table.rows[3] == ("DINOv3-S", "Edema", "all", "0.700")


def test_no_rows_no_table():
    assert further_tables(synthetic.one_encoder()) == []
    assert further_tables(synthetic.one_encoder() | {"probe": [], "retention": []}) == []


def test_pairs_with_the_best_encoder():
    document = synthetic.three_encoders()
    *_, table = further_tables(document)
    assert table.total == 2
    assert {row[2] for row in table.rows} == {"RAD-DINO"}
    assert all(" to " in row[5] for row in table.rows)


def test_long_tables_are_cut():
    document = synthetic.one_encoder()
    document["ablations"] = [{"ablation": f"k = {i}", "D": 0.3} for i in range(MOST_ROWS + 7)]
    *_, table = further_tables(document)
    assert (len(table.rows), table.total) == (MOST_ROWS, MOST_ROWS + 7)


def test_encoders_beside_other_measures_size_and_pretraining():
    document = synthetic.three_encoders(compared=False)
    document["probe"] = [
        {"encoder": "rad_dino", "task": "chest", "finding": "", "level": "task", "auroc": 0.75, "logme": -0.3}
    ]
    table = further_tables(document)[0]
    assert table.key == "beside"
    assert table.columns[:2] == ("encoder", "D")
    assert table.columns[-4:] == ("LogME", "M parameters", "year", "pretraining")
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first["encoder"], first["head AUROC"], first["LogME"]) == ("RAD-DINO", "0.750", "−0.300")
    assert (first["M parameters"], first["pretraining"]) == ("303.0", "self-supervised")
    assert [row[1] for row in table.rows] == sorted(row[1] for row in table.rows)  # best first
