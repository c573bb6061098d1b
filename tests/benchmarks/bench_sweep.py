"""Sweep (a): sampled queries × all images of a group, against a bare product, faiss, scikit-learn and torch.

Run by hand: ``python -m tests.benchmarks.bench_sweep --images 147169``. It prints times, ratios and extra memory as
JSON lines; it decides nothing. Compare ratios of one run only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candor_monai.metrics.draw import draws
from candor_monai.metrics.engine import group_questions, score_group
from candor_monai.metrics.neighbours import Counts, Request
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep import search
from candor_monai.metrics.sweep_space import choose_precision

from .measuring import Measured, measured
from .synthetic_group import synthetic_group

OPTIONS = Options(sets="image", queries="image_sample", margin=False)
BOTH_ROLES = (OPTIONS, replace(OPTIONS, roles="negatives"))


def products_alone(blocks: list[torch.Tensor], asked: torch.Tensor) -> None:
    """The product of what is in memory already, in its own precision."""
    for block in blocks:
        asked @ block.T


def bare_product(features: np.ndarray, queries: np.ndarray, dtype: torch.dtype) -> Measured:
    """Queries × images from memory, in blocks; nothing else."""
    whole = torch.from_numpy(np.array(features)).to(dtype)
    return measured(partial(products_alone, list(whole.split(8192)), whole[queries]))


def ours(features: np.ndarray, seen: Any, together: Sequence[Options] = (OPTIONS,)) -> dict[str, int]:
    """D and D_all of every finding under each option set, from the checked rows on, in one sweep."""
    counts = Counts()
    rows = FeatureRows(features)
    asked = [group_questions(seen, options, list(draws(seen, options)), None) for options in together]
    score_group(asked, lambda r, k: search(rows, r, k, seen.order, OPTIONS, counts))
    return vars(counts)


def only(seen: Any, column: int) -> Any:
    """The observations of one finding."""
    return replace(seen, labels=seen.labels[:, column : column + 1], findings=seen.findings[column : column + 1])


def per_finding(
    features: np.ndarray,
    seen: Any,
    find: Callable[[np.ndarray, np.ndarray], Any],
    roles: Sequence[Options] = (OPTIONS,),
) -> None:
    """Every finding's queries in each label's images, one after the other; of each role."""
    for options in roles:
        for draw in draws(seen, options):
            for side in (draw.rows_pos, draw.rows_neg):
                find(unit(features[draw.queries]), unit(features[side]))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def faiss_search(queries: np.ndarray, side: np.ndarray) -> None:
    import faiss

    index = faiss.IndexFlatIP(side.shape[1])
    index.add(side)
    index.search(queries, 6)


def sklearn_search(queries: np.ndarray, side: np.ndarray) -> None:
    from sklearn.neighbors import NearestNeighbors

    NearestNeighbors(n_neighbors=6, metric="cosine", algorithm="brute").fit(side).kneighbors(queries)


def torch_search(queries: np.ndarray, side: np.ndarray) -> None:
    table = torch.from_numpy(side).T
    for block in torch.from_numpy(queries).split(1024):
        (block @ table).topk(6, dim=1)


def one_finding(features: np.ndarray, count: int = 4000) -> dict[str, Measured]:
    """n = 4,000 queries against 4,000 candidates of each label."""
    queries = np.arange(count)
    sides = [np.arange(count, 2 * count), np.arange(2 * count, 3 * count)]

    def exact() -> None:
        rows = FeatureRows(features[: 3 * count])
        requests = [Request(queries, side) for side in sides]
        search(rows, requests, 5, np.arange(3 * count), OPTIONS, Counts())

    def theirs(find: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[], None]:
        return lambda: [find(unit(features[queries]), unit(features[side])) for side in sides] and None

    calls = {"ours": exact, "faiss": theirs(faiss_search), "torch": theirs(torch_search)}
    for call in calls.values():
        call()
    best: dict[str, Measured] = {}
    for _ in range(5):
        for name, call in calls.items():
            now = measured(call)
            if name not in best or now.wall < best[name].wall:
                best[name] = now
    return best


def report(name: str, result: Measured, base: Measured | None = None, **more: Any) -> None:
    line: dict[str, Any] = {
        "name": name,
        "wall_s": round(result.wall, 3),
        "processor_s": round(result.processor, 3),
        "extra_MiB": round(result.memory),
    }
    if base is not None:
        line["wall_ratio"] = round(result.wall / base.wall, 3)
        line["processor_ratio"] = round(result.processor / base.processor, 3)
    print(json.dumps(line | more), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "candor_benchmarks")
    parser.add_argument("--peers", nargs="*", default=["faiss", "torch", "sklearn"])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    features, seen = synthetic_group(arguments.folder, arguments.images)
    queries = np.arange(4000)
    print(json.dumps({"images": arguments.images, "threads": torch.get_num_threads()}), flush=True)
    ours(features, seen)  # the first call in a process loads what is compiled, as those of the others import theirs
    base = bare_product(features, queries, torch.float32)
    report("bare float32 product", base)
    if choose_precision("auto") == "bfloat16":  # emulated, it would take minutes and say nothing
        report("bare bfloat16 product", bare_product(features, queries, torch.bfloat16), base)
    mine = measured(lambda: ours(features, seen))
    report("ours, 12 findings", mine, base, counts=mine.value)
    one = measured(lambda: ours(features, only(seen, 2)))
    report("ours, one finding", one, base)
    both = measured(lambda: ours(features, seen, BOTH_ROLES))
    report(
        "ours, 12 findings, both roles", both, base, times_one_role=round(both.wall / mine.wall, 2), counts=both.value
    )
    peers = {"faiss": faiss_search, "torch": torch_search, "sklearn": sklearn_search}
    for name in arguments.peers:
        peers[name](unit(features[:10]), unit(features[:100]))
        theirs = measured(lambda find=peers[name]: per_finding(features, seen, find))
        report(f"{name}, per finding and label", theirs, base, times_ours=round(theirs.wall / mine.wall, 1))
        theirs = measured(lambda find=peers[name]: per_finding(features, seen, find, BOTH_ROLES))
        report(f"{name}, per finding, label and role", theirs, base, times_ours=round(theirs.wall / both.wall, 1))
    if arguments.images >= 12_000 and arguments.peers:
        best = one_finding(np.array(features[:12_000]))
        for name, result in best.items():
            report(f"n = 4,000, one finding: {name}", result, best["ours"])


if __name__ == "__main__":
    main()
