"""Before long work: what is missing, what will not be estimable, and how long it will take."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.array_store import ArrayStore
from ..data.codecs import NATIVE, missing_codecs
from ..data.cohort import Cohort
from ..data.encode_loader import EncodeRecords
from ..data.feature_store import FeatureStore
from ..data.header_pool import read_headers
from ..handlers.run_context import RunContext
from ..metrics.draw import effective_labels, groups
from ..metrics.observations import Observations
from ..utils.errors import DecodeError, UserError
from ..utils.names import on_one_line
from ..utils.told import told_briefly
from ..visualize.wording import many
from .distributed import processes
from .options import RunOptions

logger = logging.getLogger(__name__)

OK, NOTE, STOP = "ok", "note", "STOP"
# Below these no statement against chance is made (measures.md, section 4).
LEAST_CANDIDATES, LEAST_PATIENTS = 20, 10
WARM_UP_IMAGES = 16
# Cohorts of one's own: a public dataset without patient ids has none to name.
OWN_DATA = ("table", "features", "dicomweb")
NARROW = "where patients have several images the intervals are too narrow."
# What a row of the feature store needs beside its feature, and the working files of the report: measured, rounded up.
ROW_OVERHEAD_BYTES, REPORT_BYTES = 400, 50 << 20


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Args:
        name: what.
        status: ``ok``, ``note`` (the run goes on, read it) or ``STOP`` (it cannot).
        message: what was found, and what to do.
    """

    name: str
    status: str
    message: str

    def __str__(self) -> str:
        return on_one_line(f"[{self.status:>4}] {self.name}: {self.message}")


def check_groups(cohort: Cohort, options: RunOptions) -> Iterator[Check]:
    """Images, positives and negatives of each finding in each matched group, and what that is too few for."""
    seen: Observations = cohort.observations()
    patients = seen.units
    effective = effective_labels(seen, options.measure)
    for column, finding in enumerate(seen.findings):
        labels = effective[:, column]
        if not (labels >= 0).any():
            yield Check(finding, NOTE, "no image has a label: not estimable.")
            continue
        for group, rows, _ in groups(seen, options.measure.matched):
            positive, negative = rows[labels[rows] == 1], rows[labels[rows] == 0]
            counts = [len(positive), len(negative)]
            if not any(counts):
                continue
            if options.measure.sets == "patient":
                sides = [len(np.unique(patients[side])) for side in (positive, negative)]
            else:
                sides = counts
            n = min(options.measure.max_candidates, *sides)
            n_patients = len(np.unique(patients[positive]))
            told = f"{counts[0]} positive, {counts[1]} negative, {n} candidates a side, {n_patients} positive patients"
            if n < options.measure.k + 1:
                yield Check(f"{finding}, {group}", NOTE, f"{told}: not estimable, at least k + 1 a side are needed.")
            elif n < LEAST_CANDIDATES or n_patients < LEAST_PATIENTS:
                yield Check(
                    f"{finding}, {group}",
                    NOTE,
                    f"{told}: too few for a statement against chance ({LEAST_CANDIDATES} candidates a side and "
                    f"{LEAST_PATIENTS} positive patients).",
                )
            else:
                yield Check(f"{finding}, {group}", OK, told + ".")


def check_queries(cohort: Cohort, options: RunOptions) -> None:
    """Refuse queries that the cohort cannot have.

    Raises:
        UserError: test images are asked for and the cohort has no split, or boxed ones and it has no boxes.
    """
    if options.measure.queries == "test" and cohort.observations().test is None:
        raise UserError(f"--queries test: not every image of cohort {cohort.name!r} has a split (--split_column).")
    if options.measure.queries == "boxed" and not cohort.boxed().any():
        raise UserError(f"--queries boxed: cohort {cohort.name!r} has no expert boxes.")


def check_cohort(cohort: Cohort) -> Iterator[Check]:
    """Images, and those left out already."""
    reasons = cohort.rejected["reason"].value_counts().sort_index()
    left_out = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    yield Check(
        "cohort",
        NOTE if len(reasons) else OK,
        f"{cohort.name}: {len(cohort)} images" + (f"; left out: {left_out}." if left_out else "."),
    )
    for row in cohort.describe()["expected"]:
        yield Check("cohort", OK if row["expected"] == row["found"] else NOTE, row["sentence"] + ".")


