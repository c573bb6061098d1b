"""Coverage of the total interval and the conditional one, and size of the tests, on simulated cohorts.

    python -m tests.benchmarks.coverage run --folder RAW [--rounds 4] [--cohorts 250] [--only NAME] [--part 0/2]
    python -m tests.benchmarks.coverage table --folder RAW --output docs/coverage.csv
    python -m tests.benchmarks.coverage summary --output docs/coverage.csv

A run goes over all settings round by round and keeps the cohorts of each in a file of its own, so it can be
stopped and continued, shared by processes, and extended. Every setting and round has its own seed. θ is the mean
over all cohorts of a setting. The table keeps a setting's row that rests on more cohorts than the folder holds: after a
change of the construction begin with an empty folder and without the old table.
The summary is the table of docs/uncertainty.md.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
from scipy import stats

from candor_monai.metrics.comparison import conditional_difference, total_difference
from candor_monai.metrics.nearest_lists import nearest_lists
from candor_monai.metrics.resampling import (
    Replicates,
    auroc_replicates,
    percentile_interval,
    poisson_of_bits,
    pool_replicates,
    resample_mean,
    weighted_mean_replicates,
)
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.total_interval import (
    SplitReplicates,
    pool_splits,
    total_interval,
    total_margin_replicates,
    total_replicates,
    weighted_mean_splits,
)
from tests.benchmarks.coverage_grid import Case, grid
from tests.metrics.simulation import SimulatedCohort, simulate

SPLITS = 400  # the default
RESAMPLES = 200  # fewer than the default, to save time: a little against the conditional interval
SEVERITY = (3.0, 2.0, 1.0)


Row = tuple[float, float, float, float, float, float, float]


def measured(case: Case, rng: np.random.Generator) -> Row:
    """Of one cohort: estimate, SD, total interval, conditional interval, p of no difference."""
    cohorts = simulate(case.setting, rng, case.second if case.measure == "difference" else None)
    units = int(cohorts[0].units.max()) + 1
    bits = rng.integers(0, 2**16, (units, SPLITS), dtype=np.uint16)
    weights = poisson_of_bits(rng.integers(0, 2**16, (units, RESAMPLES), dtype=np.uint16))
    both = [_replicates(case, one, bits, weights) for one in cohorts]
    if case.measure == "difference":
        total = total_difference(both[0][0], both[1][0])
        plain = conditional_difference(both[0][1], both[1][1])
        found = (total.estimate, total.sd, total.lo, total.hi, plain.lo, plain.hi, total.p)
    else:
        ((split, resampled),) = both
        whole, narrow = total_interval(split), percentile_interval(resampled)
        found = (whole.estimate, whole.sd, whole.lo, whole.hi, narrow.lo, narrow.hi, None)
    return tuple(np.nan if value is None else float(value) for value in found)  # type: ignore[return-value]


def _replicates(
    case: Case, cohort: SimulatedCohort, bits: np.ndarray, weights: np.ndarray
) -> tuple[SplitReplicates, Replicates]:
    setting = case.setting
    same = setting.sets == "patient"
    if case.measure == "margin":
        cell = replace(cohort.cells[0], margin=_margin(cohort, setting.k, same))
        rows = np.concatenate([cell.rows_pos, cell.rows_neg])
        queries = resample_mean(cell.dm > 0, cohort.units[cell.queries], weights)
        split = total_margin_replicates(
            cell, cohort.features, cohort.units, bits, np.arange(len(cohort.units)), setting.k, same
        )
        positive = np.arange(len(rows)) < len(cell.rows_pos)
        return split, auroc_replicates(cell.margin, positive, cohort.units[rows], weights, queries)
    splits = [total_replicates(cell, cohort.features, cohort.units, bits, setting.k, same) for cell in cohort.cells]
    plain = [resample_mean(cell.dm > 0, cohort.units[cell.queries], weights) for cell in cohort.cells]
    findings = setting.findings
    pooled = [(pool_splits(splits[f::findings]), pool_replicates(plain[f::findings])) for f in range(findings)]
    if findings == 1:
        return pooled[0]
    severity = SEVERITY[:findings]
    return (
        weighted_mean_splits([one for one, _ in pooled], severity),
        weighted_mean_replicates([one for _, one in pooled], severity),
    )


def _margin(cohort: SimulatedCohort, k: int, same_patient: bool) -> np.ndarray:
    cell = cohort.cells[0]
    rows = np.concatenate([cell.rows_pos, cell.rows_neg])
    pairs = [(rows, side) for side in (cell.cand_pos, cell.cand_neg)]
    lists = nearest_lists(FeatureRows(cohort.features), pairs, cohort.units, same_patient, k)
    near = [one.distance.mean(axis=1) for one in lists]
    return (near[1] - near[0]).astype(np.float64)


def summary(name: str, case: Case, rows: np.ndarray) -> dict[str, object]:
    """Coverage, its exact limits, and the width, of one setting."""
    value, sd = rows[:, 0], rows[:, 1]
    theta = 0.0 if case.measure == "difference" else value.mean()
    spread = value.std(ddof=1)
    given = np.isfinite(rows[:, 2])
    inside = (rows[given, 2] <= theta + 1e-12) & (theta - 1e-12 <= rows[given, 3])
    plain = (rows[:, 4] <= theta) & (theta <= rows[:, 5])
    hits, count = int(inside.sum()), int(given.sum())
    setting = case.setting
    return {
        "setting": name,
        "measure": case.measure,
        "positives": setting.positives,
        "images": setting.images,
        "width": setting.width,
        "offset": setting.offset,
        "spread": setting.spread,
        "shift": setting.shift,
        "images_per_patient": setting.images_per_patient,
        "mixed": int(setting.mixed),
        "sets": setting.sets,
        "groups": setting.groups,
        "findings": setting.findings,
        "cohorts": len(rows),
        "theta": round(float(theta), 4),
        "sd": round(float(spread), 5),
        "sd_estimated": round(float(np.sqrt(np.mean(sd[given] ** 2))), 5),
        "coverage": round(hits / count, 4),
        "coverage_lower99": round(float(stats.beta.ppf(0.01, hits, count - hits + 1)) if hits else 0.0, 4),
        "width_ratio": round(float((rows[given, 3] - rows[given, 2]).mean() / (2 * 1.96 * spread)), 3),
        "conditional_coverage": round(float(plain.mean()), 4),
        "conditional_width_ratio": round(float(np.nanmean(rows[:, 5] - rows[:, 4]) / (2 * 1.96 * spread)), 3),
        "size": round(float((rows[:, 6] <= 0.05).mean()), 4) if case.measure == "difference" else "",
    }


def run(name: str, case: Case, cohorts: int, number: int = 0) -> np.ndarray:
    """One round of one setting, shape (cohorts, 7)."""
    rng = np.random.default_rng([crc32(name.encode()), number])
    return np.array([measured(case, rng) for _ in range(cohorts)])


def table(folder: Path, output: Path) -> None:
    """Summarise all rounds of all settings; a row of ``output`` that rests on as many cohorts or more stays."""
    before = {row["setting"]: row for row in _read(output)} if output.exists() else {}
    found: list[dict[str, object]] = []
    for name, case in grid().items():
        rounds = [np.load(one) for one in sorted(folder.glob(f"{crc32(name.encode()):08x}-*.npy"))]
        known = before.get(name)
        if rounds and (known is None or int(known["cohorts"]) < sum(map(len, rounds))):
            found.append(summary(name, case, np.concatenate(rounds)))
        elif known is not None:
            found.append(dict(known))
    with output.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, found[0])
        writer.writeheader()
        writer.writerows(found)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def _parts(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """The settings of each line of the summary."""
    single = [row for row in rows if row["measure"] == "D" and row["groups"] == row["findings"] == "1"]
    one = [row for row in single if row["images_per_patient"] == "1"]
    many = [row for row in single if row["images_per_patient"] != "1"]
    kind = {"768": "… wide cone (768, offset 20)", "10": "… 10 wide, offset 3"}

    def hubs(row: dict[str, str]) -> str:
        if row["width"] in kind:
            return kind[row["width"]]
        if not float(row["offset"]):
            return "D, one image a patient, no hubs"
        return "… stronger hubs (spread 0.3)" if float(row["spread"]) else "… cone (64 wide, offset 8)"

    names = ("D, one image a patient, no hubs", "… cone (64 wide, offset 8)", kind["768"])
    names += ("… stronger hubs (spread 0.3)", kind["10"])
    parts = {name: [row for row in one if hubs(row) == name] for name in names}
    for name, counts in (
        ("… 20 positives", ("20",)),
        ("… 45 positives", ("45",)),
        ("… 200 and 400 positives", ("200", "400")),
        ("… 1,000 and 2,000 positives", ("1000", "2000")),
    ):
        parts[name] = [row for row in one if row["positives"] in counts]
    ends = ((0.48, 1.0, "… θ above 0.48"), (0.4, 0.48, "… θ 0.4 to 0.48"), (0.3, 0.4, "… θ 0.3 to 0.4"))
    for low, high, name in (*ends, (-1.0, 0.3, "… θ below 0.3")):
        parts[name] = [row for row in one if low < float(row["theta"]) <= high]
    for sets in ("image", "patient"):
        parts[f"D, several images a patient, `sets: {sets}`"] = [row for row in many if row["sets"] == sets]
    pooled = [row for row in rows if row["measure"] == "D" and (row["groups"] != "1" or row["findings"] != "1")]
    parts["D pooled over 4 groups; severity mean over 3 findings × 2 groups"] = pooled
    parts["margin AUROC"] = [row for row in rows if row["measure"] == "margin"]
    parts["difference of two equally good encoders"] = [row for row in rows if row["measure"] == "difference"]
    return {**parts, "**all**": rows}


def tell_summary(path: Path) -> None:
    """Print the table by parts of the grid, how many settings meet the target, and the lowest ones."""
    rows = _read(path)
    for name, part in _parts(rows).items():
        covered, width, plain = (
            np.array([float(row[key]) for row in part]) for key in ("coverage", "width_ratio", "conditional_coverage")
        )
        print(
            f"| {name} | {len(part)} | {covered.mean():.3f} | {covered.min():.3f} | {width.mean():.2f} | "
            f"{width.max():.2f} | {plain.mean():.3f} | {plain.min():.3f} |"
        )
    lower = [float(row["coverage_lower99"]) for row in rows]
    thousand = [float(row["coverage_lower99"]) for row in rows if int(row["cohorts"]) >= 1000]
    print(f"lower 99 % limit at least 0.92: {sum(v >= 0.92 for v in lower)} of {len(rows)} settings")
    print(f"with 1,000 cohorts: {sum(v >= 0.92 for v in thousand)} of {len(thousand)}")
    for row in sorted(rows, key=lambda row: float(row["coverage_lower99"]))[:6]:
        print(f"{row['setting']}: {row['coverage']} of {row['cohorts']} cohorts, limit {row['coverage_lower99']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "table", "summary"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cohorts", type=int, default=250)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 for two processes")
    options = parser.parse_args()
    if options.action == "summary":
        tell_summary(options.output)
        return
    if options.action == "table":
        table(options.folder, options.output)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    part, parts = (int(number) for number in options.part.split("/"))
    chosen = [(name, case) for name, case in grid().items() if options.only in name]
    todo = [
        (number, *one)
        for slow in (False, True)
        for number in range(options.rounds)
        for one in chosen
        if (one[1].setting.positives >= 1000) == slow
    ]
    for number, name, case in todo[part::parts]:
        path = options.folder / f"{crc32(name.encode()):08x}-{number}.npy"
        if not path.exists():
            started = time.process_time()
            np.save(path, run(name, case, options.cohorts, number))
            print(f"round {number}, {name}: {time.process_time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
