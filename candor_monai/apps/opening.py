"""The parts of an evaluation, opened from its options: what the bundle's config names as components."""

from __future__ import annotations

import dataclasses
import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..data.array_store import ArrayStore
from ..data.cohort import REJECTED_COLUMNS, Cohort
from ..data.cohorts import load_cohort
from ..data.encode_dataset import EncodeDataset, MappedDataset
from ..data.encode_loader import EncodeLoader, EncodeRecords, cohort_sources
from ..data.feature_store import FeatureStore, store_folder
from ..data.folder_lock import folder_lock
from ..data.store_rows import pixel_clusters
from ..handlers.report import ReportHandler
from ..handlers.run_context import RunContext, plain
from ..metrics.observations import Observations
from ..metrics.options import Options as MeasureOptions
from ..utils.atomic import atomic_path
from ..utils.errors import UserError
from ..utils.names import unknown
from ..utils.pseudonyms import read_key
from ..utils.told import told_briefly
from ..visualize.csv_files import plain_text, write_csv
from ..visualize.results_files import read_results
from .options import RunOptions
from .workflow import running_workflow

logger = logging.getLogger(__name__)

# Locks of output folders, held until the process ends.
_locks = ExitStack()
_claimed: set[Path] = set()


def output_folder(options: RunOptions) -> Path:
    """Where results go; nothing is written yet."""
    return options.output_dir.resolve()


def claim(folder: Path) -> None:
    """Make an output folder and hold it until this process ends.

    Raises:
        UserError: it cannot be written, or another run holds it.
    """
    if folder not in _claimed and _rank() == 0:
        _locks.enter_context(folder_lock(folder))
        _claimed.add(folder)


@told_briefly
def open_cohort(options: RunOptions) -> Cohort:
    """The cohort that the options name.

    Raises:
        SystemExit: it is unknown or cannot be read.
    """
    dataset_dir = options.dataset_dir
    if dataset_dir is None and options.cohort == "calibration":
        dataset_dir = options.output_dir / "calibration"
    given = {"task": options.task, "findings": options.findings, "match_on": options.match_on}
    chosen = {name: value for name, value in {**options.cohort_options, **given}.items() if value is not None}
    cohort = load_cohort(options.cohort, dataset_dir, **chosen)
    logger.info("cohort %s: %d images, findings %s", cohort.name, len(cohort), ", ".join(cohort.findings))
    return cohort


@told_briefly
def open_encoder(options: RunOptions, device: Any) -> Any:
    """The frozen encoder that the options name.

    Raises:
        SystemExit: it is unknown, or its weights are missing or wrong.
    """
    from ..networks.encoders import load_encoder

    return load_encoder(
        options.encoder,
        weights_dir=options.weights_dir,
        device=str(device),
        precision=options.precision,
        feature_point=options.feature_point,
    )


@told_briefly
def open_pool(options: RunOptions) -> Any:
    """The bounded decoding processes."""
    from ..data.decode_pool import DecodePool

    return DecodePool(
        workers=options.decode_workers,
        memory_bytes=options.decode_memory_mb << 20,
        seconds=options.decode_seconds,
        options=decode_options(options),
        size=options.canonical_size,
    )


def decode_options(options: RunOptions) -> Any:
    """How files become pixels."""
    from ..data.decoding import DecodeOptions

    known = {f.name for f in dataclasses.fields(DecodeOptions)}
    for name in options.decoding:
        if name not in known:
            raise unknown("option of --decoding:", name, known)
    return DecodeOptions(**options.decoding)


@told_briefly
def open_context(options: RunOptions, cohort: Cohort, network: Any, output_dir: Path) -> RunContext:
    """What the handlers share, with the feature store of this encoder over this cohort.

    Raises:
        SystemExit: the store cannot be read.
    """
    described = network.describe() if hasattr(network, "describe") else {"name": type(network).__name__}
    store: FeatureStore | ArrayStore
    sources = None
    if cohort.features is not None:
        store = ArrayStore(cohort.records["image_id"].tolist(), cohort.features)
    else:
        fingerprint = feature_fingerprint(options, network)
        store = FeatureStore(
            store_folder(options.features_folder, described["name"], cohort.name, fingerprint), fingerprint
        )
        sources = cohort_sources(cohort)
    return RunContext(
        cohort=cohort,
        encoder=plain({**described, "fingerprint": getattr(network, "fingerprint", None)}),
        options=recorded(options),
        output_dir=output_dir,
        store=store,
        sources=sources,
    )


def recorded(options: RunOptions) -> dict[str, Any]:
    """Options as results.json keeps them: flat, under the names of the command line."""
    values = plain(options)
    measure = values.pop("measure")
    measure["sweep_precision"] = measure.pop("precision")
    return {**values, **measure}


def feature_fingerprint(options: RunOptions, network: Any) -> dict[str, Any]:
    """All that a feature depends on besides its file: encoder, decoding, canonical image, preprocessing, batch size.

    Raises:
        UserError: the network has no fingerprint, so that features of another one could not be told apart.
    """
    encoder = getattr(network, "fingerprint", None)
    if encoder is None:
        raise UserError(
            f"network_def is a {type(network).__name__} without a fingerprint, by which its stored features are told "
            "from another network's. Describe it by a card (docs/own_encoder.md)."
        )
    return plain(
        {
            "encoder": encoder,
            "decoding": decode_options(options),
            "image_size": options.image_size,
            "batch_size": options.batch_size,
            "preprocessing": preprocessing_config(),
        }
    )


def preprocessing_config() -> Any:
    """The bundle's ``preprocessing`` and ``dataset`` as they stand in the config, if they are not the shipped ones."""
    try:
        config = running_workflow().parser.config
    except UserError:
        return None
    kept = {name: config.get(name) for name in ("preprocessing", "dataset")}
    return json.loads(json.dumps(kept, default=str))


