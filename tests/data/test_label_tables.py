"""Label tables: text stays text, whatever the file is."""

from __future__ import annotations

import gzip
import os
import zipfile

import pandas as pd
import pyarrow
import pyarrow.feather
import pytest

from candor_monai.data.label_tables import check_unique, find_column, read_lines, read_table
from candor_monai.utils import UserError


def test_ids_keep_their_digits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,v\n00012,1.0\n216840111366964012819207061112010307142602253,\n")
    table = read_table(path)
    assert table["id"].tolist() == ["00012", "216840111366964012819207061112010307142602253"]
    assert table["v"].tolist() == ["1.0", ""]


def test_bom_crlf_quotes_line_breaks_and_trailing_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfid, report ,,\r\n1,"two\nlines, and a comma",,\r\n2,"a ""quoted"" word",,\r\n')
    table = read_table(path)
    assert table.columns.tolist() == ["id", "report"]
    assert table["report"].tolist() == ["two\nlines, and a comma", 'a "quoted" word']


@pytest.mark.parametrize("separator, suffix", [(";", ".csv"), ("\t", ".tsv"), ("\t", ".csv"), ("|", ".txt")])
def test_delimiters_are_seen(tmp_path, separator, suffix):
    path = tmp_path / f"t{suffix}"
    path.write_text(separator.join(["id", "a"]) + "\n" + separator.join(["1", "x,y"]) + "\n")
    assert read_table(path)["a"].tolist() == ["x,y"]


def test_gz_zip_parquet_and_arrow_say_the_same(tmp_path):
    text = "id,Edema\n01,1.0\n02,\n"
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", text)
    frame = pd.DataFrame({"id": ["01", "02"], "Edema": [1.0, None]})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.arrow")
    for name in ("t.csv", "t.csv.gz", "t.csv.zip", "t.parquet", "t.arrow"):
        table = read_table(tmp_path / name)
        assert table["id"].tolist() == ["01", "02"], name
        assert table["Edema"].tolist() == ["1.0", ""], name


def test_chosen_columns_only(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n")
    assert read_table(tmp_path / "t.csv", {"a", "c"}.__contains__).columns.tolist() == ["a", "c"]


def test_headerless_list(tmp_path):
    (tmp_path / "t.txt").write_text("x.png\ny.png\n")
    assert read_table(tmp_path / "t.txt", header=["image"])["image"].tolist() == ["x.png", "y.png"]


@pytest.mark.parametrize("text", ["a,b,,\n1,2\n3,4\n", "a,b\n1,2,,\n3,4,,\n"])
def test_trailing_commas_on_header_or_rows_only(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    assert read_table(tmp_path / "t.csv").to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"]}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("t.csv", b"", "empty"),
        ("t.csv", b"a,b\n", "no rows"),
        ("t.csv", b"a,b\n1,2,3\n", "row 1: 3 fields where 2 are expected"),
        ("t.csv", b'\n"a\na",b\n\n1,"2\n2"\n\n3\n', "row 2: 1 fields where 2 are expected"),
        ("t.csv", b'a,b\n1,"' + b"2\n" * (1 << 24) + b"3,4\n", "longer than 16 MiB: a quote may be opened"),
        ("t.csv", b'a,b\n1,2\n3,"4\n5,6\n', "row 2: a quote is opened and never closed"),
        ("t.csv", b'a,b\r1,2\r3,"4\r5,6\r', "row 2: a quote is opened and never closed"),
        ("t.csv", b"\n\n", "empty"),
        ("t.csv", b"a,b\n1,\xe4\n", "not utf-8"),
        ("t.xlsx", b"PK", "not a kind of table"),
        ("t.csv.gz", b"not gzip", "cannot be read"),
        ("t.csv.zip", b"not zip", "cannot be read"),
        ("t.parquet", b"not parquet", "cannot be read"),
    ],
)
def test_bad_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_table(tmp_path / name)
    assert name in str(error.value)


