"""MONAI's MLflow handler for an evaluation: each a run of its own, with intervals, tables, figures and report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from monai.handlers import MLFlowHandler

from ..utils.errors import UserError
from ..visualize.figures import write_figures
from ..visualize.paper_tables import write_paper_tables
from .interval_metrics import interval_metrics

if TYPE_CHECKING:
    from ignite.engine import Engine


class MlflowResults(MLFlowHandler):
    """Log an evaluation to MLflow: numbers with their intervals, what was run, and what came out.

    Metrics are those of ``engine.state.metrics`` and, beside ``D/<finding>``, ``D_lo/<finding>``, ``D_hi/<finding>``
    and so on (:func:`~candor_monai.handlers.interval_metrics.interval_metrics`): the same keys in every run, so that
    MLflow's comparison of runs lines them up. Artifacts are the files named, and ``figures/`` and ``tables/``, drawn
    for it. Unlike MONAI's own handler it never goes on with a run that another process left open.

    Attach it after :class:`~candor_monai.handlers.results_saver.ResultsSaver` and the report.

    Args:
        tracking_uri: ``http://…`` of a server, or ``sqlite:///…``.
        experiment_name: of the experiment.
        run_name: of the run; None: the time.
        experiment_param: parameters of the run.
        artifacts: files, and folders that keep their name; those that are not there are passed over.
        more: further arguments of MONAI's handler.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str = "candor_eval",
        run_name: str | None = None,
        experiment_param: Mapping[str, Any] | None = None,
        artifacts: Sequence[str | Path] = (),
        **more: Any,
    ) -> None:
        super().__init__(
            tracking_uri=tracking_uri,
            experiment_name=experiment_name,
            run_name=run_name,
            experiment_param=dict(experiment_param or {}),
            artifacts=[Path(path) for path in artifacts],
            iteration_log=False,
            close_on_complete=True,
            **more,
        )
        self.results: Mapping[str, Any] | None = None

    def start(self, engine: Engine) -> None:
        """Open a new run and log its parameters.

        Raises:
            UserError: the server cannot be reached or refuses.
        """
        self._open()

    def log_files(self) -> None:
        """Log parameters and artifacts as a finished run, without an engine.

        Raises:
            UserError: the server cannot be reached or refuses.
        """
        self._open()
        try:
            self._log_artifacts()
        finally:
            self.close()

    def _open(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._set_experiment()
            assert self.experiment is not None
            name = self.run_name or time.strftime("run_%Y%m%d_%H%M%S")
            self.cur_run = self.client.create_run(self.experiment.experiment_id, run_name=name)
        except MlflowException as error:
            raise UserError(f"MLflow at {self.client.tracking_uri}: {str(error).splitlines()[0]}") from error
        self._log_params({key: value for key, value in self.experiment_param.items() if value is not None})

    def epoch_completed(self, engine: Engine) -> None:
        """Log the metrics and the ends of their intervals."""
        state: Any = engine.state
        self.results = state.results
        self._log_metrics({**state.metrics, **interval_metrics(state.results)})

    def complete(self) -> None:
        """Log the files, figures and tables."""
        if self.cur_run is None or self.results is None:
            return
        self._log_artifacts()
        with TemporaryDirectory() as folder:
            write_figures(Path(folder) / "figures", self.results)
            write_paper_tables(Path(folder) / "tables", self.results)
            self.client.log_artifacts(self.cur_run.info.run_id, folder)

    def _log_artifacts(self) -> None:
        assert self.cur_run is not None
        run = self.cur_run.info.run_id
        for path in map(Path, self.artifacts):
            if path.is_file():
                self.client.log_artifact(run, str(path))
            elif path.is_dir():
                self.client.log_artifacts(run, str(path), path.name)
