"""Features computed elsewhere: every kind of file, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.feather
import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohorts.features import read_features
from candor_monai.utils import UserError

from .trees import labels_of, reasons

IDS = [f"i{k}" for k in range(6)]
MATRIX = np.arange(24, dtype=np.float32).reshape(6, 4) + 1


@pytest.fixture
def folder(tmp_path):
    rows = pd.DataFrame({"image_id": IDS[::-1], "Edema": [1, 0, 1, 0, 1, 0], "patient_id": IDS[::-1], "view": "PA"})
    rows.to_csv(tmp_path / "labels.csv", index=False)
    np.savez(tmp_path / "f.npz", features=MATRIX, image_id=IDS)
    np.save(tmp_path / "f.npy", MATRIX)
    (tmp_path / "ids.txt").write_text("\n".join(IDS))
    pd.DataFrame({"image_id": IDS, "feature": list(MATRIX)}).to_parquet(tmp_path / "f.parquet")
    pd.DataFrame({"image_id": IDS, "feature": list(MATRIX)}).to_feather(tmp_path / "f.arrow")
    pd.DataFrame(MATRIX, columns=["f0", "f1", "f2", "f3"]).assign(id=IDS, age=[50] * 6).to_parquet(
        tmp_path / "wide.parquet"
    )
    return tmp_path


def load(root, features, **options):
    return load_cohort("features", root, labels="labels.csv", findings="Edema", features=features, **options)


@pytest.mark.parametrize(
    "name, options",
    [("f.npz", {}), ("f.npy", {"feature_ids": "ids.txt"}), ("f.parquet", {}), ("f.arrow", {}), ("wide.parquet", {})],
)
def test_every_kind_says_the_same(folder, name, options):
    cohort = load(folder, name, **options)
    assert cohort.records["image_id"].tolist() == IDS
    assert np.array_equal(cohort.features, MATRIX)
    assert labels_of(cohort, "Edema") == {"i0": 0, "i1": 1, "i2": 0, "i3": 1, "i4": 0, "i5": 1}
    assert cohort.groups()[1] == ("site=features|view=PA",)


@pytest.mark.parametrize("extra", ["Edema", "age", "probability2x"])
def test_labels_and_covariates_are_never_taken_for_features(folder, extra):
    table = pd.DataFrame(MATRIX, columns=["f0", "f1", "f2", "f3"]).assign(id=IDS, **{extra: 0.5})
    table.to_parquet(folder / "leak.parquet")
    with pytest.raises(UserError, match=f"no numbered series .'f0', '{extra}'"):
        load(folder, "leak.parquet")


def test_npy_without_ids_follows_the_tables_order(folder):
    cohort = load(folder, "f.npy")
    assert cohort.records["image_id"].tolist() == IDS[::-1]
    assert labels_of(cohort, "Edema")["i5"] == 1


def test_rows_without_features_and_features_without_rows(folder):
    rows = pd.read_csv(folder / "labels.csv").replace("i0", "lost")
    rows.to_csv(folder / "labels.csv", index=False)
    cohort = load(folder, "f.npz")
    assert reasons(cohort) == {"lost": "no_feature", "i0": "no_label_row"}
    assert len(cohort) == len(cohort.features) == 5


def test_bad_rows_are_rejected(folder):
    matrix = MATRIX.copy()
    matrix[1, 2], matrix[3] = np.nan, 0
    np.savez(folder / "f.npz", features=matrix, image_id=IDS)
    cohort = load(folder, "f.npz")
    assert reasons(cohort) == {"i1": "bad_feature", "i3": "bad_feature"}
    assert np.isfinite(cohort.features).all()


def test_objects_are_never_unpickled(folder, tmp_path):
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="not a plain NumPy array"):
        read_features(tmp_path / "o.npy", pd.Series(["a"]))
    (tmp_path / "p.npy").write_bytes(pickle.dumps([1]))
    with pytest.raises(UserError, match="not a plain NumPy array"):
        read_features(tmp_path / "p.npy", pd.Series(["a"]))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"features": "nope.npz"}, "no such file of features"),
        ({"features": None}, "needs --features.*f.npz"),
        ({"features": "labels.csv"}, "features are read from"),
        ({"features": "wide.parquet", "id_column": "image"}, "unknown column of wide.parquet"),
        (
            {"features": "f.npy", "feature_ids": "short.txt"},
            "holds 6 features, short.txt names 2 ids: one id a feature",
        ),
        ({"features": "twice.npz"}, r"twice.npz: id 'a' occurs twice \(rows 1 and 2\)"),
        ({"features": "f.npy", "feature_ids": "twice.txt"}, r"twice.txt: id 'a' occurs twice \(rows 2 and 5\)"),
        ({"features": "other.npz"}, "none of its 6 ids is among"),
        ({"features": "flat.npz"}, "must be numbers"),
        ({"features": "nameless.npz"}, "needs arrays"),
        ({"features": "single.npz"}, r"ids of shape \(1,\) for features of shape \(\); one id a feature"),
        ({"features": "square.npz"}, r"ids of shape \(6, 1\) for features of shape"),
        ({"features": "things.npz"}, r"the array 'features' holds Python objects.*features.astype\(np.float32\)"),
        ({"features": "objects.npz"}, r"the array 'image_id' holds Python objects.*image_id.astype\(str\)"),
        ({"features": "scalar.parquet"}, "column 'feature': holds no lists of numbers but double"),
        ({"features": "empty.parquet"}, "holds no features"),
        ({"features": "repeated.arrow"}, "two columns are called 'image_id'"),
    ],
)
def test_what_is_refused(folder, options, message):
    (folder / "short.txt").write_text("a\nb\n")
    (folder / "twice.txt").write_text("b\na\nc\nd\na\ne\n")
    np.savez(folder / "twice.npz", features=MATRIX[:2], image_id=["a", "a"])
    np.savez(folder / "other.npz", features=MATRIX[:2], image_id=["a", "b"])
    np.savez(folder / "flat.npz", features=MATRIX[:, 0], image_id=IDS)
    np.savez(folder / "nameless.npz", MATRIX)
    np.savez(folder / "single.npz", features=np.array(3.0), image_id=["a"])
    np.savez(folder / "square.npz", features=MATRIX, image_id=np.array(IDS)[:, None])
    np.savez(folder / "objects.npz", features=MATRIX, image_id=np.array(IDS, dtype=object))
    np.savez(folder / "things.npz", features=MATRIX.astype(object), image_id=IDS)
    pd.DataFrame({"image_id": ["a"], "feature": [1.0]}).to_parquet(folder / "scalar.parquet")
    pd.DataFrame({"image_id": [], "feature": []}).to_parquet(folder / "empty.parquet")
    repeated = pyarrow.table([["a"], ["b"], [1.0]], names=["image_id", "image_id", "f0"])
    pyarrow.feather.write_feather(repeated, folder / "repeated.arrow")
    with pytest.raises(UserError, match=message):
        load(folder, **options)


def test_ids_as_bytes_or_with_spaces_and_features_beyond_float32(folder):
    ids = np.array([f" {i} ".encode() for i in IDS])
    wide = MATRIX.astype(np.float64)
    wide[0] = 1e300
    np.savez(folder / "bytes.npz", features=wide, image_id=ids)
    cohort = load(folder, features="bytes.npz")
    assert sorted(cohort.records["image_id"]) == sorted(IDS[1:])
    assert reasons(cohort)[IDS[0]] == "bad_feature"
