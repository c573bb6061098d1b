from __future__ import annotations

from candor_monai.utils import read_yaml, resource
from candor_monai.visualize.paper_tables import paper_tables, published, rule_table, write_paper_tables

from . import synthetic


def column(table, name):
    return [row[name] for row in table.rows]


def test_table_2_by_hand():
    document = synthetic.three_encoders()
    table = {t.name: t for t in paper_tables(document, beside=True)}["table_2"]
    pooled = {row["encoder"]: row for row in document["discordance"] if row["level"] == "task"}
    assert column(table, "encoder") == ["RAD-DINO", "DINOv3-S", "Random ViT-L"]
    assert column(table, "D") == [pooled[e]["D"] for e in ("rad_dino", "dinov3_s", "random_vit_l")]
    assert column(table, "D (paper)") == [0.277, 0.405, 0.463]
    assert column(table, "head AUROC (paper)") == [0.718, 0.664, 0.597]
    assert column(table, "margin AUROC (paper)") == [0.753, 0.649, 0.563]
    assert column(table, "retention (paper)") == [0.622, 0.948, 0.976]
    assert "22,133" in table.notes[-1]


def test_published_numbers_are_not_shown_unless_asked_for():
    for table in paper_tables(synthetic.whole_study(classes=False)):
        assert not [name for name in table.columns if "paper" in name]
        assert not [note for note in table.notes if "arXiv" in note]


def test_heads_and_retention_come_in_when_they_are_there():
    document = synthetic.three_encoders()
    assert "head AUROC" not in paper_tables(document)[1].columns
    document["probe"] = [
        {"encoder": "rad_dino", "task": "chest", "level": "finding", "auroc": 0.1},
        {"encoder": "rad_dino", "task": "chest", "level": "task", "auroc": 0.7},
    ]
    document["retention"] = [{"encoder": "rad_dino", "task": "chest", "level": "task", "retention": 0.6}]
    table = paper_tables(document)[1]
    assert column(table, "head AUROC") == [0.7, None, None]
    assert column(table, "retention") == [0.6, None, None]


def test_a_task_without_a_pooled_number_says_why():
    table = paper_tables(synthetic.one_encoder())[1]
    assert table.rows == [
        {"encoder": "RAD-DINO", "parameters (M)": 303, "D": None, "status": "not estimable for Hernia"}
    ]


def test_tied_encoders_stand_last():
    document = synthetic.three_encoders()
    for row in document["discordance"]:
        if (row["encoder"], row["level"]) == ("rad_dino", "task"):
            row |= {"status": "tied", "reason": "tie rate 0.2", "D": 0.0}
    table = paper_tables(document)[1]
    assert column(table, "encoder")[-1] == "RAD-DINO"
    assert column(table, "status") == [None, None, "tie rate 0.2"]


def test_table_3_has_every_other_task():
    document = synthetic.whole_study(classes=True)
    table = {t.name: t for t in paper_tables(document, beside=True)}["table_3"]
    by_encoder = {row["encoder"]: row for row in table.rows}
    assert by_encoder["CONCH"]["tumor (paper)"] == 0.063
    assert by_encoder["CONCH"]["birds (paper)"] is None
    assert by_encoder["DINOv3-H+"]["mammogram (paper)"] == 0.580
    assert by_encoder["positive queries"]["birds (paper)"] == 9837
    assert by_encoder["overlap ΔJ"]["skin (paper)"] == 0.240
    assert by_encoder["impurity r, AUROC"]["glaucoma (paper)"] == 0.550
    pooled = {
        (row["encoder"], row["task"]): row["D"]
        for row in document["discordance"]
        if row["level"] == "task" and row["task"] == "species"
    }
    assert by_encoder["UNI"]["birds"] == pooled["uni", "species"]


def test_table_4_by_hand():
    rules = [
        {"rule": "OR", "sample": "capped", "subset": "positives", "rate": 0.02},
        {"rule": "OR", "sample": "capped", "subset": "negatives", "rate": 0.9},
        {"rule": "oracle", "sample": "uncapped", "subset": "majority-discordant positives", "rate": 0.0},
    ]
    table = rule_table(rules, beside=True)
    assert column(table, "rule") == ["OR", "oracle"]
    assert column(table, "misses, all") == [0.02, None]
    assert column(table, "misses, all (paper)") == [0.019, None]
    assert column(table, "false positives (paper)") == [0.880, None]
    assert column(table, "misses, discordant, uncapped") == [None, 0.0]


def test_each_task_has_a_table_4_of_its_own():
    document = synthetic.three_encoders()
    row = {"rule": "OR", "sample": "capped", "subset": "negatives"}
    document["rules"] = [{**row, "task": task, "rate": rate} for task, rate in (("chest", 0.1), ("malignancy", 0.9))]
    tables = {table.name: table for table in paper_tables(document, beside=True)}
    assert column(tables["table_4"], "false positives") == [0.1]
    assert column(tables["table_4"], "false positives (paper)") == [0.880]
    assert column(tables["table_4_malignancy"], "false positives") == [0.9]
    assert "false positives (paper)" not in tables["table_4_malignancy"].columns
    assert "malignancy" in tables["table_4_malignancy"].title


def test_table_1_counts_the_data():
    table = paper_tables(synthetic.three_encoders())[0]
    assert table.rows[0]["images"] == 605
    assert table.rows[1]["findings"] == 4
    assert table.rows[1]["positive queries"] == 620 + 55 + 220 + 30


def test_published_names_are_those_of_the_cards():
    cards = {path.stem for path in resource("configs", "encoders").glob("*.yaml")}
    tasks = {read_yaml(path)["name"] for path in resource("configs", "tasks").glob("*.yaml")}
    paper = published()
    assert set(paper["table_2"]["encoders"]) <= cards
    assert set(paper["table_3"]["encoders"]) <= cards
    assert set(paper["table_3"]["tasks"]) | {paper["table_2"]["task"]} <= tasks
    assert len(set(paper["table_2"]["encoders"]) | set(paper["table_3"]["encoders"])) == 22
    for row in (*paper["table_3"]["encoders"].values(), paper["table_3"]["queries"], paper["table_3"]["delta_jaccard"]):
        assert set(row) <= set(paper["table_3"]["tasks"])


def test_written_files(tmp_path):
    files = write_paper_tables(tmp_path, synthetic.three_encoders(), beside=True)
    assert {file.name for file in files} == {f"table_{n}.{s}" for n in (1, 2) for s in ("csv", "md", "tex")}
    assert set(files) == set(tmp_path.iterdir())
