"""The total interval, against worked examples and its own definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics import total_interval as total_interval_module
from candor_monai.metrics.half_samples import Halves
from candor_monai.metrics.roc import auroc
from candor_monai.metrics.total_interval import (
    SplitReplicates,
    auroc_variance,
    effective_number,
    hub_share,
    pool_splits,
    split_bits,
    total_interval,
    total_margin_replicates,
    total_p,
    total_replicates,
    total_variance,
    weighted_mean_splits,
)
from tests.metrics.inference_cases import gaussian_cell, mean_similarity

NAMES = [f"p{i}" for i in range(1000)]
FREEDOM = 1 / (1 / 39 + 1 / 2)  # of 40 patients and two splits


def replicates(table: list, estimate: float = 0.4, queries: int = 40, times: int = 1) -> SplitReplicates:
    values = np.tile(np.asarray(table, dtype=float), times)
    below = np.full((2, values.shape[2]), queries / 2)
    units = np.arange(queries)
    ones = np.ones(queries)
    return SplitReplicates(
        estimate, queries, values * below[:, None], below, units, ones, ones, 0 * ones, units[:10], float(queries)
    )


def test_worked_by_hand() -> None:
    # Two splits; the halves differ by 0.2 and −0.2, the candidates alone by nothing.
    table = np.array([[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]])
    assert total_variance(table) == pytest.approx(0.04 / 4)
    interval = total_interval(replicates(table))
    assert replicates(table).table()[0, 0].tolist() == [0.5, 0.3]
    number, t = (0.24 + 0.01) / 0.01, stats.t.ppf(0.975, FREEDOM)  # the halves' mean is 0.4, as the value
    # The limits solve |0.4 − θ| = t·√(θ(1 − θ)/25).
    for limit in (interval.lo, interval.hi):
        assert abs(0.4 - limit) == pytest.approx(t * np.sqrt(limit * (1 - limit) / number))
    assert (interval.estimate, interval.sd) == (0.4, pytest.approx(0.1))


def test_of_independent_queries_there_are_as_many_as_there_are() -> None:
    # D of n independent queries varies by θ(1 − θ)/n, which D(1 − D)/(n − 1) stands for.
    table = np.array([[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]])
    variance, number = 0.24 / 24, 25
    assert total_variance(table) == pytest.approx(variance)
    t = stats.t.ppf(0.975, FREEDOM)
    centre = (0.4 + t**2 / (2 * number)) / (1 + t**2 / number)  # Wilson 1927
    reach = t / (1 + t**2 / number) * np.sqrt(0.24 / number + (t / (2 * number)) ** 2)
    interval = total_interval(replicates(table))
    assert (interval.lo, interval.hi) == (pytest.approx(centre - reach), pytest.approx(centre + reach))
    p = total_p(replicates(table), null=0.5)
    assert p == pytest.approx(2 * stats.t.sf(0.1 / np.sqrt(0.25 / number), FREEDOM))


def test_the_candidates_own_variance_adds_its_share() -> None:
    # All queries of a split agree on which half of the candidates is better: T depends on b alone.
    table = np.array([[[0.5, 0.3], [0.3, 0.5]], [[0.5, 0.3], [0.3, 0.5]]])
    variance = 0.04 / 4 + 0.175 * 0.04 / 2
    assert total_variance(table) == pytest.approx(variance)
    # All of the variance is the hubs', of which 40 patients are neighbours: 16 degrees of freedom, and two splits.
    p = total_p(replicates(table), null=0.5)
    ratio = 0.1 / np.sqrt(0.25 * variance / (0.24 + variance))
    assert p == pytest.approx(2 * stats.t.sf(ratio, 1 / (1 / 16 + 1 / 2)))


@pytest.mark.parametrize("images_per_patient, same_patient", [(1, True), (4, True), (4, False)])
def test_halves_hold_what_the_measure_gives_on_them(images_per_patient: int, same_patient: bool) -> None:
    cell, features, units = gaussian_cell(
        3, 48, 72, images_per_patient=images_per_patient, same_patient=same_patient, shift=0.5
    )
    bits = split_bits(NAMES[:120], 42, 12)
    found = total_replicates(cell, features, units, bits, same_patient=same_patient)
    halves = Halves(bits, units[cell.cand_pos], units[cell.cand_neg], units[cell.queries], 5)
    for split in range(12):
        for b in (0, 1):
            c_pos, c_neg = (
                mean_similarity(
                    features, cell.queries, side[half[:, split] == b + 1], units, halves.neighbours[split], same_patient
                )
                for side, half in ((cell.cand_pos, halves.positive_half), (cell.cand_neg, halves.negative_half))
            )
            for a in (0, 1):
                mine = halves.query_half[:, split] == a + 1
                expected = np.mean(c_neg[mine] > c_pos[mine])
                assert found.table()[a, b, split] == pytest.approx(expected, abs=1e-12)
    assert found.queries.sum() == 48


def test_margin_auroc_in_halves() -> None:
    cell, features, units = gaussian_cell(3, 48, 72, shift=1.0)
    bits = split_bits(NAMES[:120], 42, 6)
    found = total_margin_replicates(cell, features, units, bits, np.arange(120))
    halves = Halves(bits, units[cell.cand_pos], units[cell.cand_neg], np.arange(120), 5)
    rows = np.arange(120)
    for split in range(6):
        for b in (0, 1):
            scores = [
                mean_similarity(features, rows, side[half[:, split] == b + 1], units, halves.neighbours[split], True)
                for side, half in ((cell.cand_pos, halves.positive_half), (cell.cand_neg, halves.negative_half))
            ]
            for a in (0, 1):
                mine = halves.query_half[:, split] == a + 1
                margin = scores[0][mine] - scores[1][mine]
                pairs = margin[rows[mine] < 48][:, None] - margin[rows[mine] >= 48][None, :]
                assert found.table()[a, b, split] == pytest.approx(np.mean(pairs > 0), abs=1e-12)
    margin = cell.margin[:48][:, None] - cell.margin[48:][None, :]
    assert found.estimate == pytest.approx(np.mean(margin > 0))
    interval = total_interval(found)
    assert interval.lo < found.estimate < interval.hi


def test_scoring_some_images_gives_the_variance_of_all() -> None:
    def spread(max_scored: int) -> float:
        variances = []
        for seed in range(8):
            cell, features, units = gaussian_cell(seed, 240, 240, shift=1.0, offset=6.0, width=32)
            bits = split_bits(NAMES[:480], 42, 60)
            rank = np.random.default_rng(seed).random(480)
            found = total_margin_replicates(cell, features, units, bits, rank, max_scored=max_scored)
            assert (found.thinned < 0.5) == (max_scored == 60)
            variances.append(total_interval(found).sd ** 2)
        return float(np.sqrt(np.mean(variances)))

    assert spread(60) == pytest.approx(spread(1000), rel=0.2)


def test_auroc_variance_does_not_depend_on_the_order_of_the_images() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores, positive, units = (
            rng.standard_normal(1200).round(2),
            rng.random(1200) < 0.3,
            rng.integers(600, size=1200),
        )
        by = rng.permutation(1200)
        assert auroc_variance(scores, positive, units) == auroc_variance(scores[by], positive[by], units[by])


def test_auroc_variance_equals_delong() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=90), np.arange(90) < 40
    scores[positive] += 1
    pairs = np.sign(scores[positive][:, None] - scores[~positive][None, :]) / 2 + 0.5
    v10, v01 = pairs.mean(axis=1), pairs.mean(axis=0)
    expected = v10.var() / 40 + v01.var() / 50
    assert auroc_variance(scores, positive, np.arange(90)) == pytest.approx(expected)
    twice = auroc_variance(np.tile(scores, 2), np.tile(positive, 2), np.tile(np.arange(90), 2))
    assert twice == pytest.approx(expected)


def test_same_input_same_interval_and_row_order_changes_nothing() -> None:
    cell, features, units = gaussian_cell(5, 60, 90, offset=4, images_per_patient=2)
    bits = split_bits(NAMES[:150], 42, 100)
    made = total_replicates(cell, features, units, bits)
    first = total_interval(made)
    assert first == total_interval(total_replicates(cell, features, units, bits))
    order = np.random.default_rng(0).permutation(150)
    where = np.argsort(order)
    queries = np.sort(where[cell.queries])
    moved = replace(
        cell,
        rows_pos=np.sort(where[cell.rows_pos]),
        rows_neg=np.sort(where[cell.rows_neg]),
        cand_pos=where[cell.cand_pos],
        cand_neg=where[cell.cand_neg],
        queries=queries,
        dm=cell.dm[np.searchsorted(cell.queries, order[queries])],
    )
    again = total_replicates(moved, features[order], units[order], bits)
    assert first == total_interval(again)
    np.testing.assert_array_equal(again.influence, made.influence)


def test_hubs_widen_it_and_clusters_widen_it() -> None:
    bits = split_bits(NAMES[:900], 42)
    widths = {}
    for name, options in {
        "plain": {"width": 64},
        "hubs": {"width": 64, "offset": 8.0},
        "clusters": {"width": 64, "images_per_patient": 1, "offset": 0.0},
    }.items():
        cell, features, units = gaussian_cell(0, 200, 400, **options)
        if name == "clusters":  # every image four times, as four images of one patient
            features = np.concatenate([features[:50].repeat(4, 0), features[200:300].repeat(4, 0)])
            units = np.arange(600) // 4
            c_pos, c_neg = (
                mean_similarity(features, cell.queries, side, units, 5, True) for side in (cell.cand_pos, cell.cand_neg)
            )
            cell = replace(cell, dm=c_neg - c_pos)
        interval = total_interval(total_replicates(cell, features, units, bits))
        widths[name] = interval.hi - interval.lo
    assert widths["hubs"] > 1.4 * widths["plain"]
    assert widths["clusters"] > 1.4 * widths["plain"]


def test_pooling_weighs_by_queries() -> None:
    one = replicates([[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]], 0.4, 40)
    two = replicates([[[0.1, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.1, 0.1]]], 0.1, 120)
    pooled = pool_splits([one, two])
    assert pooled.estimate == pytest.approx((40 * 0.4 + 120 * 0.1) / 160)
    np.testing.assert_allclose(pooled.table()[0, 0], [(0.5 + 3 * 0.1) / 4, (0.3 + 3 * 0.1) / 4])
    assert total_variance(pooled.table()) == pytest.approx(0.01 / 16)
    assert pooled.units.tolist() == list(range(120))
    assert pooled.queries[:41].tolist() == [2.0] * 40 + [1.0]
    mean = weighted_mean_splits([one, two], [3, 1])
    assert mean.estimate == pytest.approx((3 * 0.4 + 0.1) / 4)
    np.testing.assert_allclose(mean.table()[1, 1], [(3 * 0.3 + 0.1) / 4, (3 * 0.5 + 0.1) / 4])


def test_pooling_parts_that_agree_is_the_part() -> None:
    one = replicates([[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]])
    both, alone = total_interval(weighted_mean_splits([one, one], [1, 1])), total_interval(one)
    assert (both.estimate, both.lo, both.hi) == pytest.approx((alone.estimate, alone.lo, alone.hi))


def test_fewer_than_ten_patients_give_no_interval_and_the_reason_travels() -> None:
    cell, features, units = gaussian_cell(0, 27, 60, images_per_patient=3)
    bits = split_bits(NAMES[:90], 42, 20)
    few = total_replicates(cell, features, units, bits)
    interval = total_interval(few)
    assert interval.reason == "fewer than 10 positive patients (9)"
    assert (interval.lo, interval.hi) == (None, None)
    assert interval.estimate == float((cell.dm > 0).mean())
    assert total_p(few) is None
    enough = total_replicates(*gaussian_cell(0, 30, 60), bits)
    pooled = total_interval(pool_splits([enough, replace(few, units=few.units + 1000)]))
    assert pooled.lo < pooled.estimate < pooled.hi  # 39 patients together
    assert total_interval(pool_splits([few, few])).reason == "fewer than 10 positive patients (9)"
    unknown = replace(few, reason="n = 3 < k + 1 = 6")
    assert total_interval(pool_splits([enough, unknown])).reason == "n = 3 < k + 1 = 6"
    assert total_interval(total_margin_replicates(cell, features, units, bits, np.arange(90))).lo is None


def test_patients_with_negatives_in_several_groups_count_once() -> None:
    cell, features, units = gaussian_cell(0, 40, 24, images_per_patient=1)
    units = np.concatenate([units[:40], 40 + np.arange(24) % 8])
    few = total_replicates(cell, features, units, split_bits(NAMES[:64], 42, 20))
    assert few.negatives.tolist() == list(range(40, 48))
    reason = "fewer than 10 negative patients (8)"
    assert total_interval(few).reason == reason
    assert total_interval(pool_splits([few, few])).reason == reason
    assert total_interval(weighted_mean_splits([few, few], [2, 1])).reason == reason
    others = replace(few, units=few.units + 1000, negatives=few.negatives + 1000)
    assert total_interval(pool_splits([few, others])).reason is None


def test_p_and_interval_agree() -> None:
    cell, features, units = gaussian_cell(0, 60, 120, shift=1.0)
    found = total_replicates(cell, features, units, split_bits(NAMES[:180], 42, 100))
    interval = total_interval(found)
    assert total_p(found, interval.lo) == pytest.approx(0.05)
    assert total_p(found, interval.hi) == pytest.approx(0.05)
    assert total_p(found, found.estimate) == 1.0


def test_no_discordant_query_still_has_an_interval() -> None:
    cell, features, units = gaussian_cell(0, 40, 80, shift=60.0)
    found = total_replicates(cell, features, units, split_bits(NAMES[:120], 42, 50))
    interval = total_interval(found)
    assert (interval.estimate, interval.lo) == (0.0, 0.0)
    t = stats.t.ppf(0.975, 1 / (1 / 39 + 1 / 50))
    assert interval.hi == pytest.approx(t**2 / (40 + t**2))  # the score interval of 0 of 40


def test_degenerate_features() -> None:
    cell, features, units = gaussian_cell(0, 40, 80)
    bits = split_bits(NAMES[:120], 42, 20)
    same = np.ones_like(features)
    tied = replace(cell, dm=np.zeros(40), margin=np.zeros(120))
    assert total_interval(total_replicates(tied, same, units, bits)).estimate == 0.0
    assert total_interval(total_margin_replicates(tied, same, units, bits, np.arange(120))).estimate == 0.5
    empty = np.empty(0, np.int64)
    none = replace(
        cell,
        cand_pos=empty,
        cand_neg=empty,
        queries=empty,
        query_label=empty,
        dm=empty,
        margin=None,
        status="insufficient",
        reason="n = 3 < k + 1 = 6",
    )
    assert total_interval(total_replicates(none, features, units, bits)).reason == "n = 3 < k + 1 = 6"
    assert total_interval(total_margin_replicates(none, features, units, bits, np.arange(120))).lo is None


def test_a_value_of_zero_that_the_halves_do_not_share() -> None:
    # All 40 queries agree, but in halves a tenth does not: level 0.05, variance 0.1²·4/4.
    interval = total_interval(replicates([[[0.2, 0.0], [0.2, 0.0]], [[0.0, 0.2], [0.0, 0.2]]], estimate=0.0))
    number, t = 0.05 * 0.95 / 0.01 + 1, stats.t.ppf(0.975, FREEDOM)
    assert (interval.lo, interval.hi) == (0.0, pytest.approx(t**2 / (number + t**2)))


def test_hub_share_grows_where_k_is_a_large_part_of_n() -> None:
    assert [hub_share(5 / n) for n in (6, 20, 50, 4000)] == [0.5, 0.25, 0.175, 0.175]
    cell, features, units = gaussian_cell(0, 20, 60)
    one = total_replicates(cell, features, units, split_bits(NAMES[:80], 42, 20))
    assert one.crowding == 0.25
    other = replace(one, weight=60.0, crowding=0.1)
    assert pool_splits([one, other]).crowding == pytest.approx((20 * 0.25 + 60 * 0.1) / 80)
    assert weighted_mean_splits([one, other], [1, 3]).crowding == pytest.approx((0.25 + 3 * 0.1) / 4)


def test_freedom_counts_patients_and_splits() -> None:
    table = [[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]]
    assert replicates(table).freedom == pytest.approx(FREEDOM)
    assert replicates(table, times=200).freedom == pytest.approx(1 / (1 / 39 + 1 / 400))


def test_effective_number() -> None:
    assert effective_number(np.array([4.0, 2.0, 2.0])) == pytest.approx(64 / 24)
    assert effective_number(np.zeros(3)) == 0.0


def test_bad_input() -> None:
    one = replicates([[[0.5], [0.5]], [[0.3], [0.3]]])
    with pytest.raises(ValueError, match="fewer than two splits"):
        total_variance(one.table())
    with pytest.raises(ValueError, match="nothing to pool"):
        pool_splits([])
    with pytest.raises(ValueError, match="numbers of splits differ"):
        pool_splits([one, replicates([[[0.5] * 2] * 2] * 2)])
    with pytest.raises(ValueError, match="weights"):
        weighted_mean_splits([one], [0.0])
    assert total_interval(one).reason == "too few candidates to split"


@pytest.mark.parametrize("kind", ["distinct", "tied", "signed zeros", "undefined", "all equal"])
@pytest.mark.parametrize("block", [1, 700, 10**6])
def test_aurocs_of_all_splits_at_once_are_those_of_each(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(total_interval_module, "_ORDERED", block)
    rng = np.random.default_rng(5)
    for images in (1, 2, 5, 60):
        near = rng.normal(size=(2, images, 40)).astype(np.float32)
        if kind == "tied":
            near = np.round(near * 2) / 2
        elif kind == "signed zeros":
            near = np.round(near) * rng.choice(np.float32([-0.0, 1.0]), near.shape)
        elif kind == "undefined":
            near[rng.random(near.shape) < 0.4] = np.nan
            near[rng.random(near.shape) < 0.2] = np.inf
            near[rng.random(near.shape) < 0.2] = -np.inf
        elif kind == "all equal":
            near[:] = -0.25
        half = rng.integers(0, 3, (images, 40))  # some are in neither
        inside, positive = np.stack([half == 1, half == 2]), rng.random(images) < 0.4
        found = total_interval_module._auroc_table(near, inside, positive)
        for split in range(40):
            for a in (0, 1):
                for b in (0, 1):
                    mine = inside[a, :, split] & np.isfinite(near[b, :, split])
                    value = auroc(near[b, mine, split], positive[mine])
                    assert found[a, b, split] == value or (value is None and np.isnan(found[a, b, split]))
