"""Ignite handlers that attach to MONAI engines."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "CandorHandler": "candor",
        "FeatureSaver": "feature_saver",
        "MlflowResults": "mlflow_results",
        "ProbeHandler": "probe",
        "ProgressHandler": "progress",
        "ReportHandler": "report",
        "ResultsSaver": "results_saver",
        "RetentionHandler": "retention",
        "RunContext": "run_context",
        "StageTimes": "stage_times",
        "SummaryHandler": "summary",
        "TensorBoardHandler": "tensorboard",
    },
)
