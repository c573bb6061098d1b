from __future__ import annotations

import csv

from candor_monai.visualize.table_files import TextTable, latex, markdown, write_table


def table():
    rows = [{"encoder": "a_b & co", "D": 1 / 3, "n": 1200}, {"encoder": "<script>|", "D": None, "n": None}]
    return TextTable("t", "Title 100 %", ("encoder", "D", "n"), rows, ("A note with D_all.",))


def test_by_hand():
    assert markdown(table()).splitlines() == [
        "### Title 100 %",
        "",
        "| encoder | D | n |",
        "| :-- | --: | --: |",
        "| a\\_b & co | 0.333 | 1,200 |",
        "| \\<script\\>\\| | – | – |",
        "",
        "A note with D\\_all.",
    ]
    assert latex(table()).splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\caption{Title 100 \%. A note with D\_all.}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"encoder & D & n \\",
        r"\midrule",
        r"a\_b \& co & 0.333 & 1,200 \\",
        r"\textless{}script\textgreater{}\textbar{} & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_line_breaks_cannot_break_a_table():
    broken = TextTable("t", "T", ("a",), [{"a": "x\n| y\r\nz"}])
    assert markdown(broken).splitlines()[-1] == "| x \\| y z |"
    assert "x \\textbar{} y z \\\\" in latex(broken)


def test_backslashes_stay_backslashes():
    once = TextTable("t", "T", ("a",), [{"a": "\\input{x}"}])
    assert r"\textbackslash{}input\{x\}" in latex(once)


def test_written_files(tmp_path):
    files = write_table(tmp_path / "new", table())
    assert [file.name for file in files] == ["t.csv", "t.md", "t.tex"]
    with open(files[0], newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert float(rows[0]["D"]) == 1 / 3  # exact, not rounded
    assert rows[1]["D"] == ""
