"""Labelling with the measure: labels, margins of each image, what to read next, and the way back into an evaluation.

What a MONAI Label app serves; nothing here but that app's own modules imports monailabel.
"""

from ...utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "LabelDesk": "desk",
        "LabelImages": "images",
        "LabelStore": "labels",
        "SELECTED_BY": "labels",
        "STRATEGIES": "desk",
        "Served": "served",
        "read_submission": "labels",
    },
)
