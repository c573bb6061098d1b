"""The measures: pure functions on arrays, and the Metric classes over them. Nothing else of the package is imported.

>>> from candor_monai.metrics import evaluate, Observations
>>> sorted({"evaluate", "Observations"} & set(dir()))
['Observations', 'evaluate']
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that holds it. Names are imported when they are first used, so that what needs the
# options or the observations only does not wait for PyTorch.
_NAMES = {
    "Cell": "cells",
    "DiscordanceMetric": "classes",
    "Evaluation": "evaluation",
    "FeatureRows": "similarity",
    "Observations": "observations",
    "Options": "options",
    "auroc": "roc",
    "benjamini_hochberg": "multiplicity",
    "clustering_of": "planning",
    "chance_test": "permutation",
    "conditional_difference": "comparison",
    "conditional_interval": "resampling",
    "discordance_margin": "discordance",
    "discordance_rate": "discordance",
    "discordant_overlap": "overlap",
    "evaluate": "evaluation",
    "evaluate_together": "evaluation",
    "keyed_hash": "keyed_hash",
    "keyed_rank": "keyed_hash",
    "margin_bound": "margin",
    "nearest": "neighbours",
    "neighbour_mean": "discordance",
    "not_worse_than_best": "comparison",
    "p_best": "comparison",
    "patient_weights": "resampling",
    "permutation_replicates": "permutation",
    "plan_against_chance": "planning",
    "plan_difference": "planning",
    "retention": "retention",
    "spearman": "rankings",
    "stable_fraction": "keyed_hash",
    "tie_rate": "discordance",
    "total_difference": "comparison",
    "total_replicates": "total_interval",
    "weighted_mean": "pooling",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_NAMES)
