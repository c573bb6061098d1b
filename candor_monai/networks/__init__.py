"""Frozen encoders: cards, weights, processors, feature points."""

from candor_monai.utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "EncoderCard": "cards",
        "EncoderProcessor": "processors",
        "FrozenEncoder": "encoders",
        "HeadOptions": "linear_heads",
        "HeadedEncoder": "heads",
        "LinearHeads": "heads",
        "Probe": "probing",
        "ProbeOptions": "probing",
        "ProcessorCard": "cards",
        "list_cards": "cards",
        "load_card": "cards",
        "load_encoder": "encoders",
        "load_heads": "head_files",
        "read_head_card": "head_files",
        "run_probe": "probing",
        "save_heads": "head_files",
        "train_linear_heads": "linear_heads",
    },
)
