"""Cohorts, readers and the feature store."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "ArrayStore": "array_store",
        "Cohort": "cohort",
        "DecodeOptions": "decoded_image",
        "DecodePool": "decode_pool",
        "DecodedImage": "decoded_image",
        "EncodeDataset": "encode_dataset",
        "EncodeLoader": "encode_loader",
        "EncodeRecords": "encode_loader",
        "FeatureStore": "feature_store",
        "ImageMeta": "decoded_image",
        "RadiographReader": "radiograph_reader",
        "Rejection": "store_rows",
        "RetentionViews": "retention_views",
        "Sources": "store_rows",
        "StoreDataset": "store_dataset",
        "StoreLoader": "store_dataset",
        "Task": "tasks",
        "canonical": "decoding",
        "decode": "decoding",
        "list_cohorts": "cohorts",
        "list_tasks": "tasks",
        "load_cohort": "cohorts",
        "load_task": "tasks",
        "prepare_store_batch": "store_dataset",
    },
)
