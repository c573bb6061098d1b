"""The label desk at 20,000 images: saving a label, the next image, an explanation, beside computing all anew.

``python -m tests.benchmarks.bench_label [images] [dimension] [labelled] [findings]``
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from candor_monai.apps.label.desk import LabelDesk
from candor_monai.apps.label.images import LabelImages
from candor_monai.apps.label.margins import MarginIndex
from candor_monai.metrics.options import Options


def times(call: Callable[[], object], count: int) -> tuple[float, float]:
    """Median wall and processor milliseconds of a call."""
    wall, processor = [], []
    for _ in range(count):
        start = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return 1000 * float(np.median(wall)), 1000 * float(np.median(processor))


def main(count: int = 20_000, dimension: int = 768, labelled: int = 2_000, findings: int = 4) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    names = [f"finding {f}" for f in range(findings)]
    truth = rng.random((count, findings)) < 0.2
    features = rng.standard_normal((count, dimension)).astype(np.float32)
    features[:, :findings] += 3 * truth
    ids = [f"folder/image {i:06}.dcm" for i in range(count)]
    views = rng.choice(["AP", "PA"], count).tolist()
    patients = [f"{p:016x}" for p in rng.integers(0, count // 2, count)]
    images = LabelImages.of(ids, ids, patients, {"view": views}, ["view"], "bench")
    order = rng.permutation(count)
    with tempfile.TemporaryDirectory() as folder:
        desk = LabelDesk(Path(folder), names)
        for i in order[:labelled]:
            desk.store.save(ids[i], {name: int(truth[i, f]) for f, name in enumerate(names)}, "random")
        start = time.perf_counter(), time.process_time()
        desk.set_images(images, features)
        print(f"{count:,} images, {dimension} values, {labelled:,} labelled, {findings} findings, 2 groups")
        print(
            f"scoring of all: {time.perf_counter() - start[0]:.1f} s wall, {time.process_time() - start[1]:.1f} s CPU"
        )
        for strategy in ("random", "candor_review", "candor_uncertain", "candor_diverse"):
            wall, processor = times(lambda: desk.next(strategy, "reader"), 200)  # noqa: B023
            print(f"next, {strategy:17} {wall:8.2f} ms wall {processor:8.2f} ms CPU")
        todo = iter(order[labelled:])

        def save() -> None:
            i = next(todo)
            desk.save(ids[i], {"findings": {name: int(truth[i, f]) for f, name in enumerate(names)}}, "reader")

        saved = times(save, 30)
        print(f"save, margins, rankings    {saved[0]:8.1f} ms wall {saved[1]:8.1f} ms CPU")
        asked = times(lambda: desk.explain(ids[int(rng.integers(count))]), 50)
        print(f"explain                    {asked[0]:8.2f} ms wall {asked[1]:8.2f} ms CPU")
        seen, labels = images.observations(names), desk.store.matrix(ids)
        anew = times(lambda: MarginIndex(features, seen, Options(), labels), 1)
        print(f"all margins anew           {anew[0]:8.1f} ms wall {anew[1]:8.1f} ms CPU")
        print(f"all anew / one label saved: {anew[1] / saved[1]:.0f} times (CPU)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
