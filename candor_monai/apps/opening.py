"""The parts of an evaluation, opened from its options: what the bundle's config names as components."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data.array_store import ArrayStore
from ..data.cohort import Cohort
from ..data.cohorts import load_cohort
from ..data.cohorts.cards import load_card
from ..data.cohorts.registry import adapter_named, adapter_options
from ..data.encode_dataset import EncodeDataset, MappedDataset
from ..data.encode_loader import EncodeLoader, EncodeRecords, cohort_sources
from ..data.feature_store import FeatureStore, store_folder
from ..data.phantom_files import phantom_complete
from ..data.retention_views import RetentionViews
from ..handlers.report import ReportHandler
from ..handlers.run_context import RunContext
from ..metrics.observations import Observations
from ..metrics.options import Options as MeasureOptions
from ..utils.errors import UserError
from ..utils.names import on_one_line, unknown
from ..utils.plain_values import plain
from ..utils.pseudonyms import read_key
from ..utils.told import told_briefly
from .distributed import processes, shared_missing
from .options import RunOptions
from .workflow import running_workflow

CALIBRATION = "calibration"

logger = logging.getLogger(__name__)


def output_folder(options: RunOptions) -> Path:
    """Where results go; nothing is written yet."""
    return options.output_dir.resolve()


def dataset_folder(options: RunOptions) -> Path | None:
    """The dataset's folder; the calibration cohort lies with the results when none is named."""
    if options.dataset_dir is None and options.cohort == CALIBRATION:
        return options.output_dir / CALIBRATION
    return options.dataset_dir


def default_index_dir() -> Path:
    """Where indices of DICOM headers are kept: with the user's caches, not with results: they hold patient ids."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "candor_monai" / "headers"


@told_briefly
def open_cohort(options: RunOptions) -> Cohort:
    """The cohort that the options name.

    Raises:
        SystemExit: it is unknown or cannot be read.
    """
    dataset_dir = dataset_folder(options)
    given: dict[str, Any] = {"task": options.task, "findings": options.findings, "match_on": options.match_on}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = {name: value for name, value in {**options.cohort_options, **given}.items() if value is not None}
    if "index_dir" not in chosen and "index_dir" in adapter_options(adapter_named(load_card(options.cohort).adapter)):
        chosen["index_dir"] = str(default_index_dir())
    if options.cohort == CALIBRATION and dataset_dir is not None and not phantom_complete(dataset_dir):
        chosen |= {"write": False, "check_files": False}  # only a run writes: see prepare_data
    with processes().first_before_others("cohort"):  # the first may keep an index of headers that the others then read
        cohort = load_cohort(options.cohort, dataset_dir, **chosen)
    logger.info("cohort %s: %d images, findings %s", cohort.name, len(cohort), on_one_line(", ".join(cohort.findings)))
    return cohort


@told_briefly
def open_encoder(options: RunOptions, device: Any) -> Any:
    """The frozen encoder that the options name.

    Raises:
        SystemExit: it is unknown, or its weights are missing or wrong.
    """
    from ..networks.encoders import load_encoder

    with processes().first_before_others("encoder"):  # the first fetches weights where they are not there
        return load_encoder(
            options.encoder,
            weights_dir=options.weights_dir,
            device=str(device),
            precision=options.precision,
            feature_point=options.feature_point,
            processor=options.encoder_processor,
            channels_last=options.channels_last,
            compile=options.compile,
        )


@told_briefly
def open_pool(options: RunOptions, original: bool = False) -> Any:
    """The bounded decoding processes.

    Args:
        options: the run's.
        original: keep each image's own size, whatever the options say.
    """
    from ..data.decode_pool import DecodePool

    return DecodePool(
        workers=options.first_decode_workers,
        memory_bytes=options.decode_memory_mb << 20,
        seconds=options.decode_seconds,
        options=decode_options(options),
        size=None if original else options.canonical_size,
    )


@told_briefly
def open_views(options: RunOptions, context: RunContext, pool: Any) -> RetentionViews | None:
    """The views of occlusion retention; None where they are not wanted or the cohort has no box of a positive image.

    Args:
        options: the run's.
        context: the run.
        pool: decodes at the images' own size.
    """
    cohort = context.cohort
    if not options.retention or cohort.features is not None or not (cohort.boxed() & (cohort.labels == 1)).any():
        return None
    fill, masks, seed = options.retention_fill, options.retention_masks, options.measure.seed
    return RetentionViews(cohort, pool, fill=fill, masks=masks, seed=seed, size=options.canonical_size)


@told_briefly
def views_loader(
    views: RetentionViews | None, context: RunContext, options: RunOptions, device: Any = "cpu"
) -> EncodeLoader | list[Any]:
    """Batches of the views that the store lacks; an empty list when it lacks none."""
    if views is None or isinstance(context.store, ArrayStore):
        return []
    return _loader(_same_for_all(views.records(context.store, context.sources)), views, options, device)


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
    store: FeatureStore | ArrayStore
    sources = None
    if cohort.features is not None:
        named = Path(str(options.cohort_options.get("features", cohort.name))).stem
        described: dict[str, Any] = {"name": named, "title": named, "dimension": int(cohort.features.shape[1])}
        store = ArrayStore(cohort.records["image_id"].tolist(), cohort.features)
    else:
        fingerprint = feature_fingerprint(options, network)
        described = {**network.describe(), "fingerprint": network.fingerprint}
        store = FeatureStore(
            store_folder(options.features_folder, described["name"], cohort.name, fingerprint), fingerprint
        )
        sources = cohort_sources(cohort)
    context = RunContext(
        cohort=cohort,
        encoder=plain(described),
        options=recorded(options),
        output_dir=output_dir,
        store=store,
        sources=sources,
        left_out=listed_images(options.leave_out),
    )
    strange = sorted(context.left_out - set(context.image_ids) - set(cohort.rejected["image_id"]))
    if strange:
        told = f"{len(strange)} of {len(context.left_out)} ids of --leave_out are none of cohort {cohort.name!r}"
        context.warn(f"{told}: {', '.join(map(repr, strange[:3]))}{' …' if len(strange) > 3 else ''}.")
        logger.warning(context.warnings[-1])
    for warning in cohort.counts.get("selection", {}).get("warnings", []):
        context.warn(warning)
    return context


def listed_images(path: Path | None) -> frozenset[str]:
    """Image ids of a text file, one a line, as they stand there.

    Raises:
        UserError: it cannot be read, or a line holds a NUL character.
    """
    if path is None:
        return frozenset()
    try:
        lines = [line.rstrip("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list of images to leave out cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if "\x00" in line:
            raise UserError(
                f"{path}, line {number}: holds a NUL character: a text file of one image id a line is wanted."
            )
    return frozenset(line for line in lines if line)


def recorded(options: RunOptions) -> dict[str, Any]:
    """Options as results.json keeps them: flat, under the names of the command line; of a path its last part only."""
    paths = {f.name: value for f in dataclasses.fields(options) if isinstance(value := getattr(options, f.name), Path)}
    values = {**plain(options), **{name: f"…/{value.name}" for name, value in paths.items()}}
    measure = values.pop("measure")
    measure["sweep_precision"] = measure.pop("precision")
    return {name: _without_folders(value) for name, value in {**values, **measure}.items()}


def _without_folders(value: Any) -> Any:
    """Of each absolute path among nested plain values its last part only."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~/")) and Path(value).name:
        return f"…/{Path(value).name}"
    return value


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
def encode_loader(
    dataset: Any, context: RunContext, options: RunOptions, device: Any = "cpu"
) -> EncodeLoader | list[Any]:
    """Batches of the images that the store lacks; an empty list when it lacks none.

    Args:
        context, options: the run's.
        device: where batches go.
        dataset: an :class:`~candor_monai.data.encode_dataset.EncodeDataset`, or any dataset of uint8 images in the
            order of the cohort's records.
    """
    if isinstance(context.store, ArrayStore):
        return []
    records = _same_for_all(EncodeRecords.of(context.cohort, context.store, context.sources))
    pool = dataset if isinstance(dataset, EncodeDataset) else MappedDataset(dataset)
    loader = _loader(records, pool, options, device)
    stored = len(records.image_ids) - int(records.missing.sum())
    wanted = len(records.image_ids) - stored
    context.counts.update(images_stored=stored, images_encoded=wanted)
    if wanted:
        logger.info("encoding %d images; %d are in the feature store already", wanted, stored)
    else:
        logger.info("nothing to encode: all %d images are in the feature store", stored)
    return loader if len(loader) else []


