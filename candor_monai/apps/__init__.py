"""What puts the other packages together: the parts of a run, checks, the calibration experiment."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "HeadStudy": "head_study",
        "HeadStudyOptions": "head_study",
        "RunOptions": "options",
        "calibrate": "running",
        "check_names": "workflow",
        "check_run": "workflow",
        "run_doctor": "doctor",
        "encode_loader": "opening",
        "export_features": "running",
        "open_cohort": "opening",
        "open_context": "opening",
        "open_encoder": "opening",
        "open_key": "opening",
        "open_pool": "opening",
        "open_views": "opening",
        "output_folder": "opening",
        "prepare_data": "running",
        "probe_options": "opening",
        "publishers_split_of": "opening",
        "report_again": "running",
        "run_engine": "running",
        "run_head_study": "head_study",
        "run_options": "options",
        "run_study": "study",
        "scored_observations": "opening",
        "scored_options": "opening",
        "stored_features": "opening",
        "views_loader": "opening",
    },
)
