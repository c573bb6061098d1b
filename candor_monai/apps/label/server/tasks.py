"""What the server offers: inference, scoring methods and strategies, thin over the label desk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monailabel.interfaces.tasks.infer_v2 import InferTask, InferType
from monailabel.interfaces.tasks.scoring import ScoringMethod
from monailabel.interfaces.tasks.strategy import Strategy

from ....utils import UserError
from ... import options as readers
from ..desk import LabelDesk
from .answers import refused
from .datastore import CandorDatastore

INFER = "candor"
SCORING = "candor"
REREADS = "candor_reread"

STRATEGY_TEXTS = {
    "random": "an unlabelled image, drawn at random",
    "candor_review": "the labelled image that its neighbours contradict most: a label error or a hard case",
    "candor_uncertain": "the unlabelled image whose neighbours are the most mixed",
    "candor_diverse": "the unlabelled image that is least like those labelled so far",
    "reread": "the next image of the list for a blinded second reading",
}


class NeighbourInfer(InferTask):
    """Nearest labelled positives and negatives of an image, its margins, and what they mean.

    Args:
        findings: names of the findings.
        k: neighbours of each kind.
        explain: gives the answer about an image id.
    """

    def __init__(self, findings: tuple[str, ...], k: int, explain: Callable[[str], dict[str, Any]]) -> None:
        super().__init__(
            type=InferType.CLASSIFICATION,
            labels=list(findings),
            dimension=2,
            description=f"the {k} nearest labelled positives and negatives of an image, and its discordance margin",
            config={"k": k},
        )
        self._explain = explain

    def is_valid(self) -> bool:
        return True

    def __call__(self, request: dict[str, Any]) -> tuple[None, dict[str, Any]]:
        return None, self._explain(request["image_id"])


class MarginScoring(ScoringMethod):
    """Features of the images that lack one, then the margins and rankings of all, written in one go."""

    def __init__(self, score: Callable[[], dict[str, Any]]) -> None:
        super().__init__("encode the images that have no feature, then margins and rankings of the whole datastore")
        self._score = score

    def __call__(self, request: dict[str, Any], datastore: CandorDatastore) -> dict[str, Any]:
        return self._score()


class RereadDraw(ScoringMethod):
    """Draws the list of images for a blinded second reading, which the strategy ``reread`` then serves."""

    def __init__(self, desk: LabelDesk) -> None:
        super().__init__("draw the most discordant labelled images and as many concordant ones for a second reading")
        self._desk = desk

    def __call__(self, request: dict[str, Any], datastore: CandorDatastore) -> dict[str, Any]:
        try:
            drawn = self._desk.draw_rereads(readers.whole(1)("number", request.get("number")))
        except UserError as error:
            raise refused(error) from error
        return {"list": str(drawn), "images": self._desk.left("reread")}


class RankedStrategy(Strategy):
    """The next image of one of the desk's rankings, reserved for the client that asks.

    Args:
        name: of the strategy.
        desk: where the rankings are.
    """

    def __init__(self, name: str, desk: LabelDesk) -> None:
        super().__init__(STRATEGY_TEXTS[name])
        self._name, self._desk = name, desk

    def __call__(self, request: dict[str, Any], datastore: CandorDatastore) -> dict[str, Any]:
        client = request.get("client_id")
        try:
            if readers.flag("reset", request.get("reset")):
                self._desk.reset(self._name)
            choice = self._desk.next(self._name, client if isinstance(client, str) else None)
            while choice is not None and not datastore.there(choice.image_id):
                choice = self._desk.next(self._name, client if isinstance(client, str) else None)
        except UserError as error:
            raise refused(error) from error
        if choice is None:
            return {}
        told = {"id": choice.image_id, "strategy_name": self._name, "rank": choice.rank}
        return {**told, "score": choice.score, "reserved_until": choice.reserved_until}