@told_briefly
def encode_loader(dataset: Any, context: RunContext, options: RunOptions) -> EncodeLoader | list[Any]:
    """Batches of the images that the store lacks; an empty list when it lacks none.

    Args:
        dataset: an :class:`~candor_monai.data.encode_dataset.EncodeDataset`, or any dataset of uint8 images in the
            order of the cohort's records.
    """
    if isinstance(context.store, ArrayStore):
        return []
    records = EncodeRecords.of(context.cohort, context.store, context.sources)
    pool = dataset if isinstance(dataset, EncodeDataset) else MappedDataset(dataset)
    size = options.canonical_size
    loader = EncodeLoader(
        records,
        pool,
        batch_size=options.batch_size if size is not None else 1,
        image_size=size,
        rank=_rank(),
        world_size=_world_size(),
    )
    stored = len(records.image_ids) - int(records.missing.sum())
    context.counts.update(images_stored=stored, images_encoded=loader.images)
    if len(loader):
        logger.info("encoding %d images; %d are in the feature store already", loader.images, stored)
    else:
        logger.info("nothing to encode: all %d images are in the feature store", stored)
    return loader if len(loader) else []


@told_briefly
def open_key(options: RunOptions) -> bytes:
    """The site's secret key for patient pseudonyms."""
    return read_key(options.key_file)


@told_briefly
def run_engine(engine: Any, context: RunContext, stage: str, loader: Any = None) -> None:
    """Run a MONAI engine; a user's mistake that ends it is told in a few lines.

    Args:
        engine: a MONAI evaluator.
        context: keeps the stage's wall time.
        stage: ``encode`` or ``score``.
        loader: an encoding loader, whose own times are kept too. An engine without batches is not run: MONAI's
            ``Workflow.run`` would only warn.
    """
    claim(context.output_dir)
    if loader is not None and not len(loader):
        return
    with context.stage(stage):
        engine.run()
    for name, seconds in getattr(loader, "seconds", {}).items():
        context.seconds[f"{stage}.{name}"] = seconds


@told_briefly
def report_again(options: RunOptions, context: RunContext, pool: Any) -> None:
    """Write the report anew from the results that are there.

    Raises:
        SystemExit: there are none, or they are another encoder's or cohort's.
    """
    claim(context.output_dir)
    results = read_results(context.output_dir / "results.json")
    named = {encoder["name"] for encoder in results["encoders"]}
    if named != {context.encoder["name"]} or results["cohort"]["fingerprint"] != context.cohort.fingerprint():
        raise UserError(
            f"{context.output_dir / 'results.json'} holds encoder {', '.join(sorted(named))} on cohort "
            f"{results['cohort']['name']}, or the cohort has changed since: run `score` first."
        )
    tables = [pd.read_parquet(context.output_dir / f"{name}.parquet") for name in ("queries", "candidates")]
    rejected = pd.read_csv(context.output_dir / "rejected.csv", dtype=str, keep_default_na=False)
    rejected = rejected.map(plain_text)
    handler = ReportHandler(context, pool, options.report_images, options.report_examples)
    handler.write(results, *tables, rejected)


@told_briefly
def export_features(context: RunContext) -> Path:
    """Write the cohort's features to ``features.parquet`` (image_id, feature) and ``rejected.csv``.

    Returns:
        the Parquet file.
    """
    claim(context.output_dir)
    features, present = context.store.matrix(context.image_ids, context.sources)
    rows = np.flatnonzero(present)
    path = context.output_dir / "features.parquet"
    values = pa.FixedSizeListArray.from_arrays(pa.array(features[rows].reshape(-1)), max(1, features.shape[1]))
    table = pa.table({"image_id": [context.image_ids[row] for row in rows], "feature": values})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)
    rejected = context.rejected(present)
    write_csv(context.output_dir / "rejected.csv", rejected, REJECTED_COLUMNS)
    logger.info("%d features in %s, %d images rejected", len(rows), path, len(rejected))
    return path


def scored_observations(context: RunContext) -> Observations:
    """The cohort as the measure sees it; patients who share an image with identical canonical pixels are joined."""
    cohort = context.cohort
    if cohort.clusters is None and isinstance(context.store, FeatureStore):
        cohort = cohort.with_clusters(identical_images(context))
    return cohort.observations()


def identical_images(context: RunContext) -> np.ndarray:
    """Cluster of each record, shape (N,), text: equal where the canonical pixels are."""
    assert isinstance(context.store, FeatureStore)
    codes = pixel_clusters(context.store.provenance(context.image_ids, context.sources)["pixels_sha256"].tolist())
    shared = len(codes) - int((np.bincount(codes) == 1).sum())
    if shared:
        context.warn(f"{shared} images have the same canonical pixels as another one; their patients count as one.")
    return codes.astype(str)


def scored_options(context: RunContext, options: RunOptions) -> MeasureOptions:
    """The measure's options, with the task's severity weights where its pooled value is a weighted mean."""
    task = context.cohort.task
    if task.pooling == "weighted_mean" and options.measure.weights is None:
        weights = {finding: task.weight(finding) for finding in context.cohort.findings}
        return dataclasses.replace(options.measure, weights=weights)
    return options.measure


def stored_features(context: RunContext, options: RunOptions) -> Any:
    """A function that gives features and which of them are scored, for the CANDOR handler."""
    return lambda: context.features(options.measure.memory_bytes)


def _rank() -> int:
    import ignite.distributed as idist

    return idist.get_rank()


def _world_size() -> int:
    import ignite.distributed as idist

    return idist.get_world_size()
