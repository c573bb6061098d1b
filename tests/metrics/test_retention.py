"""Retention against slow references, and where it is not defined."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.resampling import patient_weights
from candor_monai.metrics.retention import COLUMNS, association, baseline_pairs, cosine, retention, share_lowered_more


def example(n: int = 40, d: int = 6, patients: int = 25, seed: int = 0):
    random = np.random.default_rng(seed)
    original = random.normal(size=(n, d)).astype(np.float32) + 2
    covered = original + random.normal(size=(n, d)).astype(np.float32) * 0.8
    control = original + random.normal(size=(n, d)).astype(np.float32) * 0.4
    has = random.random(n) < 0.8
    ids = [f"i{i:03}" for i in range(n)]
    whose = [f"p{random.integers(patients):02}" for _ in range(n)]
    return original, covered, control, has, ids, whose


def test_by_hand():
    # three images whose features turn by 60°, 0° and 90° when the finding is covered: cosines ½, 1, 0
    original = np.array([[1.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    covered = np.array([[1.0, np.sqrt(3)], [0.0, 1.0], [0.0, 2.0]])
    control = np.array([[5.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = retention(original, covered, control, np.ones(3, bool), ["a", "b", "c"], ["p", "q", "p"], resamples=10)
    assert found.rho.estimate == pytest.approx(0.5)
    assert found.drop.estimate == pytest.approx(0.5)
    assert found.rho_control.estimate == 1.0
    assert found.difference.estimate == pytest.approx(0.5)
    assert found.n_pairs == 2  # a and c are one patient's
    assert found.baseline.estimate == 0.0
    assert found.standardised.estimate == pytest.approx(0.5)
    assert found.rho.lo is None
    assert found.rho.reason == "fewer than 10 patients (2)"


def slow(original, covered, control, has, ids, whose, seed, resamples):
    """Every number again, image by image and resample by resample."""

    def cos(a, b):
        return float(
            np.dot(a.astype(float), b.astype(float)) / np.linalg.norm(a.astype(float)) / np.linalg.norm(b.astype(float))
        )

    names = sorted(set(whose))
    weights = patient_weights(names, seed, resamples)
    pairs = [(i, j) for i, j in itertools.combinations(range(len(ids)), 2) if whose[i] != whose[j]]

    def numbers(weight):
        w = [weight[name] for name in whose]
        total = sum(w)
        rho = sum(w[i] * cos(original[i], covered[i]) for i in range(len(ids))) / total
        with_control = [i for i in range(len(ids)) if has[i]]
        below = sum(w[i] for i in with_control)
        rho_control = sum(w[i] * cos(original[i], control[i]) for i in with_control) / below
        gap = sum(w[i] * (cos(original[i], control[i]) - cos(original[i], covered[i])) for i in with_control) / below
        c = sum(w[i] * w[j] * cos(original[i], original[j]) for i, j in pairs) / sum(w[i] * w[j] for i, j in pairs)
        return {
            "retention": rho,
            "control": rho_control,
            "drop": 1 - rho,
            "control_drop": 1 - rho_control,
            "difference": gap,
            "baseline": c,
            "standardised": (rho - c) / (1 - c),
            "standardised_control": (rho_control - c) / (1 - c),
        }

    whole = numbers(dict.fromkeys(names, 1))
    many = [numbers(dict(zip(names, weights[:, b].tolist(), strict=True))) for b in range(resamples)]
    row = {}
    for name, value in whole.items():
        lo, hi = np.quantile([one[name] for one in many], [0.025, 0.975])
        row |= {name: value, f"{name}_lo": float(lo), f"{name}_hi": float(hi)}
    return row


@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_slow_reference(seed: int):
    data = example(seed=seed)
    row = retention(*data, seed=7, resamples=60).row()
    expected = slow(*data, seed=7, resamples=60)
    assert set(expected) == {c + part for c in COLUMNS for part in ("", "_lo", "_hi")}
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-12), name
    assert row["status"] == "ok"


def test_order_of_rows_plays_no_part():
    original, covered, control, has, ids, whose = example(n=200)
    order = np.random.default_rng(5).permutation(200)
    first = retention(original, covered, control, has, ids, whose, resamples=50, max_pairs=500).row()
    second = retention(
        original[order],
        covered[order],
        control[order],
        has[order],
        [ids[i] for i in order],
        [whose[i] for i in order],
        resamples=50,
        max_pairs=500,
    ).row()
    for name, value in first.items():
        assert second[name] == pytest.approx(value, abs=1e-13) if isinstance(value, float) else second[name] == value


def test_nothing_changed_is_full_retention():
    original, _, _, has, ids, whose = example()
    found = retention(original, original, original, has, ids, whose, resamples=50)
    assert found.rho.estimate == pytest.approx(1, abs=1e-12)
    assert found.difference.estimate == pytest.approx(0, abs=1e-12)
    assert found.standardised.estimate == pytest.approx(1, abs=1e-12)


def test_an_encoder_whose_features_are_all_alike_has_no_standardised_value():
    original = np.tile(np.arange(1.0, 5.0), (30, 1))
    found = retention(
        original, original, original, np.ones(30, bool), [str(i) for i in range(30)], [str(i) for i in range(30)]
    )
    assert found.baseline.estimate == pytest.approx(1)
    assert found.standardised.estimate is None
    assert found.standardised.reason == "all images are alike to this encoder (1 - c below 0.01)"


@pytest.mark.parametrize("degrees, defined", [(8.0, False), (8.2, True)])
def test_nothing_is_standardised_by_next_to_nothing(degrees: float, defined: bool):
    # two images so many degrees apart: c = cos 8° = 0.9903, cos 8.2° = 0.9898; covering turns each by 90°
    angle = np.radians(degrees)
    original = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    covered = np.array([[0.0, 1.0], [-np.sin(angle), np.cos(angle)]])
    row = retention(original, covered, original, np.ones(2, bool), ["a", "b"], ["p", "q"], resamples=10).row()
    c = np.cos(angle)
    assert (row["retention"], row["baseline"]) == (pytest.approx(0, abs=1e-12), pytest.approx(c))
    assert row["standardised"] == (pytest.approx(-c / (1 - c)) if defined else None)
    assert row["standardised_control"] == (pytest.approx(1) if defined else None)
    alike = "standardised: all images are alike to this encoder (1 - c below 0.01)"
    assert row["reason"] == "fewer than 10 patients (2)" + ("" if defined else f"; {alike}")


def test_degenerate_inputs():
    empty = np.zeros((0, 4))
    row = retention(empty, empty, empty, np.zeros(0, bool), [], []).row()
    assert (row["n_images"], row["retention"], row["status"], row["reason"]) == (
        0,
        None,
        "insufficient",
        "no boxed image",
    )
    original, covered, control, _, ids, whose = example()
    row = retention(original, covered, control * np.nan, np.zeros(40, bool), ids, whose, resamples=20).row()
    assert row["control"] is None
    assert row["difference"] is None
    assert row["retention"] is not None
    assert row["reason"] == "no control"
    row = retention(original, covered, control, np.ones(40, bool), ids, ["p"] * 40, resamples=20).row()
    assert row["standardised"] is None
    assert row["n_pairs"] == 0
    assert row["retention_lo"] is None
    one = retention(original[:1], covered[:1], control[:1], np.ones(1, bool), ids[:1], whose[:1], resamples=20).row()
    assert one["retention"] is not None


@pytest.mark.parametrize(
    "change, match",
    [
        ({"covered": np.zeros((39, 6))}, "covered has 39 rows"),
        ({"has_control": np.ones(3, bool)}, "has_control has shape"),
        ({"patients": ["p"]}, "patients has 1 rows"),
        ({"image_ids": ["a"] * 40}, "distinct"),
        ({"original": np.zeros((40, 6))}, r"first\[0\] is zero"),
        ({"covered": np.full((40, 6), np.nan)}, r"second\[0\] is zero or not finite"),
    ],
)
def test_errors(change: dict, match: str):
    names = ("original", "covered", "control", "has_control", "image_ids", "patients")
    arguments = dict(zip(names, example(), strict=True)) | change
    with pytest.raises(ValueError, match=match):
        retention(**arguments)


def test_pairs_are_of_different_patients_and_few():
    ids = [f"{i}" for i in range(300)]
    codes = np.arange(300) // 2
    pairs = baseline_pairs(ids, codes, seed=1, most=1000)
    assert 900 < len(pairs) <= 1000
    assert (codes[pairs[:, 0]] != codes[pairs[:, 1]]).all()
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == len(pairs)
    assert not np.array_equal(pairs, baseline_pairs(ids, codes, seed=2, most=1000))
    assert len(baseline_pairs(ids[:4], codes[:4], seed=1)) == 4


def test_cosine():
    assert cosine(np.array([[1e-20, 0]]), np.array([[1e20, 1e20]]))[0] == pytest.approx(np.sqrt(0.5))
    with pytest.raises(ValueError, match="first has shape"):
        cosine(np.ones((2, 2)), np.ones((2, 3)))


def test_association_is_spearmans():
    random = np.random.default_rng(0)
    retained = {f"e{i}": float(v) for i, v in enumerate(random.random(11))}
    discordance = {f"e{i}": float(v) for i, v in enumerate(random.random(11))}
    found = association(retained, discordance)
    expected = stats.spearmanr(list(retained.values()), list(discordance.values()))
    assert (found.spearman, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue, abs=0.02))
    three = association({"a": 0.9, "b": 0.8, "c": 0.7}, {"a": 0.5, "b": 0.3, "c": 0.1})
    assert (three.spearman, three.p) == (pytest.approx(1), 2 / 6), "of six orders two are as extreme"
    assert association(retained | {"e0": None, "e1": None}, discordance).n_encoders == 9
    assert association({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).reason == "fewer than 3 encoders have both numbers"
    flat = association({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0})
    assert (flat.spearman, flat.reason) == (None, "all encoders have the same number")
    assert share_lowered_more({"a": 0.1, "b": 0.0, "c": -1, "d": None}) == (1, 3)