def test_quotes_that_are_closed(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n1,5" film\n2,"x\ny ""z"""\n')
    assert read_table(tmp_path / "t.csv")["b"].tolist() == ['5" film', 'x\ny "z"']
    for text in ('a,b\n"x\ny",2\n', 'b,a,,\n2,"x\ny",,\n'):
        (tmp_path / "t.csv").write_text(text)
        for columns in (None, {"a"}.__contains__):
            assert read_table(tmp_path / "t.csv", columns)["a"].tolist() == ["x\ny"]


def test_a_row_that_does_not_fit_is_not_quoted(tmp_path):
    (tmp_path / "t.csv").write_text("id,label\n1,0\n2,Doe,Jane,1\n")
    with pytest.raises(UserError, match=r"t\.csv, row 2: 4 fields where 2 are expected\. .*delimiter ','") as error:
        read_table(tmp_path / "t.csv")
    assert "Jane" not in str(error.value)


def test_what_is_no_table(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone.csv")
    (tmp_path / "circle.csv").symlink_to(tmp_path / "circle.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    for name, message in (
        ("t.csv", r"t\.csv: there is no such table"),
        ("folder.csv", r"folder\.csv: a folder, not a table"),
        ("link.csv", r"link\.csv: a link to a table that is not there"),
        ("circle.csv", "the table cannot be read: Too many levels"),
        ("pipe.csv", "no regular file"),
        ("a\0b.csv", r"a\\x00b\.csv': there is no such table: no path holds"),
        ("x" * 300 + ".csv", "the table cannot be read: File name too long"),
        ("link.csv/t.csv", "there is no such table"),
    ):
        with pytest.raises(UserError, match=message):
            read_table(tmp_path / name)


def test_lines_of_a_text_file(tmp_path):
    (tmp_path / "t.txt").write_bytes("\ufeff a b \r\n\n007\n".encode())
    assert read_lines(tmp_path / "t.txt", "list") == ["a b", "007"]
    (tmp_path / "t.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"t\.txt: the list cannot be read"):
        read_lines(tmp_path / "t.txt", "list")
    with pytest.raises(UserError, match="there is no such list"):
        read_lines(tmp_path / "u.txt", "list")


def test_other_encodings_are_named(tmp_path):
    (tmp_path / "t.csv").write_bytes("a;b\n1;ä\n".encode("cp1252"))
    assert read_table(tmp_path / "t.csv", encoding="cp1252")["b"].tolist() == ["ä"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "shift_jis"])
def test_encodings_of_more_than_one_byte(tmp_path, encoding):
    text = "id;name\n007;日本\n008;\n"
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert read_table(tmp_path / "t.csv", encoding=encoding).to_dict("list") == {
        "id": ["007", "008"],
        "name": ["日本", ""],
    }


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8-SIG", "utf-16-le"])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("\ufeffid,v\n1,2\n".encode("utf-8" if "8" in encoding else encoding))
    assert read_table(tmp_path / "t.csv", encoding=encoding).columns.tolist() == ["id", "v"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_table_in_utf16_read_as_utf8_is_told_so(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("id,v\n1,2\n".encode(encoding))
    with pytest.raises(UserError, match=r"t\.csv: not utf-8-sig text\. .*the option encoding .* e\.g\. utf-16"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "", "a\0b"])
def test_an_encoding_that_does_not_exist(tmp_path, encoding):
    (tmp_path / "t.csv").write_text("id,v\n1,2\n")
    with pytest.raises(UserError, match=r"encoding '.*' is none that Python knows"):
        read_table(tmp_path / "t.csv", encoding=encoding)


def test_an_encoding_that_fails_in_the_middle(tmp_path):
    (tmp_path / "t.csv").write_bytes("id,v\n".encode("utf-16") + "1,2\n".encode("utf-16-le") + b"3")
    with pytest.raises(UserError, match="not utf-16 text"):
        read_table(tmp_path / "t.csv", encoding="utf-16")
    with pytest.raises(UserError, match="not undefined text"):
        read_table(tmp_path / "t.csv", encoding="undefined")


def test_a_repeated_column_is_refused_when_it_is_used(tmp_path):
    (tmp_path / "t.csv").write_text("id,v,v ,v.1,,w\n1,2,3,4,,5\n")
    table = read_table(tmp_path / "t.csv")
    assert table.columns.tolist() == ["id", "v", "v.2", "v.1", "w"]
    assert find_column(table, "w", "t.csv") == "w"
    with pytest.raises(UserError, match=r"t\.csv: two columns are called 'v'"):
        find_column(table[table["id"] == "1"].iloc[[0]].reset_index(drop=True), "v", "t.csv")


def test_repeated_columns_of_arrow_files(tmp_path):
    table = pyarrow.table([["1"], [2], [3], [None]], names=["id", "v", "v ", "v"])
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow")
    read = read_table(tmp_path / "t.arrow")
    assert read.to_dict("list") == {"id": ["1"], "v": ["2"], "v.2": ["3"], "v.3": [""]}
    with pytest.raises(UserError, match=r"two columns are called 'v'"):
        find_column(read, "v", "t.arrow")


def test_keys_that_occur_twice():
    keys = pd.Series(["a", "b", "c", "b"])
    check_unique(keys[:3], "x/t.csv")
    with pytest.raises(UserError, match=r"^t\.csv: study 'b' has two rows: row 2 and row 4\.$"):
        check_unique(keys, "x/t.csv", "study")
    with pytest.raises(UserError, match=r"^t\.csv: image 'b' has two reports\.$"):
        check_unique(keys, "x/t.csv", of="reports")
