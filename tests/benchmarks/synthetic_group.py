"""A synthetic group of the size and prevalences of CheXpert's AP images, as a memory-mapped file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from candor_monai.metrics.observations import Observations

#: Share of positives among CheXpert's AP images (label 1.0), from its train.csv.
PREVALENCES = {
    "Lung Opacity": 0.5227,
    "Pleural Effusion": 0.4259,
    "Edema": 0.2968,
    "Atelectasis": 0.1641,
    "Cardiomegaly": 0.1267,
    "Pneumothorax": 0.0983,
    "Consolidation": 0.0711,
    "Enlarged Cardiomediastinum": 0.0480,
    "Fracture": 0.0373,
    "Lung Lesion": 0.0304,
    "Pneumonia": 0.0215,
    "Pleural Other": 0.0092,
}
IMAGES_A_PATIENT = 147_169 / 40_000


def synthetic_group(
    folder: Path, images: int, dimension: int = 768, groups: int = 1
) -> tuple[np.ndarray, Observations]:
    """Features with a falling spectrum and a weak trace of each finding, and their observations.

    Returns:
        features, shape (images, dimension), float32, memory-mapped, and the observations.
    """
    rng = np.random.default_rng(0)
    labels = (rng.random((images, len(PREVALENCES))) < np.array(list(PREVALENCES.values()))).astype(np.int8)
    traces = 0.06 * rng.standard_normal((len(PREVALENCES), dimension)).astype(np.float32)
    spectrum = (4 / np.sqrt(np.arange(1, dimension + 1))).astype(np.float32)
    path = folder / f"features_{images}_{dimension}.npy"
    if not path.exists():
        table = np.lib.format.open_memmap(path, "w+", np.float32, (images, dimension))
        for start in range(0, images, 8192):
            stop = min(start + 8192, images)
            noise = rng.standard_normal((stop - start, dimension), dtype=np.float32)
            table[start:stop] = noise * spectrum + labels[start:stop].astype(np.float32) @ traces + 0.5
        table.flush()
    patients = rng.integers(max(1, int(images / IMAGES_A_PATIENT)), size=images)
    seen = Observations(
        [f"image{i:07d}" for i in range(images)],
        labels,
        list(PREVALENCES),
        group=rng.integers(groups, size=images),
        group_names=[f"group {g}" for g in range(groups)],
        patient=[f"patient{p:06d}" for p in patients],
    )
    return np.load(path, mmap_mode="r"), seen
