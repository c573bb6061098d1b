"""What puts the other packages together: the parts of a run, checks, the calibration experiment."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "HeadStudy": "head_study",
        "HeadStudyOptions": "head_study",
        "RunOptions": "options",
        "check_run": "workflow",
        "run_doctor": "doctor",
        "encode_loader": "opening",
        "export_features": "opening",
        "head_study": "head_study",
        "open_cohort": "opening",
        "open_context": "opening",
        "open_encoder": "opening",
        "open_key": "opening",
        "open_pool": "opening",
        "output_folder": "opening",
        "report_again": "opening",
        "run_engine": "opening",
        "run_options": "options",
        "scored_observations": "opening",
        "scored_options": "opening",
        "stored_features": "opening",
    },
)