def check_reading(cohort: Cohort) -> Iterator[Check]:
    """What of the folder could not be looked into, and images whose patient is not known."""
    for key, what, lack in (
        ("unreadable_folders", "folder", "cannot be listed"),
        ("unreadable_archives", "archive", "cannot be read"),
    ):
        names = cohort.counts.get(key) or []
        if names:
            shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            yield Check("folder", NOTE, f"{many(len(names), what)} {lack}, the images inside are not seen: {shown}.")
    unwritable = cohort.counts.get("names_not_utf8") or 0
    if unwritable:
        yield Check("folder", NOTE, f"{many(unwritable, 'file')} with a name that is not UTF-8 passed over: rename.")
    unknown = int(cohort.records["patient_id"].isna().sum())
    if 0 < unknown < len(cohort):
        told = f"{unknown:,} of {len(cohort):,} images have no patient id: each counts as a patient of its own"
        yield Check("patients", NOTE, f"{told}, and {NARROW}")
    elif unknown and cohort.card.get("adapter") in OWN_DATA:
        told = "no image has a patient id (--patient_column names it): each counts as a patient of its own"
        yield Check("patients", NOTE, f"{told}, and {NARROW}")


def check_codecs(cohort: Cohort, options: RunOptions) -> Iterator[Check]:
    """Whether every transfer syntax of the cohort's DICOM files can be decoded here."""
    if cohort.features is not None or cohort.open_image is not None:
        return
    paths = [str(cohort.path(i)) for i in range(len(cohort))]
    paths = [path for path in paths if Path(path).suffix.lower() not in (".png", ".jpg", ".jpeg", ".tif", ".tiff")]
    syntaxes: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    for _, answer in read_headers(paths, (), workers=options.first_decode_workers):
        if answer.header:
            syntaxes[answer.header.get("TransferSyntaxUID", "")] += 1
        else:
            unread[answer.reason] += 1
    missing = missing_codecs([syntax for syntax in syntaxes if syntax])
    for syntax, install in missing.items():
        yield Check("codecs", NOTE, f"{syntaxes[syntax]} files in {syntax} cannot be decoded; install {install}.")
    if unread:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(unread.items()))
        yield Check("headers", NOTE, f"{sum(unread.values())} files have no readable DICOM header: {told}.")
    if syntaxes and not missing:
        compressed = sum(count for syntax, count in syntaxes.items() if syntax not in NATIVE)
        yield Check("codecs", OK, f"{sum(syntaxes.values())} DICOM files, {compressed} of them compressed.")


def check_space(context: RunContext, options: RunOptions, to_encode: int) -> Iterator[Check]:
    """Disk for the feature store and the results, memory for the measure."""
    dimension = int(context.encoder.get("dimension") or 0)
    disk = to_encode * (4 * dimension + ROW_OVERHEAD_BYTES) + REPORT_BYTES
    folder = options.features_folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    told = f"{disk / 2**20:,.0f} MiB needed, {free / 2**20:,.0f} MiB free"
    yield Check("disk", OK if free > disk else STOP, f"{told} at {folder}." + ("" if free > disk else " Make room."))
    matrix = len(context.cohort) * 4 * dimension
    bound = options.measure.memory_bytes
    how = "in memory" if matrix <= bound else "memory-mapped"
    yield Check(
        "memory", OK, f"features of {matrix / 2**20:,.0f} MiB {how}; the measure adds at most {bound >> 20} MiB."
    )


