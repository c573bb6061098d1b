"""MONAI inferers."""

from candor_monai.utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(__name__, {"EncoderInferer": "encoder_inferer"})
