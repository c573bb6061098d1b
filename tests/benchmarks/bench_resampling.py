"""Speed of the conditional interval against a loop over scikit-learn, in one run.

A group of 147,169 images of 40,000 patients with 12 findings at the prevalences of CheXpert's AP
view: 1,000 resamples of D, D_all (4,000 sampled images) and the margin AUROC (every labelled image).
The loop is timed on a few resamples of each finding and multiplied up.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.bench_resampling
"""

from __future__ import annotations

import json
import time

import numpy as np
from sklearn.metrics import roc_auc_score

from candor_monai.metrics.resampling import auroc_replicates, patient_weights, percentile_interval, resample_mean

IMAGES, PATIENTS, RESAMPLES, LOOP = 147_169, 40_000, 1_000, 3
PREVALENCES = (0.10, 0.30, 0.13, 0.30, 0.06, 0.04, 0.45, 0.06, 0.16, 0.40, 0.02, 0.04)


def main() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, PATIENTS, IMAGES)
    scores = rng.normal(size=IMAGES)
    started = time.perf_counter()
    weights = patient_weights([f"p{i}" for i in range(PATIENTS)], 42, RESAMPLES)
    weighing = time.perf_counter() - started
    ours = loop = 0.0
    for prevalence in PREVALENCES:
        positive = rng.random(IMAGES) < prevalence
        queries = np.flatnonzero(positive)[: int(4000 * prevalence)]
        discordant = rng.random(len(queries)) < 0.4
        started = time.perf_counter()
        d = resample_mean(discordant, codes[queries], weights)
        d_all = resample_mean(~discordant, codes[queries], weights)
        margin = auroc_replicates(scores, positive, codes, weights, d)
        for replicates in (d, d_all, margin):
            percentile_interval(replicates)
        ours += time.perf_counter() - started
        started = time.perf_counter()
        for b in range(LOOP):
            weight = weights[codes, b]
            np.average(discordant, weights=weight[queries])
            np.average(~discordant, weights=weight[queries])
            expected = roc_auc_score(positive, scores, sample_weight=weight)
            found = margin.numerators[b] / margin.denominators[b]
            if abs(found - expected) > 1e-9:
                raise AssertionError(f"resample {b}: {found} is not scikit-learn's {expected}")
        loop += (time.perf_counter() - started) * RESAMPLES / LOOP
    print(
        json.dumps(
            {
                "weights_s": round(weighing, 2),
                "resampling_s": round(ours, 2),
                "sklearn_loop_s": round(loop, 1),
                "ratio": round(loop / (weighing + ours), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
