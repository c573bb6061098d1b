"""The label desk: labels, margins, rankings and reservations of one datastore behind one object.

A MONAI Label app makes one :class:`LabelDesk` and asks it everything. Nothing here imports monailabel.

State lies in one folder beside the datastore (docs/labels.md): ``labels/`` (one JSON file an image), ``served.jsonl``,
``scores.arrow`` (images, margins and rankings, written in one go), ``rereads.json``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...metrics.keyed_hash import id_digests
from ...metrics.options import Options
from ...utils import UserError, unknown
from .diverse import farthest_first
from .files import Signature, signature, utc
from .images import LabelImages
from .labels import LabelStore
from .margins import USED_OPTIONS, MarginIndex, Near, check_options, labelled_counts, plain_near
from .ranking import STRATEGIES, Ranker, Ranking, discordance
from .readings import Label, read_submission
from .rereads import RereadList, draw_list, read_list, reread_kind, write_list
from .scores import NUMBERS, Scores, read_scores, write_scores
from .served import Served
from .words import NO_FEATURE, NOT_SCORED, RESEARCH, near_words

__all__ = ["STRATEGIES", "Choice", "LabelDesk", "Saved"]

SCORES, REREADS, REREAD_CSV = "scores.arrow", "rereads.json", "rereads.csv"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """What saving a label did.

    Args:
        label: all readings of the image.
        affected: images whose margin or impurity changed, by finding; empty where no features are loaded.
        seconds: time that the margins and rankings took.
    """

    label: Label
    affected: Mapping[str, Sequence[str]]
    seconds: float


@dataclass(frozen=True)
class Choice:
    """An image to read next.

    Args:
        image_id: the image.
        strategy: the strategy asked for.
        rank: its place in the strategy's ranking, from 0.
        score: what it was ranked by; None for ``random``, ``candor_diverse`` and ``reread``, whose reader is blinded.
        reserved_until: seconds since the epoch.
    """

    image_id: str
    strategy: str
    rank: int
    score: float | None
    reserved_until: float


@dataclass
class _Loaded:
    """Images with what is known of them; margins live where features are loaded, else those of the last scoring."""

    images: LabelImages
    ranker: Ranker
    labels: np.ndarray
    numbers: dict[str, np.ndarray]
    present: np.ndarray
    diverse: np.ndarray
    rankings: dict[str, Ranking]
    index: MarginIndex | None = None
    row_in_index: np.ndarray | None = None
    rows_of_index: np.ndarray | None = None


class LabelDesk:
    """Labels, margins, rankings and reservations of one datastore. Every method may be called from any thread.

    Args:
        folder: where its state lies; made when something is first written.
        findings: names of the findings that are labelled.
        options: of the measure: k, seed, max_candidates, sets, exclude_same_patient; None: the defaults.
        reserve_seconds, recent_seconds: see :class:`~candor_monai.apps.label.served.Served`.
        clock: seconds since the epoch.
        cover: images that ``candor_diverse`` chooses one by one; the others follow by distance.

    Raises:
        UserError: no finding, or an option that labelling does not have.
    """

    def __init__(
        self,
        folder: str | Path,
        findings: Sequence[str],
        options: Options | None = None,
        reserve_seconds: float = 1800.0,
        recent_seconds: float = 43200.0,
        clock: Callable[[], float] = time.time,
        cover: int = 500,
    ) -> None:
        self.folder = Path(folder)
        self.options = Options() if options is None else options
        check_options(self.options)
        self.store = LabelStore(self.folder / "labels", findings, clock)
        self.findings = self.store.findings
        self.served = Served(self.folder / "served.jsonl", reserve_seconds, recent_seconds, clock)
        self._clock = clock
        self._cover = cover
        self._lock = threading.RLock()
        self._scoring = threading.Lock()
        self._loaded: _Loaded | None = None
        self._head: Any = None
        self._extra: dict[str, np.ndarray] = {}
        self._scores_seen: Signature | None = None
        self._labels: dict[str, Label] = {}
        self._list_seen: Signature | None = None
        self._list: RereadList | None = None

    @classmethod
    def of_folder(cls, folder: str | Path) -> LabelDesk:
        """The desk of a folder that a scoring has been written to, with that scoring's findings and options.

        Raises:
            UserError: there is none, or its file cannot be read.
        """
        scores = read_scores(Path(folder) / SCORES)
        if scores is None:
            raise UserError(f"{folder}: no scoring was written here; name the folder of the label desk's state.")
        return cls(folder, scores.findings, Options(**scores.options))

    # ---- images and features

    def set_images(
        self,
        images: LabelImages,
        features: np.ndarray | None = None,
        present: np.ndarray | None = None,
        head: Any = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Take the datastore's images with their features, compute all margins and rankings, write them in one go.

        This is the whole of a scoring method after encoding. It takes seconds, in which the desk goes on serving with
        what it has; before the first call after a restart that is the margins of the last scoring, as ``scores.arrow``
        keeps them.

        Args:
            images: N images.
            features: shape (N, d), float32, row i belongs to image i; None: no features (``random`` serves; margins of
                an earlier call are kept for the images that are still there).
            present: which rows have a feature, shape (N,), bool; None: all.
            head: linear heads (:class:`~candor_monai.networks.heads.LinearHeads`), or None.
            tell: is told what is being done, for a log.

        Raises:
            UserError: an image id twice, or a folder that cannot be written.
            ValueError: a feature is not finite or zero, or shapes do not fit.
        """
        told = tell or (lambda text: None)
        with self._scoring:
            if features is None:
                with self._lock:
                    before = self._current()
                    self._read_labels()
                    self._loaded = self._kept(before, images, self.store.matrix(images.ids))
                    self._rank(self._loaded)
                return
            # What takes seconds is done while others go on reading and saving.
            loaded = self._scored(images, features, present, told)
            with self._lock:
                self._read_labels()
                self._labelled_since(loaded)
                self._head = head
                self._extra = {}
                self._rank(loaded)
                self._loaded = loaded
                self._write(loaded)
            told(f"scores of {len(images):,} images written")

    def set_feature(self, image_id: str, feature: np.ndarray) -> None:
        """Add the feature of an image that had none, for :meth:`explain`; the next scoring makes it a candidate.

        Args:
            image_id: the image.
            feature: shape (d,), float32.

        Raises:
            UserError: the image is unknown.
            ValueError: the feature is not finite, or zero.
        """
        row = np.array(feature, np.float32).reshape(-1)
        if not np.isfinite(row).all() or not row.any():
            raise ValueError(f"the feature of {image_id!r} is not finite, or zero")
        with self._lock:
            self._row(self._images(), image_id)
            self._extra[image_id] = row

    @property
    def live(self) -> bool:
        """Whether features are loaded here: False after a restart, and after another process scored other images, until
        :meth:`set_images` is called. Until then margins are those of the last scoring."""
        with self._lock:
            loaded = self._current()
            return loaded is not None and loaded.index is not None

    def has_feature(self, image_id: str) -> bool:
        """Whether :meth:`explain` has a feature of the image."""
        with self._lock:
            loaded = self._current()
            row = None if loaded is None else loaded.images.row.get(image_id)
            if loaded is None or row is None or loaded.row_in_index is None:
                return False
            return bool(loaded.row_in_index[row] >= 0) or image_id in self._extra

    # ---- reading

    def next(self, strategy: str, client_id: str | None = None) -> Choice | None:
        """The image to read next, reserved for the client; None: the strategy has none left.

        ``candor_review`` serves labelled images, ``reread`` those of the list drawn by :meth:`draw_rereads`, the
        others images without a label.

        Raises:
            UserError: unknown strategy, or no images yet.
        """
        with self._lock:
            loaded = self._images()
            ranking = self._ranking(loaded, strategy)
            mark = self.served.take(strategy, ranking.image_ids, client_id)
            if mark is None:
                return None
            rank = ranking.image_ids.index(mark.image_id)
            score = None if ranking.scores is None else float(ranking.scores[rank])
            return Choice(mark.image_id, strategy, rank, score, mark.at + self.served.reserve_seconds)

    def left(self, strategy: str, client_id: str | None = None) -> int:
        """How many images the strategy could still serve (to that client) now."""
        with self._lock:
            ranking = self._ranking(self._images(), strategy)
            return len(set(ranking.image_ids) - self.served.blocked(strategy, client_id))

    def reset(self, strategy: str | None = None) -> int:
        """Make recently served images of a strategy (None: of all) available again; how many there were.

        Raises:
            UserError: unknown strategy.
        """
        if strategy is not None and strategy not in STRATEGIES:
            raise unknown("strategy", strategy, STRATEGIES)
        return self.served.reset(strategy)

    def save(self, image_id: str, document: Any, client_id: str | None = None) -> Saved:
        """Save a reading and bring the margins and rankings that it affects up to date, at once.

        ``selected_by`` is what the document says; else the strategy that served the image (to this client), for the
        re-read list what the list says; else ``chosen``.

        Args:
            image_id: an image of the datastore.
            document: JSON text, bytes or mapping: see :func:`~candor_monai.apps.label.labels.read_submission`.
            client_id: pseudonym of the reader; what the document says comes first.

        Raises:
            UserError: unknown image, or a document that is not a label; nothing is changed then.
        """
        with self._lock:
            loaded = self._images()
            self._row(loaded, image_id)
            given = read_submission(document, self.findings, f"label of {image_id!r}")
            reader = given.client_id if given.client_id is not None else client_id
            selected = given.selected_by or self._selected_by(image_id, reader)
            self.store.save(image_id, given.findings, selected, reader)
            self.served.release(image_id)
            start = time.perf_counter()
            affected = self._catch_up(loaded).get(image_id, {})
            return Saved(self._labels[image_id], affected, time.perf_counter() - start)

    def label(self, image_id: str) -> Label | None:
        """The label of an image as it is on disk, or None."""
        return self.store.get(image_id)

    def label_path(self, image_id: str) -> Path:
        """The JSON file of an image's label, whether it is there or not."""
        return self.store.path(image_id)

    def remove_label(self, image_id: str) -> bool:
        """Forget the readings of an image and bring the margins up to date; False: it had none."""
        with self._lock:
            removed = self.store.remove(image_id)
            loaded = self._current()
            if loaded is not None:
                self._catch_up(loaded)
            return removed

    def labelled(self) -> list[str]:
        """Images with a label of some finding, sorted."""
        with self._lock:
            self._sync()
            return sorted(i for i, label in self._labels.items() if self._known(label))

    def unlabelled(self) -> list[str]:
        """Images of the datastore without one, sorted."""
        with self._lock:
            loaded = self._images()
            return sorted(set(loaded.images.ids) - set(self.labelled()))

    def refresh(self) -> list[str]:
        """Look at every file for what other processes or hands did; ids of the images whose label changed."""
        with self._lock:
            return self._sync(whole=True)

    # ---- asking

    def explain(self, image_id: str) -> dict[str, Any]:
        """What the neighbours say about an image, as plain JSON values.

        Returns:
            ``image_id``, ``group``, ``label`` (finding -> 1, 0 or None), ``selected_by``, ``words``, and ``findings``:
            for each ``label``, ``c_pos``, ``c_neg``, ``dm``, ``discordant`` (None without label or margin),
            ``impurity``, ``n`` (candidates a side), ``positives`` and ``negatives`` (``image_id``, ``similarity``,
            nearest first), ``probability`` of the linear head, ``reason`` why there is no margin, and ``words``.
            Numbers that cannot be given are None.

        Raises:
            UserError: the image is unknown.
        """
        with self._lock:
            loaded = self._images()
            row = self._row(loaded, image_id)
            label = self._labels.get(image_id)
            codes, names = loaded.images.groups
            probabilities = self._probabilities(loaded, image_id, row)
            ids = () if loaded.index is None else loaded.index.observations.image_id
            findings = {}
            for column, finding in enumerate(self.findings):
                near = self._near(loaded, image_id, row, column)
                value = int(loaded.labels[row, column])
                findings[finding] = {
                    "label": None if value < 0 else value,
                    **plain_near(near, ids),
                    "discordant": None if value < 0 or near.dm is None else (near.dm > 0 if value else near.dm < 0),
                    "probability": probabilities.get(finding),
                    "words": near_words(finding, near, value, self.options.k, probabilities.get(finding)),
                }
            return {
                "image_id": image_id,
                "group": names[int(codes[row])],
                "label": None if label is None else {f: label.findings.get(f) for f in self.findings},
                "selected_by": None if label is None else label.current.selected_by,
                "findings": findings,
                "words": " ".join([*(part["words"] for part in findings.values()), RESEARCH]),
            }

    def status(self) -> dict[str, Any]:
        """Counts: images, with_feature, labelled, findings, selected_by, reread_by, left (by strategy), problems."""
        with self._lock:
            loaded = self._current()
            self._sync()
            labels = [label for label in self._labels.values() if self._known(label)]
            table = np.empty((0, len(self.findings)), np.int8) if loaded is None else loaded.labels
            rereads = Counter(kind for label in labels if (kind := reread_kind(label)) is not None)
            return {
                "images": 0 if loaded is None else len(loaded.images),
                "with_feature": 0 if loaded is None else int(loaded.present.sum()),
                "labelled": len(labels),
                "findings": labelled_counts(table, self.findings),
                "selected_by": dict(Counter(label.readings[0].selected_by for label in labels)),
                "reread_by": dict(rereads),
                "left": {} if loaded is None else {name: self.left(name) for name in STRATEGIES},
                "problems": self.store.problems,
            }

    # ---- the loop

    def draw_rereads(self, number: int | None = None) -> Path:
        """Draw the list for a blinded re-read: discordant labelled images that were not read again, as many randomly
        chosen concordant ones (and those that earlier reviews lack), in random order.

        Args:
            number: discordant images, the most discordant first; None: all of them.

        Returns:
            a CSV file of image ids in the order of reading, without which is which.

        Raises:
            UserError: there is nothing to read again, or the margins are not known yet.
        """
        from ...visualize.csv_files import write_csv

        with self._lock:
            loaded = self._images()
            if np.isnan(loaded.numbers["dm"]).all():
                raise UserError("no margin is known yet: label images of both kinds and run the scoring method.")
            earlier = self._rereads()
            round_ = 1 if earlier is None else earlier.round + 1
            score = discordance(loaded.numbers["dm"], loaded.labels)
            drawn, note = draw_list(
                loaded.images.ids, score, self._labels, number, self.options.seed, round_, utc(self._clock())
            )
            if note:
                logger.warning(note)
            write_list(self.folder / REREADS, drawn)
            self._rank(loaded)
            target = self.folder / REREAD_CSV
            files = loaded.images.table["image"]
            rows = [{"image_id": i, "image": files.iat[loaded.images.row[i]]} for i in drawn.entries]
            write_csv(target, rows, ("image_id", "image"))
            return target

    def export(self, folder: str | Path, pacs: Mapping[str, Any] | None = None) -> Path:
        """Write the labels as a cohort of the ``table`` adapter: a label table and ``cohort.yaml``.

        Args:
            folder: where to.
            pacs: options of the ``dicomweb`` adapter (``url`` …), where the images are on a PACS and their ids are
                SOPInstanceUIDs; the cohort is then one of that adapter.

        Returns:
            the card, for ``--cohort``.

        Raises:
            UserError: no image is labelled, or the folder cannot be written.
        """
        from .export import export_labels

        with self._lock:
            loaded = self._images()
            self._sync()
            return export_labels(folder, loaded.images, self._labels, self.findings, pacs)

    # ---- inside

    def _current(self) -> _Loaded | None:
        """What is loaded: read from the last scoring where nothing is yet, or another process scored since."""
        path = self.folder / SCORES
        state = signature(path)
        if state is not None and state != self._scores_seen:
            self._scores_seen = state
            try:
                scores = read_scores(path)
            except UserError as error:
                logger.warning("%s", error)
                scores = None
            if scores is not None and scores.findings == self.findings:
                self._adopt(scores)
        return self._loaded

    def _adopt(self, scores: Scores) -> None:
        """Take over what was scored elsewhere; margins that live here stay where they are those of the same images."""
        live = self._loaded
        if live is not None and live.index is not None and _same(live, scores):
            live.diverse = scores.diverse
            self._rank(live)
            return
        self.store.refresh()
        self._labels = self.store.labels()
        loaded = self._empty(scores.images, self.store.matrix(scores.images.ids), scores.present)
        loaded.numbers = {name: np.array(getattr(scores, name)) for name in NUMBERS}
        loaded.diverse = scores.diverse
        self._rank(loaded)
        self._loaded = loaded

    def _images(self) -> _Loaded:
        loaded = self._current()
        if loaded is None:
            raise UserError(f"{self.folder}: the images are not known yet; run the scoring method first.")
        self._catch_up(loaded)
        return loaded

    def _empty(self, images: LabelImages, labels: np.ndarray, present: np.ndarray) -> _Loaded:
        shape = (len(images), len(self.findings))
        return _Loaded(
            images=images,
            ranker=Ranker(images.ids, id_digests(images.ids), self.options.seed),
            labels=labels,
            numbers={name: np.full(shape, np.nan) for name in NUMBERS},
            present=present,
            diverse=np.arange(len(images)),
            rankings={},
        )

    def _read_labels(self) -> None:
        self.store.refresh(whole=True)
        self._labels = self.store.labels()

    def _scored(
        self, images: LabelImages, features: np.ndarray, present: np.ndarray | None, told: Callable[[str], None]
    ) -> _Loaded:
        """Margins and the covering order of all images, with the labels that are there when it begins."""
        present = np.ones(len(images), np.bool_) if present is None else np.asarray(present, np.bool_)
        if len(features) != len(images) or len(present) != len(images):
            raise ValueError(f"{len(images)} images, {len(features)} features, {len(present)} flags")
        labels = self.store.matrix(images.ids)
        rows = np.flatnonzero(present)
        loaded = self._empty(images, labels, present)
        if not len(rows):
            return loaded
        whole = features if len(rows) == len(images) else features[rows]
        told(f"margins of {len(rows):,} images")
        seen = images.observations(self.findings).take(rows)
        loaded.index = MarginIndex(whole, seen, self.options, labels[rows])
        loaded.rows_of_index = rows
        loaded.row_in_index = np.full(len(images), -1, np.int64)
        loaded.row_in_index[rows] = np.arange(len(rows))
        for name in NUMBERS:
            loaded.numbers[name][rows] = getattr(loaded.index, name)
        told("images that cover the feature space")
        known = np.asarray((labels[rows] >= 0).any(axis=1))
        covering = rows[farthest_first(whole, seen.order, known, self._cover, told)]
        # An image that is labelled now may lose its label later: it comes after the others.
        loaded.diverse = np.concatenate([covering, np.flatnonzero(~present), rows[known]])
        return loaded

    def _labelled_since(self, loaded: _Loaded) -> None:
        """Take over labels that were saved while the margins were computed."""
        labels = self.store.matrix(loaded.images.ids)
        rows = np.flatnonzero((labels != loaded.labels).any(axis=1))
        self._update(loaded, rows, labels[rows])

    def _kept(self, before: _Loaded | None, images: LabelImages, labels: np.ndarray) -> _Loaded:
        """Images without features loaded, with what an earlier scoring said of those that are still there."""
        loaded = self._empty(images, labels, np.zeros(len(images), np.bool_))
        if before is None:
            return loaded
        place = np.array([before.images.row.get(image_id, -1) for image_id in images.ids], np.int64)
        rows = np.flatnonzero(place >= 0)
        for name in NUMBERS:
            loaded.numbers[name][rows] = before.numbers[name][place[rows]]
        loaded.present[rows] = before.present[place[rows]]
        rank = np.full(len(before.images), len(before.images), np.int64)
        rank[before.diverse] = np.arange(len(before.diverse))
        key = np.full(len(images), len(before.images) + 1, np.int64)
        key[rows] = rank[place[rows]]
        loaded.diverse = np.argsort(key, kind="stable")
        return loaded

    def _write(self, loaded: _Loaded) -> None:
        options = {name: getattr(self.options, name) for name in USED_OPTIONS}
        path = self.folder / SCORES
        scores = Scores(
            images=loaded.images,
            findings=self.findings,
            labels=loaded.labels,
            present=loaded.present,
            diverse=loaded.diverse,
            options=options,
            **loaded.numbers,
        )
        write_scores(path, scores)
        self._scores_seen = signature(path)

    def _sync(self, whole: bool = False) -> list[str]:
        """Take over labels that changed on disk; their images."""
        loaded = self._current()
        changed = self.store.refresh(whole)
        self._take(changed, loaded)
        return changed

    def _catch_up(self, loaded: _Loaded) -> dict[str, dict[str, list[str]]]:
        """As :meth:`_sync`; images whose numbers changed, by finding, for each image whose label changed."""
        return self._take(self.store.refresh(), loaded)

    def _take(self, changed: Sequence[str], loaded: _Loaded | None) -> dict[str, dict[str, list[str]]]:
        if not changed:
            return {}
        for image_id in changed:
            label = self.store.get(image_id)
            if label is None:
                self._labels.pop(image_id, None)
            else:
                self._labels[image_id] = label
        if loaded is None:
            return {}
        ids = [image_id for image_id in changed if image_id in loaded.images.row]
        rows = np.array([loaded.images.row[image_id] for image_id in ids], np.int64)
        if not len(rows):
            return {}
        told = self._update(loaded, rows, self._vectors(ids))
        self._rank(loaded)
        return dict.fromkeys(ids, told)

    def _update(self, loaded: _Loaded, rows: np.ndarray, labels: np.ndarray) -> dict[str, list[str]]:
        """Put labels where they belong; images whose numbers changed, by finding."""
        told: dict[str, list[str]] = {}
        loaded.labels[rows] = labels
        if loaded.index is None or loaded.row_in_index is None or loaded.rows_of_index is None:
            return told
        inside = loaded.row_in_index[rows]
        moved = loaded.index.update(inside[inside >= 0], labels[inside >= 0])
        for column, found in moved.items():
            there = loaded.rows_of_index[found]
            for name in NUMBERS:
                loaded.numbers[name][there, column] = getattr(loaded.index, name)[found, column]
            told[self.findings[column]] = [loaded.images.ids[row] for row in there.tolist()]
        return told

    def _vectors(self, ids: Sequence[str]) -> np.ndarray:
        table = np.full((len(ids), len(self.findings)), -1, np.int8)
        for place, image_id in enumerate(ids):
            label = self._labels.get(image_id)
            values = {} if label is None else label.findings
            table[place] = [-1 if (value := values.get(finding)) is None else value for finding in self.findings]
        return table

    def _rank(self, loaded: _Loaded) -> None:
        """Make every ranking anew, so that asking for the next image costs nothing."""
        known = np.asarray((loaded.labels >= 0).any(axis=1))
        again = np.zeros(len(known), np.bool_)
        for image_id, label in self._labels.items():
            row = loaded.images.row.get(image_id)
            if row is not None and len(label.readings) > 1:
                again[row] = reread_kind(label) in ("candor_review", "reread_random")
        drawn = self._rereads()
        ranker, dm = loaded.ranker, loaded.numbers["dm"]
        left = [] if drawn is None else [i for i in drawn.left(self._labels) if i in loaded.images.row]
        loaded.rankings = {
            "random": ranker.random(known),
            "candor_review": ranker.review(dm, loaded.labels, again),
            "candor_uncertain": ranker.uncertain(loaded.numbers["impurity"], dm, known),
            "candor_diverse": ranker.diverse(loaded.diverse, known),
            "reread": Ranking(left),
        }

    def _ranking(self, loaded: _Loaded, strategy: str) -> Ranking:
        if strategy not in STRATEGIES:
            raise unknown("strategy", strategy, STRATEGIES)
        return loaded.rankings[strategy]

    def _rereads(self) -> RereadList | None:
        path = self.folder / REREADS
        state = signature(path)
        if state != self._list_seen:
            self._list_seen, self._list = state, read_list(path)
        return self._list

    def _selected_by(self, image_id: str, client_id: str | None) -> str:
        mark = self.served.last(image_id, client_id)
        if mark is None:
            return "chosen"
        drawn = self._rereads()
        if mark.strategy == "reread":
            return "chosen" if drawn is None else drawn.entries.get(image_id, "chosen")
        return mark.strategy

    def _known(self, label: Label) -> bool:
        return any(label.findings.get(finding) is not None for finding in self.findings)

    def _row(self, loaded: _Loaded, image_id: str) -> int:
        row = loaded.images.row.get(image_id)
        if row is None:
            raise UserError(f"there is no image {image_id!r} in this datastore.")
        return row

    def _near(self, loaded: _Loaded, image_id: str, row: int, column: int) -> Near:
        index = loaded.index
        if index is None or loaded.row_in_index is None or loaded.rows_of_index is None:
            values = [loaded.numbers[name][row, column] for name in NUMBERS]
            c_pos, c_neg, dm, impurity = (None if np.isnan(value) else float(value) for value in values)
            return Near(c_pos, c_neg, dm, impurity, 0, [], [], NOT_SCORED if dm is None else None)
        inside = int(loaded.row_in_index[row])
        if inside >= 0:
            return index.near(inside, column)
        feature = self._extra.get(image_id)
        if feature is None:
            return Near(None, None, None, None, 0, [], [], NO_FEATURE)
        own = np.zeros(len(index.observations), np.bool_)
        if self.options.sets == "patient" or self.options.exclude_same_patient:
            table = loaded.images.table
            for name in ("patient", "cluster"):
                value = table[name].iat[row]
                if value is not None:
                    own |= (table[name] == value).to_numpy(dtype=np.bool_)[loaded.rows_of_index]
        return index.near_feature(feature, int(loaded.images.groups[0][row]), own, column)

    def _probabilities(self, loaded: _Loaded, image_id: str, row: int) -> dict[str, float]:
        if self._head is None or loaded.index is None or loaded.row_in_index is None:
            return {}
        import torch

        inside = int(loaded.row_in_index[row])
        feature = loaded.index.rows.array[inside] if inside >= 0 else self._extra.get(image_id)
        if feature is None:
            return {}
        logits = self._head.member_logits(torch.from_numpy(np.array(feature, np.float32)[None]))[0, 0]
        return dict(zip(self._head.findings, torch.sigmoid(logits).tolist(), strict=True))


def _same(loaded: _Loaded, scores: Scores) -> bool:
    """Whether a scoring was of the images that are loaded, in the same groups and with the same features present."""
    return (
        loaded.images.match_on == scores.images.match_on
        and list(loaded.images.table.columns) == list(scores.images.table.columns)
        and loaded.images.table.astype(str).equals(scores.images.table.astype(str))
        and bool((loaded.present == scores.present).all())
    )