def measure_speed(context: RunContext, dataset: Any, network: Any, device: Any, options: RunOptions) -> Iterator[Check]:
    """Decode and forward a few images and tell how long the rest will take."""
    import torch

    assert isinstance(context.store, FeatureStore)
    records = EncodeRecords.of(context.cohort, context.store, context.sources)
    wanted = np.flatnonzero(records.missing)
    if not len(wanted):
        yield Check("time", OK, "nothing to encode: every feature is in the store.")
        return
    chosen = wanted[np.linspace(0, len(wanted) - 1, min(WARM_UP_IMAGES, len(wanted))).astype(int)]
    before = time.perf_counter()
    images, failed = [], Counter[str]()
    for _, pixels, _, _ in dataset.map([(int(i), records.open(int(i))) for i in chosen]):
        if isinstance(pixels, DecodeError):
            failed[pixels.reason] += 1
        else:
            images.append(torch.from_numpy(pixels))
    decode = (time.perf_counter() - before) / len(chosen)
    if failed:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(failed.items()))
        status = STOP if not images else NOTE
        yield Check("images", status, f"of {len(chosen)} tried, {sum(failed.values())} cannot be decoded: {told}.")
    if not images or options.canonical_size is None:
        return
    batch = torch.stack([images[i % len(images)] for i in range(options.batch_size)]).to(device)
    network(batch)
    before = time.perf_counter()
    network(batch)
    if batch.is_cuda:
        torch.cuda.synchronize()
    forward = (time.perf_counter() - before) / options.batch_size
    seconds = len(wanted) * max(decode, forward)
    slower = "decoding" if decode > forward else "the encoder"
    yield Check(
        "time",
        OK,
        f"{len(wanted)} images to encode, about {clock(seconds)} ({1 / decode:,.0f} images/s decoded, "
        f"{1 / forward:,.0f} images/s encoded; {slower} sets the pace).",
    )


def check_multiplication() -> Iterator[Check]:
    """Rate of a float32 matrix product, which bounds the measure: a bad build of a library shows here."""
    import torch

    a = torch.rand(1024, 1024)
    torch.mm(a, a)
    before = time.perf_counter()
    for _ in range(4):
        torch.mm(a, a)
    rate = 4 * 2 * 1024**3 / (time.perf_counter() - before) / 1e9
    threads = torch.get_num_threads()
    status = OK if rate > 5 * threads else NOTE
    yield Check("matrix product", status, f"{rate:,.0f} GFLOP/s with {threads} threads.")


@told_briefly
def run_doctor(
    options: RunOptions, context: RunContext, dataset: Any, network: Any, device: Any, warm_up: bool = True
) -> list[Check]:
    """Look at everything that could stop or spoil the run, print it, and stop if it cannot work.

    Args:
        options, context, dataset, network, device: the parts of the run.
        warm_up: forward a few images and estimate the time; else only what is looked up at once.

    Returns:
        what was looked at; nothing in any process but the first.

    Raises:
        SystemExit: a check says STOP.
    """
    if not processes().first:
        return []
    cohort = context.cohort
    encoder = context.encoder
    check_queries(cohort, options)
    licence = encoder.get("licence") or "no licence stated"
    checks = [Check("encoder", OK, f"{encoder['name']}, {encoder.get('dimension')} dimensions, {licence}.")]
    known_as = f"{cohort.name} {cohort.card.get('title') or ''}"
    if any(name in known_as for name in encoder.get("overlaps") or ()):
        checks.append(Check("encoder", NOTE, f"it was trained on {cohort.name}: its numbers there are flattered."))
    told_elsewhere = [*check_cohort(cohort), *check_groups(cohort, options)]  # results.json has these as rows
    checks += [*told_elsewhere, *check_reading(cohort)]
    stored_only = isinstance(context.store, ArrayStore)
    to_encode = 0 if stored_only else len(context.store.missing(context.image_ids, context.sources))
    checks += check_space(context, options, to_encode)
    if warm_up:
        checks += check_codecs(cohort, options)
        checks += check_multiplication()
        if not stored_only:
            checks += measure_speed(context, dataset, network, device, options)
    for check in checks:
        if warm_up or check.status != OK:
            print(check, flush=True)
        if check.status == NOTE and check not in told_elsewhere:
            context.warn(f"{check.name}: {check.message}")
    stops = [check for check in checks if check.status == STOP]
    if stops:
        raise UserError("the run cannot work:\n" + "\n".join(f"  {check.name}: {check.message}" for check in stops))
    return checks


def clock(seconds: float) -> str:
    """A time span in words.

    >>> clock(5.2), clock(125), clock(7300)
    ('5 s', '2 min 5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
