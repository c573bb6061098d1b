"""Cohorts, readers and the feature store."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Cohort": "cohort",
        "EncodeLoader": "encode_loader",
        "EncodeRecords": "encode_loader",
        "FeatureStore": "feature_store",
        "Rejection": "store_rows",
        "Sources": "store_rows",
        "StoreDataset": "store_dataset",
        "StoreLoader": "store_dataset",
        "Task": "tasks",
        "list_cohorts": "cohorts",
        "list_tasks": "tasks",
        "load_cohort": "cohorts",
        "load_task": "tasks",
    },
)
