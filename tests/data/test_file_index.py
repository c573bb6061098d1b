"""File index: listings, roots, tables side by side, paths that stay inside."""

from __future__ import annotations

import gzip
import os

import pandas as pd
import pytest

from candor_monai.data.file_index import FileIndex, find_root, find_table, inside
from candor_monai.utils import UserError

from .cohorts.trees import refuse_to_list, touch


def test_presence_by_listing(tmp_path):
    touch(tmp_path, ["a/1.png", "a/2.png", "3.png"])
    files = FileIndex(tmp_path)
    assert files.present(pd.Series(["a/1.png", "a/9.png", "b/1.png", "3.png"])).tolist() == [True, False, False, True]


def test_listing_each_folder_once(tmp_path, monkeypatch):
    touch(tmp_path, [f"a/{i}.png" for i in range(50)])
    calls = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: calls.append(path) or real(path))
    assert FileIndex(tmp_path).present(pd.Series([f"a/{i}.png" for i in range(50)])).all()
    assert len(calls) == 1


def test_other_case_and_other_suffix(tmp_path):
    touch(tmp_path, ["a/IM1.JPG", "a/2.dicom"])
    files = FileIndex(tmp_path)
    assert files.resolve("a/IM1.jpg") == "a/IM1.JPG"
    assert files.resolve("a/2.dcm", (".dicom", ".png")) == "a/2.dicom"
    assert files.resolve("a/3.png", (".jpg",)) is None


def test_packed_nifti_files_have_one_suffix(tmp_path):
    touch(tmp_path, ["a.nii.gz", "b.png"])
    files = FileIndex(tmp_path)
    assert files.resolve("a.png", (".nii.gz",)) == "a.nii.gz"
    assert files.resolve("b.nii.gz", (".png",)) == "b.png"


def test_walk_is_sorted_and_skips_hidden(tmp_path):
    touch(tmp_path, ["b/2", "b/1", "a", ".hidden/x", "c/.x"])
    assert list(FileIndex(tmp_path).walk()) == ["a", "b/1", "b/2"]


def test_walk_does_not_follow_links_to_folders(tmp_path):
    touch(tmp_path, ["a/1"])
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    files = FileIndex(tmp_path)
    assert list(files.walk()) == ["a/1"]
    assert files.links == ["a/loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_unreadable_folders_are_recorded(tmp_path):
    touch(tmp_path, ["a/1", "b/1"])
    (tmp_path / "a").chmod(0)
    files = FileIndex(tmp_path)
    assert list(files.walk()) == ["b/1"]
    assert files.unreadable == ["a"]


def test_a_folder_that_cannot_be_listed_is_recorded(tmp_path, monkeypatch):
    touch(tmp_path, ["a/1", "b/1"])
    refuse_to_list(monkeypatch, "/a")
    files = FileIndex(tmp_path)
    assert list(files.walk()) == ["b/1"]
    assert files.unreadable == ["a"]


@pytest.mark.parametrize("text", ["/etc/passwd", "../x", "a/../../x", "..", "C:\\x.png", "a/..\\..\\x"])
def test_paths_stay_inside(text):
    with pytest.raises(UserError, match=r"t\.csv, row 2: the path .* leaves the dataset's folder"):
        inside(pd.Series(["ok.png", text]), "t.csv")


def test_a_path_with_a_nul_is_none():
    with pytest.raises(UserError, match=r"t\.csv, row 1: 'a\\x00b' is no path: it holds the character NUL"):
        inside(pd.Series(["a\x00b"]), "t.csv", allow_outside=True)


def test_harmless_paths_are_put_straight():
    assert inside(pd.Series(["./a.png", "a//b.png", "a/../b.png", "a..b/c..png"]), "t").tolist() == [
        "a.png",
        "a/b.png",
        "b.png",
        "a..b/c..png",
    ]


def test_absolute_paths_when_allowed():
    assert inside(pd.Series(["/data/x.png"]), "t", allow_outside=True).tolist() == ["/data/x.png"]


def test_absolute_paths_below_the_root(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    paths = pd.Series([f"{tmp_path}/a/b.png", f"{tmp_path}/link/b.png", "a.png"])
    assert inside(paths, "t", root=tmp_path).tolist() == ["a/b.png", "link/b.png", "a.png"]
    assert inside(paths[:1], "t", root=tmp_path / "link").tolist() == ["a/b.png"]
    with pytest.raises(UserError, match="leaves the dataset's folder"):
        inside(pd.Series([f"{tmp_path}2/a.png"]), "t", root=tmp_path)


def test_root_here_and_below(tmp_path):
    touch(tmp_path, ["outer/inner/train.csv"])
    for start in (tmp_path, tmp_path / "outer", tmp_path / "outer" / "inner"):
        assert find_root(start, ["train.csv"], "x") == tmp_path / "outer" / "inner"


def test_one_level_too_deep_names_the_root(tmp_path):
    touch(tmp_path, ["train.csv", "train/p1/1.jpg"])
    with pytest.raises(UserError, match=f"lies inside x; the dataset's root is {tmp_path}"):
        find_root(tmp_path / "train", ["train.csv"], "x")


def test_wrong_root_says_what_was_looked_for_and_found(tmp_path):
    touch(tmp_path, ["other.csv"])
    with pytest.raises(UserError, match=r"Looked for train\.csv .* found other\.csv"):
        find_root(tmp_path, ["train.csv"], "x")


def test_two_roots_are_not_guessed_between(tmp_path):
    touch(tmp_path, ["a/train.csv", "b/train.csv"])
    with pytest.raises(UserError, match="2 folders look like x"):
        find_root(tmp_path, ["train.csv"], "x")


def test_versions_side_by_side(tmp_path):
    touch(tmp_path, ["Data_2017.csv", "Data_2017_v2.csv"])
    with pytest.raises(UserError, match=r"2 versions .* Data_2017\.csv, Data_2017_v2\.csv.*--cohort_options .*'table'"):
        find_table(tmp_path, ["Data_2017*.csv"], "x", "table")
    with pytest.raises(UserError, match=r"To go on, move the others away\."):
        find_table(tmp_path, ["Data_2017*.csv"], "x")


def test_a_table_beside_its_own_gz_is_one_table(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a\n1\n")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))
    assert find_table(tmp_path, ["t.csv*"], "x") == tmp_path / "t.csv"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\n2\n"))
    with pytest.raises(UserError, match="2 versions"):
        find_table(tmp_path, ["t.csv*"], "x")


def test_paths_that_cannot_be_are_not_there(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    paths = pd.Series(["x" * 300 + "/a.png", "circle/a.png", "a.png"])
    assert FileIndex(tmp_path).present(paths).tolist() == [False, False, False]
