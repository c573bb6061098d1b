"""The label desk: labels, margins, rankings and reservations of one datastore behind one object.

A MONAI Label app makes one :class:`LabelDesk` and asks it everything. Nothing here imports monailabel.

State lies in one folder beside the datastore (docs/labels.md): ``labels/`` (one JSON file an image), ``served.jsonl``,
``scores.arrow`` (images, margins and rankings, written in one go), ``rereads.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .images import LabelImages
from .labels import Label

STRATEGIES = ("random", "candor_review", "candor_uncertain", "candor_diverse", "reread")


@dataclass(frozen=True)
class Saved:
    """What saving a label did.

    Args:
        label: all readings of the image.
        affected: images whose neighbours changed, by finding.
        seconds: time that the margins took.
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
        score: what it was ranked by; None for ``random`` and for ``reread``, whose reader is blinded.
        reserved_until: seconds since the epoch.
    """

    image_id: str
    strategy: str
    rank: int
    score: float | None
    reserved_until: float


class LabelDesk:
    """Labels, margins, rankings and reservations of one datastore. Every method may be called from any thread.

    Args:
        folder: where its state lies; made when something is first written.
        findings: names of the findings that are labelled.
        options: options of the measure (:class:`~candor_monai.metrics.options.Options`): k, seed, max_candidates, sets.
        reserve_seconds, recent_seconds: see :class:`~candor_monai.apps.label.served.Served`.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: str | Path,
        findings: Sequence[str],
        options: Any = None,
        reserve_seconds: float = 1800.0,
        recent_seconds: float = 43200.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        raise NotImplementedError

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

        This is the whole of a scoring method after encoding. It takes seconds; until it was called (and after a
        restart) the rankings of the last call are used, as ``scores.arrow`` keeps them.

        Args:
            images: N images.
            features: shape (N, d), float32, row i belongs to image i; None: no features yet (random serves).
            present: which rows have a feature, shape (N,), bool; None: all.
            head: linear heads (:class:`~candor_monai.networks.heads.LinearHeads`), or None.
            tell: is told what is being done, for a log.
        """
        raise NotImplementedError

    def set_feature(self, image_id: str, feature: np.ndarray) -> None:
        """Add the feature of one image that had none (encoded on demand for :meth:`explain`).

        Raises:
            UserError: the image is unknown.
        """
        raise NotImplementedError

    def has_feature(self, image_id: str) -> bool:
        """Whether :meth:`explain` has a feature of the image."""
        raise NotImplementedError

    # ---- reading

    def next(self, strategy: str, client_id: str | None = None) -> Choice | None:
        """The image to read next, reserved for the client; None: the strategy has none left.

        ``candor_review`` serves labelled images, ``reread`` those of the list drawn by :meth:`draw_rereads`, the
        others images without a label. A few microseconds to two milliseconds at 20,000 images.

        Raises:
            UserError: unknown strategy.
        """
        raise NotImplementedError

    def left(self, strategy: str) -> int:
        """How many images the strategy could still serve now."""
        raise NotImplementedError

    def reset(self, strategy: str | None = None) -> int:
        """Make recently served images of a strategy (None: of all) available again; how many there were."""
        raise NotImplementedError

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
        raise NotImplementedError

    def label(self, image_id: str) -> Label | None:
        """The label of an image, or None."""
        raise NotImplementedError

    def label_path(self, image_id: str) -> Path:
        """The JSON file of an image's label, whether it is there or not."""
        raise NotImplementedError

    def remove_label(self, image_id: str) -> bool:
        """Forget the readings of an image and bring the margins up to date; False: it had none."""
        raise NotImplementedError

    def labelled(self) -> list[str]:
        """Images with a label of some finding, sorted."""
        raise NotImplementedError

    def unlabelled(self) -> list[str]:
        """Images of the datastore without one, sorted."""
        raise NotImplementedError

    def refresh(self) -> list[str]:
        """Take over what other processes saved; ids of the images whose label changed."""
        raise NotImplementedError

    # ---- asking

    def explain(self, image_id: str) -> dict[str, Any]:
        """What the neighbours say about an image, as plain JSON values.

        ``{"image_id", "group", "label", "selected_by", "findings": {name: {"label", "c_pos", "c_neg", "dm",
        "discordant", "impurity", "n", "positives": [{"image_id", "similarity"}], "negatives": […], "probability",
        "reason", "words"}}, "words"}``. Numbers that cannot be given are None, with ``reason``.

        Raises:
            UserError: the image is unknown.
        """
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Counts for the app's info page: images, with_feature, labelled, by finding, by selected_by, left by strategy,
        problems."""
        raise NotImplementedError

    # ---- the loop

    def draw_rereads(self, number: int | None = None) -> Path:
        """Draw the list for a blinded re-read: the most discordant labelled images not yet reviewed, as many randomly
        chosen concordant ones (and those that earlier reviews lack), in random order.

        Args:
            number: discordant images; None: all of them.

        Returns:
            a CSV file of image ids in the order of reading, without which is which.
        """
        raise NotImplementedError

    def export(self, folder: str | Path) -> Path:
        """Write the labels as a ``table`` cohort: ``labels.csv`` and ``cohort.yaml``.

        Returns:
            the card, for ``--cohort``.
        """
        raise NotImplementedError
