"""Encoding through the bundle's own parts, as a share of the bare forward pass on preloaded tensors.

    python -m tests.benchmarks.bench_end_to_end [--encoder efficientnet_lite0] [--images 611] [--dicom]

Both are measured in the same run, turn by turn; the figure is images a second of the whole way (read, decode in bounded
processes, batch, forward, save) over those of the encoder alone. Needs ../shared/data/nih_cxr.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.engines import SupervisedEvaluator

from candor_monai.data import DecodePool, EncodeDataset, EncodeLoader, EncodeRecords, FeatureStore, load_cohort
from candor_monai.handlers import FeatureSaver
from candor_monai.inferers import EncoderInferer
from candor_monai.networks.encoders import load_encoder

from ..bundles.test_real_radiographs import write_twin
from ..support import SHARED


def vit_s() -> dict[str, Any]:
    """A card of an untrained ViT-S/16: the size of DINOv3-S, without its weights."""
    return {
        "name": "vit_s_untrained",
        "loader": "timm",
        "architecture": "vit_small_patch16_224",
        "kwargs": {"num_classes": 0},
        "seed": 0,
        "processor": {"size": 224, "resize": "squash"},
        "feature_point": "cls",
        "dimension": 384,
    }


def bare(encoder: torch.nn.Module, images: torch.Tensor, batch: int) -> float:
    """Images a second of the model alone on processed tensors in memory."""
    with torch.no_grad():
        processed = [encoder.processor(piece) for piece in images.split(batch)]
        encoder.backbone(processed[0], encoder.feature_point)
        start = time.perf_counter()
        for piece in processed:
            encoder.backbone(piece, encoder.feature_point)
    return len(images) / (time.perf_counter() - start)


def whole(encoder: torch.nn.Module, cohort: Any, batch: int, folder: Path) -> tuple[float, dict[str, float]]:
    """Images a second from files to a saved feature store, and where the time went."""
    store = FeatureStore(folder, {"run": time.time()})
    with DecodePool(workers=2) as pool:
        start = time.perf_counter()
        loader = EncodeLoader(EncodeRecords.of(cohort, store), EncodeDataset(cohort, pool), batch)
        saver = FeatureSaver(store, loader)
        SupervisedEvaluator(
            device=torch.device("cpu"),
            val_data_loader=loader,
            network=encoder,
            inferer=EncoderInferer(batch),
            val_handlers=[saver],
            decollate=False,
        ).run()
        seconds = time.perf_counter() - start
    return loader.images / seconds, {**loader.seconds, "write": saver.seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--images", type=int, default=611)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dicom", action="store_true", help="the same pixels written as DICOM files")
    given = parser.parse_args()
    encoder = load_encoder(vit_s() if given.encoder == "vit_s" else given.encoder)
    with tempfile.TemporaryDirectory() as scratch:
        if given.dicom:
            _, folder = write_twin(Path(scratch), given.images)
            cohort = load_cohort("table", folder, labels="labels.csv", findings=["Edema"], match_on=["view"])
        else:
            cohort = load_cohort("nih_cxr", SHARED / "nih_cxr")
            cohort = cohort.select(np.arange(min(given.images, len(cohort))))
        with DecodePool(workers=2) as pool:
            pixels = [pixels for _, pixels, _, _ in pool.map([(i, cohort.source(i)) for i in range(len(cohort))])]
        images = torch.from_numpy(np.stack([image for image in pixels if isinstance(image, np.ndarray)]))
        shares = []
        for number in range(given.rounds):
            alone = bare(encoder, images, given.batch)
            through, parts = whole(encoder, cohort, given.batch, Path(scratch) / f"store{number}")
            shares.append(through / alone)
            told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
            print(f"bare {alone:.1f} images/s, whole {through:.1f} images/s, {100 * through / alone:.1f} % ({told})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{given.encoder}, {len(images)} images: median {100 * float(np.median(shares)):.1f} %, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
