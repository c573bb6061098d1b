"""The MONAI Label app: images of a folder or a PACS, neighbours, margins, rankings and labels over HTTP."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from monailabel.config import settings
from monailabel.interfaces.app import MONAILabelApp
from monailabel.interfaces.datastore import DefaultLabelTag
from monailabel.interfaces.tasks.infer_v2 import InferTask
from monailabel.interfaces.tasks.scoring import ScoringMethod
from monailabel.interfaces.tasks.strategy import Strategy

from ...._version import __version__
from ....data.cohort import Cohort
from ....utils import UserError
from ....utils.pseudonyms import read_key
from ....utils.told import as_exit
from ..conf import label_options
from ..desk import STRATEGIES, LabelDesk
from ..encoding import Encoding
from ..files import signature
from ..images import LabelImages
from ..studies import import_labels, open_studies
from .answers import not_found, refused, tell_mistakes
from .datastore import CandorDatastore
from .tasks import INFER, REREADS, SCORING, MarginScoring, NeighbourInfer, RankedStrategy, RereadDraw

logger = logging.getLogger(__name__)

LOOK_SECONDS, LONGEST_PAUSE = 1.0, 300.0


class CandorLabelApp(MONAILabelApp):
    """What ``monailabel start_server`` runs; ``--conf`` is read by :func:`~candor_monai.apps.label.conf.label_options`.

    Raises:
        SystemExit: a mistake in the options, no image, or wrong weights; the message says which.
    """

    def __init__(self, app_dir: str, studies: str, conf: dict[str, str]) -> None:
        settings.MONAI_LABEL_DICOMWEB_CONVERT_TO_NIFTI = False
        try:
            self.options = label_options(studies, app_dir, conf or {})
            assert self.options.run.findings is not None
            self._key = read_key(self.options.run.key_file)
            self.encoding = Encoding(self.options)
            self.desk = LabelDesk(
                self.options.state_dir,
                self.options.run.findings,
                self.options.run.measure,
                self.options.reserve_seconds,
                self.options.recent_seconds,
            )
            self._seen: Any = None
            self._taking = threading.Lock()
            super().__init__(
                app_dir=app_dir,
                studies=studies,
                conf=conf,
                name="candor_monai",
                description=f"Neighbours and discordance of {self.encoding.name}: what to read next, and why",
                version=__version__,
                labels=list(self.options.run.findings),
            )
            # else scoring would run in a new process after each next sample
            self._auto_update_scoring = False
        except UserError as error:
            logger.error("%s", error)
            raise as_exit(error) from error

    # ---- the datastore

    def init_datastore(self) -> CandorDatastore:
        return self._init_dicomweb_datastore() if self.options.pacs else self._open()

    def _init_dicomweb_datastore(self) -> CandorDatastore:
        return self._open()

    def _download_dcmqi_tools(self) -> None:
        """Nothing is downloaded: labels here are no DICOM SEG."""

    def _open(self) -> CandorDatastore:
        cohort = open_studies(self.options, self._access())
        logger.info("%d images in %s", len(cohort), self.options.studies)
        pacs = {"url": self.options.studies, **self._access()} if self.options.pacs else None
        return CandorDatastore(self.options.studies, cohort, self.desk, pacs)

    def _access(self) -> dict[str, Any]:
        """User and password of the PACS as MONAI Label's settings have them."""
        for kind in ("DICOMWEB", "DATASTORE"):
            if user := getattr(settings, f"MONAI_LABEL_{kind}_USERNAME"):
                return {"user": user, "password_env": f"MONAI_LABEL_{kind}_PASSWORD"}
        return {}

    # ---- what is offered

    def init_infers(self) -> dict[str, InferTask]:
        findings, k = self.options.run.findings or (), self.options.run.measure.k
        return {INFER: NeighbourInfer(findings, k, self._explain)}

    def init_strategies(self) -> dict[str, Strategy]:
        return {name: RankedStrategy(name, self.desk) for name in STRATEGIES}

    def init_scoring_methods(self) -> dict[str, ScoringMethod]:
        return {SCORING: MarginScoring(self._score), REREADS: RereadDraw(self.desk)}

    def on_init_complete(self) -> None:
        """The server is up: take over what is stored, and look out for what other processes score."""
        super().on_init_complete()
        try:
            if imported := import_labels(self._datastore.cohort, self.desk.store):
                logger.info("labels of %d images taken over from the cohort's table", imported)
            self._take_over(self._datastore.cohort)
        except UserError as error:
            logger.error("%s", error)
            raise as_exit(error) from error
        tell_mistakes()
        threading.Thread(target=self._look, name="candor-scores", daemon=True).start()

    # ---- requests

    def infer(self, request: dict[str, Any], datastore: Any = None) -> dict[str, Any]:
        """Answer about an image of the datastore; anything else, uploads and sessions included, is not found (404)."""
        task = self._infers.get(request.get("model"))
        if task is None:
            raise not_found(f"there is no model {request.get('model')!r}; there is {', '.join(self._infers)}")
        image_id = self._datastore.known(request.get("image"))
        if not self._datastore.there(image_id):
            raise not_found(f"the file of image {image_id!r} is gone")
        try:
            _, answer = task({**request, "image": image_id, "image_id": image_id})
        except UserError as error:
            raise refused(error) from error
        return {"label": None, "tag": DefaultLabelTag.ORIGINAL, "file": None, "params": answer}

    def infer_wsi(self, request: dict[str, Any], datastore: Any = None) -> dict[str, Any]:
        raise not_found("there is no inference on whole slides here; use /infer")

    def next_sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """The next image of a strategy, or nothing where it has none left."""
        name = request.get("strategy") or "random"
        strategy = self._strategies.get(name)
        if strategy is None:
            raise not_found(f"there is no strategy {name!r}; there are {', '.join(self._strategies)}")
        sample: dict[str, Any] = strategy(request, self._datastore)
        if sample:
            sample["path"] = self._datastore.path_told(sample["id"])
        return sample

    def on_save_label(self, image_id: str, label_id: str) -> dict[str, Any]:
        """What saving did: how the image came to be read, and how many images changed with it."""
        saved = self._datastore.last_saved(image_id)
        if saved is None:
            return {}
        current = saved.label.current
        affected = {finding: len(images) for finding, images in saved.affected.items()}
        return {
            "findings": dict(current.findings),
            "selected_by": current.selected_by,
            "affected": affected,
            "seconds": round(saved.seconds, 4),
        }

    # ---- features and margins

    def _explain(self, image_id: str) -> dict[str, Any]:
        if not self.desk.has_feature(image_id):
            images = self._datastore.images
            self.desk.set_feature(image_id, self.encoding.feature(images.cohort, images.row(image_id)))
        return self.desk.explain(image_id)

    def _score(self) -> dict[str, Any]:
        """The scoring method: list the images anew, encode, compute, write."""
        began = time.perf_counter()
        cohort = open_studies(self.options, self._access())
        encoded = self.encoding.encode(cohort)
        present = self._take_over(cohort)
        rejected = self.encoding.rejected(cohort)
        for row in rejected:
            logger.warning("%s: %s (%s)", row["image_id"], row["message"], row["reason"])
        return {
            "images": len(cohort),
            "encoded": encoded,
            "with_feature": present,
            "rejected": rejected[:100],
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _take_over(self, cohort: Cohort) -> int:
        """Give the desk these images with the features that the store has; how many have one."""
        with self._taking:
            features, present, clusters = self.encoding.stored(cohort)
            images = LabelImages.of_cohort(cohort.with_clusters(clusters), self._key)
            if present.any():
                self.desk.set_images(images, features, present, self.encoding.heads, logger.info)
            else:
                self.desk.set_images(images)
            self._datastore.use(cohort)
            self._seen = self._signature()
            return int(present.sum())

    def _signature(self) -> Any:
        return signature(self.options.state_dir / "scores.arrow")

    def _look(self) -> None:
        """Take over what a scoring method did in a process of its own."""
        pause = LOOK_SECONDS
        while True:
            time.sleep(pause)
            pause = self._looked(pause)

    def _looked(self, pause: float) -> float:
        """Look once; seconds until the next time, ever more where the new scores cannot be taken over: each try lists
        the images anew, and asks a PACS for all of them."""
        if self._signature() in (None, self._seen):
            return LOOK_SECONDS
        try:
            self._take_over(open_studies(self.options, self._access()))
        except UserError as error:
            logger.error("the new scores cannot be taken over yet: %s", error)
        except Exception:
            logger.exception("the new scores cannot be taken over yet")
        else:
            return LOOK_SECONDS
        return min(2 * pause, LONGEST_PAUSE)
