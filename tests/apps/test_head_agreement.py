"""Agreement of rankings and trends, on tables worked by hand."""

import pytest

from candor_monai.apps.head_agreement import MEAN, agreement_rows, trend_rows

ENCODERS = {"a": (0.2, 0.9), "b": (0.3, 0.8), "c": (0.4, 0.7), "d": (0.45, 0.6)}


def _tables(positives: dict[str, int]) -> tuple[list, dict]:
    """D rises from a to d while the head's AUROC falls, in the same way for every finding."""
    probe, discordance = [], {}
    for encoder, (d, auroc) in ENCODERS.items():
        names = [("finding", finding) for finding in positives] + [("task", None)]
        probe += [
            {"encoder": encoder, "level": level, "finding": f, "auroc": auroc, "logme": -auroc} for level, f in names
        ]
        discordance[encoder] = [
            {
                "level": level,
                "finding": f,
                "D": d,
                "D_all": d + 0.5 - (positives[f] / 1000 if f else 0),
                "margin_auroc": None if encoder == "d" else auroc,
                "n_positive": positives.get(f, 0),
            }
            for level, f in names
        ]
    return probe, discordance


def _row(rows: list, finding: str | None, first: str, second: str) -> dict:
    return next(r for r in rows if (r["finding"], r["measure_a"], r["measure_b"]) == (finding, first, second))


def test_opposite_rankings_correlate_at_minus_one() -> None:
    rows = agreement_rows(*_tables({"f": 10, "g": 20}), "chest")
    row = _row(rows, None, "D", "head AUROC")
    assert row["spearman"] == pytest.approx(-1.0)
    assert row["p"] == pytest.approx(2 / 24)  # two of the 24 orders of four encoders
    assert (row["task"], row["n_encoders"], row["status"]) == ("chest", 4, "ok")
    assert _row(rows, "g", "D", "head AUROC")["spearman"] == pytest.approx(-1.0)
    assert _row(rows, MEAN, "D", "LogME")["spearman"] == pytest.approx(1.0)


def test_a_missing_encoder_is_not_left_out_silently() -> None:
    row = _row(agreement_rows(*_tables({"f": 10, "g": 20}), "chest"), None, "D", "margin AUROC")
    assert (row["spearman"], row["status"], row["reason"]) == (None, "insufficient", "1 of 4 encoders have no value")


def test_trends() -> None:
    positives = {"f": 10, "g": 50, "h": 100, "i": 200}
    cards = {name: {"year": 2020 + i, "parameters": 10.0 ** (6 + i)} for i, name in enumerate(ENCODERS)}
    cards["d"] = {"parameters": 1e9}  # untrained: no year
    found = trend_rows(*_tables(positives), cards, {"f": 1.0, "g": 2.0}, "chest")
    rows = {(r["measure"], r["against"]): r for r in found}
    # D_all falls with the number of positives and D does not know of it
    assert rows["D_all", "positives"]["value"] < -0.5
    assert rows["D", "positives"]["value"] == pytest.approx(0.0, abs=1e-12)
    # 0.2, 0.3, 0.4 in 2020, 2021, 2022
    assert rows["D", "year"]["value"] == pytest.approx(0.1)
    assert rows["D", "parameters"]["value"] == pytest.approx(0.1)  # per tenfold
    assert rows["D", "size"]["value"] == pytest.approx(0.0, abs=1e-12)


def test_features_that_tie_have_no_place_in_a_ranking_and_no_trend() -> None:
    probe, discordance = _tables({"f": 10, "g": 20, "h": 30})
    for row in discordance["a"]:
        row.update(D=0.0, status="tied")
    assert _row(agreement_rows(probe, discordance, "chest"), "f", "D", "head AUROC")["spearman"] is None
    cards = {name: {"year": 2020 + i} for i, name in enumerate(ENCODERS)}
    year = next(row for row in trend_rows(probe, discordance, cards, {}, "chest") if row["against"] == "year")
    assert year["value"] == pytest.approx(0.075)  # 0.3, 0.4 and 0.45 in three years


@pytest.mark.parametrize("none", [{"parameters": 0}, {"parameters": None}, {}])
def test_an_encoder_without_parameters_is_left_out_of_that_slope_alone(none: dict) -> None:
    cards = {name: {"year": 2020 + i, "parameters": 10.0 ** (6 + i)} for i, name in enumerate(ENCODERS)}
    cards["a"] = {"year": 2020, **none}
    tables = _tables({"f": 10, "g": 20, "h": 30})
    rows = {row["against"]: row for row in trend_rows(*tables, cards, {}, "chest") if row["measure"] == "D"}
    without = trend_rows(*tables, cards | {"a": {}}, {}, "chest")
    others = {row["against"]: row for row in without if row["measure"] == "D"}
    assert rows["parameters"]["value"] == others["parameters"]["value"] is not None
    assert rows["year"]["value"] != others["year"]["value"]


def test_nothing_known_gives_a_reason() -> None:
    rows = trend_rows(*_tables({"f": 10, "g": 20}), {}, {}, "chest")
    year = next(r for r in rows if r["against"] == "year")
    assert (year["value"], year["status"], year["reason"]) == (None, "insufficient", "nothing is known of year")
