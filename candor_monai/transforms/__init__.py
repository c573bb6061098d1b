"""Dictionary transforms: radiographs as displayed, the canonical image, occlusion."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "CanonicalImage": "canonical",
        "CanonicalImaged": "canonical",
        "LoadRadiograph": "radiograph",
        "LoadRadiographd": "radiograph",
        "OccludeBox": "occlusion",
        "OccludeBoxd": "occlusion",
    },
)
