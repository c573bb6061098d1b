"""What puts the other packages together: the parts of a run, checks, the calibration experiment."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "RunOptions": "options",
        "check_run": "workflow",
        "doctor": "doctor",
        "encode_loader": "opening",
        "export_features": "opening",
        "open_cohort": "opening",
        "open_context": "opening",
        "open_encoder": "opening",
        "open_key": "opening",
        "open_pool": "opening",
        "output_folder": "opening",
        "report_again": "opening",
        "run_engine": "opening",
        "run_options": "options",
        "stored_features": "opening",
    },
)
