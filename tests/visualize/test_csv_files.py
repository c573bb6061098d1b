from __future__ import annotations

import csv
import io
import os

import numpy as np
import pandas as pd
import pytest

from candor_monai.visualize.csv_files import csv_text, plain_text, write_csv


def test_two_rows_by_hand(tmp_path):
    write_csv(tmp_path / "t.csv", [{"finding": "Edema", "D": 0.25}, {"finding": "Hernia", "D": None}], ["finding", "D"])
    assert (tmp_path / "t.csv").read_text() == "finding,D\nEdema,0.25\nHernia,\n"


def test_floats_round_trip():
    values = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, np.float64(2 / 3)]
    cells = csv_text([{"x": v} for v in values], ["x"]).splitlines()[1:]
    assert [float(c) for c in cells] == [float(v) for v in values]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_text_cannot_run_as_a_formula(start):
    text = start + 'cmd|"/c calc"!A1'
    (row,) = list(csv.DictReader(io.StringIO(csv_text([{"x": text, "n": -1.5}], ["x", "n"]), newline="")))
    assert row["x"] == "'" + text
    assert plain_text(row["x"]) == text
    assert row["n"] == "-1.5"


def test_column_names_are_text_too():
    assert csv_text([], ["=a"]) == "'=a\n"


def test_frames_and_numpy_scalars():
    frame = pd.DataFrame({"id": ["a", None], "n": [1.5, np.nan], "ok": [True, False]})
    assert csv_text(frame, ["id", "n", "ok"]) == "id,n,ok\na,1.5,true\n,,false\n"
    assert csv_text([{"n": np.int64(3), "b": np.bool_(True)}], ["n", "b"]) == "n,b\n3,true\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": float("nan")}, "row 0, column 'x'"),
        ({"x": float("-inf")}, "row 0, column 'x'"),
        ({"y": 1}, r"row 0 has the keys \['y'\]"),
    ],
)
def test_refused(row, message):
    with pytest.raises(ValueError, match=message):
        csv_text([row], ["x"])


def test_refuses_a_list():
    with pytest.raises(TypeError, match="column 'x'"):
        csv_text([{"x": [1]}], ["x"])


def test_a_refused_table_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    write_csv(path, [{"x": 1}], ["x"])
    with pytest.raises(ValueError):
        write_csv(path, [{"x": 2}, {"x": float("nan")}], ["x"])
    assert path.read_text() == "x\n1\n"
    assert os.listdir(tmp_path) == ["t.csv"]
