"""Ablations: what is compared with what."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from candor_monai.apps.ablations import ABLATIONS, run_ablations
from candor_monai.apps.comparison import CellResults


def results(encoder: str, d: float) -> CellResults:
    rows = [
        {"encoder": encoder, "task": "t", "level": level, "finding": finding, "D": d, "status": "ok", "n_queries": 9}
        for level, finding in (("group", "Mass"), ("finding", "Mass"), ("task", ""))
    ]
    return CellResults(encoder, {"discordance": rows, "cohort": {"task": "t"}}, {}, pd.DataFrame(), Path())


def test_what_has_smaller_sets_is_compared_with_sets_as_small():
    """D is 0.3, at 500 candidates 0.4; at 512 pixels it is 0.1 less, with one neighbour 0.2 more."""
    asked = []

    def variant(cell, name, overrides):
        asked.append((cell.name, name))
        small = overrides.get("max_candidates") == 500
        d = (0.4 if small else 0.3) - 0.1 * ("image_size" in overrides) + 0.2 * (overrides.get("k") == 1)
        return results(cell.name, d)

    def together(cell, variants):
        assert not any(name == cell.name for name, _ in asked), "it comes before the runs"
        assert variants == {
            "small_sets": {"max_candidates": 500, "max_queries": 500},
            "source_512": {"image_size": 512, "max_candidates": 500, "max_queries": 500},
            "k_1": {"k": 1},
        }

    cells = [SimpleNamespace(name=name) for name in ("a", "b")]
    rows = run_ablations(["source_512", "k_1"], cells, [results("a", 0.3), results("b", 0.3)], variant, together)
    found = {(row["ablation"], row["encoder"], row["finding"]): row for row in rows}
    assert len(found) == 2 * (2 * 2 + 1)
    for finding in ("Mass", None):
        wide, one = found["source_512", "a", finding], found["k_1", "a", finding]
        assert (wide["D_main"], round(wide["change"], 12)) == (0.4, -0.1), "the number of candidates is no part of it"
        assert (one["D_main"], round(one["change"], 12)) == (0.3, 0.2)
    assert ("a", "small_sets") in asked
    assert "small_sets" not in ABLATIONS
