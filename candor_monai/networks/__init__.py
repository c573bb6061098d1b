"""Frozen encoders: cards, weights, processors, feature points."""

from candor_monai.utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "EncoderCard": "cards",
        "EncoderProcessor": "processors",
        "FrozenEncoder": "encoders",
        "ProcessorCard": "cards",
        "list_cards": "cards",
        "load_card": "cards",
        "load_encoder": "encoders",
    },
)
