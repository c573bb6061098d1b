"""TensorBoard: an evaluation's numbers as scalars, its features for the projector."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics.keyed_hash import keyed_hash
from ..metrics.observations import Observations
from ..utils.errors import UserError
from .interval_metrics import interval_metrics
from .rank_zero import RankZeroHandler

if TYPE_CHECKING:
    from ignite.engine import Engine

LABELS = {1: "positive", 0: "negative"}
SPRITE_SIDE = 48
# What the writer leaves in its folder, and this handler takes away before it writes again.
_LEFT = ("events.out.tfevents.*", "projector_config.pbtxt", "00000")


class TensorBoardHandler(RankZeroHandler):
    """Write scalars and a projector embedding when the epoch completes; a run replaces what an earlier one left there.

    Scalars, at step 0: every metric of ``engine.state.metrics`` (D, D_all, margin AUROC, the heads' AUROC, by finding
    and group) and the ends of their intervals (``D_lo/<finding>``, …). Embedding: the scored images' features, each
    divided by its norm, so that the projector's distances rank as the cosine does; metadata: the matched group, and
    of each finding the label and whether the image is discordant. No image or patient id is written: the row is the
    image's place in the cohort.

    Attach it after :class:`~candor_monai.handlers.results_saver.ResultsSaver`.

    Args:
        observations: the N images.
        features: gives the features, shape (N, d), float32, and which are scored, shape (N,), bool.
        folder: TensorBoard's log folder.
        thumbnails: gives an image id's pixels, uint8, (C, H, W), or None: the projector then shows pictures; None
            shows none.
        most: at most so many images, drawn by a keyed hash of their ids; the projector gets slow beyond.
        save_rank: only this process writes.
    """

    def __init__(
        self,
        observations: Observations,
        features: Callable[[], tuple[np.ndarray, np.ndarray]],
        folder: str | Path,
        thumbnails: Callable[[str], np.ndarray | None] | None = None,
        most: int = 5000,
        save_rank: int = 0,
    ) -> None:
        super().__init__(save_rank)
        self.observations = observations
        self.features = features
        self.folder = Path(folder)
        self.thumbnails = thumbnails
        self.most = most

    def act(self, engine: Engine) -> None:
        """Write.

        Raises:
            UserError: tensorboard is not installed, or the folder cannot be written.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("TensorBoard is not installed: pip install 'candor_monai[tracking]'.") from error
        state: Any = engine.state
        try:
            _emptied(self.folder)
            with SummaryWriter(str(self.folder)) as writer:
                for name, value in {**state.metrics, **interval_metrics(state.results)}.items():
                    writer.add_scalar(name, value, 0)
                rows, matrix = self._embedded()
                if len(rows) > 1:  # the projector has nothing to project of one
                    header, metadata = self._metadata(rows, state.candor.queries)
                    pictures = self._pictures(rows)
                    writer.add_embedding(matrix, metadata, pictures, 0, "features", header)
        except OSError as error:
            raise UserError(f"{self.folder}: TensorBoard's files cannot be written: {error.strerror}.") from error

    def _embedded(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows shown, ascending, shape (n,), and their features of norm 1, shape (n, d)."""
        features, present = self.features()
        rows = np.flatnonzero(present)
        if len(rows) > self.most:
            drawn = keyed_hash(self.observations.image_id[rows].tolist(), "tensorboard")
            rows = np.sort(rows[np.argsort(drawn, kind="stable")[: self.most]])
        shown = np.asarray(features[rows], dtype=np.float32)
        return rows, shown / np.linalg.norm(shown, axis=1, keepdims=True)

    def _metadata(self, rows: np.ndarray, queries: Any) -> tuple[list[str], list[list[str]]]:
        """Names of the columns, and the columns' texts of each row."""
        seen = self.observations
        place = {str(image_id): i for i, image_id in enumerate(seen.image_id)}
        header, columns = (
            ["row", "group"],
            [[str(row) for row in rows], [seen.group_names[seen.group[r]] for r in rows]],
        )
        for f, finding in enumerate(seen.findings):
            header.append(finding)
            columns.append([LABELS.get(int(seen.labels[row, f]), "unlabelled") for row in rows])
            said = {
                place[str(i)]: "discordant" if d else "concordant"
                for i, d, of in zip(queries["image_id"], queries["discordant"], queries["finding"], strict=True)
                if of == finding
            }
            header.append(f"{finding}: discordant")
            columns.append([said.get(int(row), "not a query") for row in rows])
        plain = [[" ".join(text.split()) for text in column] for column in columns]  # a tab would end the column
        return header, [list(row) for row in zip(*plain, strict=True)]

    def _pictures(self, rows: np.ndarray) -> Any:
        """Small pictures of the rows, shape (n, 3, side, side), float32 in [0, 1]; black where there is none."""
        if self.thumbnails is None:
            return None
        import torch

        shown = torch.zeros((len(rows), 3, SPRITE_SIDE, SPRITE_SIDE))
        for place, row in enumerate(rows):
            pixels = self.thumbnails(str(self.observations.image_id[row]))
            if pixels is not None:
                image = torch.from_numpy(np.ascontiguousarray(pixels)).float()[None] / 255
                image = image.expand(1, 3, *image.shape[2:])
                shown[place] = torch.nn.functional.interpolate(image, (SPRITE_SIDE, SPRITE_SIDE), mode="area")[0]
        return shown


def _emptied(folder: Path) -> None:
    for pattern in _LEFT:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
