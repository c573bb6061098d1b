"""Frozen encoders: cards, weights, processors, feature points."""

from candor_monai.utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Backbone": "backbones",
        "CheckResult": "checks",
        "EncoderCard": "cards",
        "EncoderProcessor": "processors",
        "FrozenEncoder": "encoders",
        "HeadOptions": "linear_heads",
        "HeadedEncoder": "heads",
        "LinearHeads": "heads",
        "Probe": "probing",
        "ProbeOptions": "probing",
        "ProcessorCard": "cards",
        "bundled_classifier": "classifier_export",
        "bundled_encoder": "bundle_export",
        "check_encoder": "checks",
        "check_golden": "golden",
        "convert_weights": "convert",
        "encoder_table": "table",
        "export_classifier_bundle": "classifier_export",
        "export_encoder_bundle": "bundle_export",
        "format_table": "table",
        "list_cards": "cards",
        "load_card": "cards",
        "load_encoder": "encoders",
        "load_heads": "head_files",
        "read_head_card": "head_files",
        "record_golden": "golden",
        "run_probe": "probing",
        "save_heads": "head_files",
        "train_linear_heads": "linear_heads",
    },
)