def _same_for_all(records: EncodeRecords) -> EncodeRecords:
    """The records with what the first process found missing, on many processes."""
    return dataclasses.replace(records, missing=shared_missing(records.image_ids, records.missing))


def _loader(records: EncodeRecords, pool: Any, options: RunOptions, device: Any) -> EncodeLoader:
    size = options.canonical_size
    return EncodeLoader(
        records,
        pool,
        batch_size=options.batch_size if size is not None else 1,
        image_size=size,
        rank=processes().rank,
        world_size=processes().world_size,
        prefetch=options.prefetch,
        workers=options.most_decode_workers if options.decode_workers is None else None,
        pin_memory=options.pin_memory,
        device=device,
    )


def probe_options(options: RunOptions) -> Any:
    """How heads are trained and scored."""
    from ..networks.probing import ProbeOptions

    measure = options.measure
    return ProbeOptions(
        split=options.probe_split,
        train_site=options.train_site,
        resamples=measure.resamples,
        pool_missing=measure.pool_missing,
        seed=measure.seed,
    )


def publishers_split_of(cohort: Cohort) -> list[str | None] | None:
    """The split of each record as its publisher gave it; None where no record has one."""
    split = cohort.records["split"]
    return None if split.isna().all() else [None if pd.isna(part) else str(part) for part in split]


@told_briefly
def open_key(options: RunOptions) -> bytes:
    """The site's secret key for patient pseudonyms."""
    return read_key(options.key_file)


def scored_observations(context: RunContext) -> Observations:
    """The cohort as the measure sees it; patients who share an image with identical canonical pixels are joined."""
    cohort = context.cohort
    if cohort.clusters is None and isinstance(context.store, FeatureStore):
        cohort = cohort.with_clusters(identical_images(context))
    return cohort.observations()


def identical_images(context: RunContext) -> np.ndarray:
    """Cluster of each record, shape (N,), text: equal where the canonical pixels are."""
    assert isinstance(context.store, FeatureStore)
    codes = context.store.clusters(context.image_ids, context.sources)
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

    def features() -> tuple[np.ndarray, np.ndarray]:
        matrix, present = context.features(options.measure.memory_bytes)
        if not present.any():
            raise UserError(
                f"no image of cohort {context.cohort.name!r} has a feature of {context.encoder['name']!r} here: run "
                "`encode` or `candor_eval` first; if that ran, rejected.csv says why there is none."
            )
        return matrix, present

    return features


def thumbnails(options: RunOptions, context: RunContext, pool: Any) -> Any:
    """A function from an image id to its canonical pixels, for handlers that show pictures; None where none are shown
    (``report_images: false``, or a cohort of features)."""
    if not options.report_images or context.cohort.features is not None:
        return None
    return ReportHandler(context, pool).thumbnails()
