"""Adapters from a dataset as its publisher ships it to a cohort, one module an adapter."""

from ...utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "CohortCard": "cards",
        "list_cohorts": "cards",
        "load_card": "cards",
        "load_cohort": "loading",
        "register_adapter": "registry",
    },
)
