"""MONAI-style Metric classes over the measure: features come in batches, the value at the end."""

from __future__ import annotations

import numpy as np
import torch
from monai.metrics import Cumulative

from .evaluation import Evaluation, evaluate
from .observations import Observations
from .options import Options


class DiscordanceMetric(Cumulative):
    """Discordance over the batches of an evaluator.

    As any cumulative MONAI metric: call it on each batch, ``aggregate()`` at the end of the epoch, ``reset()`` before
    the next. Batches may come in any order and from several processes (MONAI gathers them); an image that comes
    twice counts once, and must come with the same features. The full result, with intervals, is in ``evaluation``.

    Args:
        observations: the N images that ``index`` counts into.
        options: of the measure. None: the defaults, without the total interval and the permutation test.

    >>> rng = torch.Generator().manual_seed(0)
    >>> labels = np.arange(40)[:, None] % 2
    >>> metric = DiscordanceMetric(Observations([f"i{i}" for i in range(40)], labels, ["edema"]))
    >>> for index in torch.arange(40).split(16):
    ...     features = torch.randn(len(index), 8, generator=rng) + 4 * torch.as_tensor(labels)[index]
    ...     metric(features, index)
    >>> metric.aggregate()
    {'D/edema': 0.0, 'D': 0.0}
    """

    def __init__(self, observations: Observations, options: Options | None = None) -> None:
        super().__init__()
        self.observations = observations
        self.options = options or Options(total_interval=False, permutation_test=False)
        self.evaluation: Evaluation | None = None

    def __call__(self, features: torch.Tensor, index: torch.Tensor) -> None:
        """Add a batch.

        Args:
            features: shape (B, d), any floating dtype; kept as float32.
            index: place of each image in the observations, shape (B,), whole numbers.

        Raises:
            ValueError: the shapes do not fit, or an index is out of range.
        """
        if features.ndim != 2 or index.shape != features.shape[:1]:
            raise ValueError(f"features has shape {tuple(features.shape)}, index {tuple(index.shape)}: (B, d) and (B,)")
        if index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"index has dtype {index.dtype}: whole numbers are needed")
        wrong = torch.nonzero((index < 0) | (index >= len(self.observations))).flatten()
        if len(wrong):
            place = int(wrong[0])
            raise ValueError(f"index[{place}] is {int(index[place])}: there are {len(self.observations)} observations")
        self.extend(features.detach().float(), index.to(features.device, torch.int64))

    def aggregate(self) -> dict[str, float]:
        """D of each finding and, where all findings have one, of the task: ``{"D/edema": 0.31, "D": 0.35}``.

        Raises:
            ValueError: no batch was added, or an image came twice with different features.
        """
        buffer = self.get_buffer()
        if buffer is None or not len(buffer):
            raise ValueError("features: no batch was added")
        features, index = (part.cpu().numpy() for part in buffer)
        rows = self._once(features, index)
        self.evaluation = evaluate(features[rows], self.observations.take(index[rows]), self.options)
        values: dict[str, float] = {}
        for row in self.evaluation.rows:
            if row["level"] != "group" and row["D"] is not None:
                values["D" if row["level"] == "task" else f"D/{row['finding']}"] = row["D"]
        return values

    @staticmethod
    def _once(features: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The first row of each image, in the order of the images."""
        _, first, back = np.unique(index, return_index=True, return_inverse=True)
        differs = np.flatnonzero((features != features[first[back]]).any(axis=1))
        if len(differs):
            place = int(differs[0])
            raise ValueError(f"features[{place}] differs from an earlier row of the same image (index {index[place]})")
        return first
