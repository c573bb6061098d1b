"""What the neighbours of an image mean, in a sentence or two."""

from __future__ import annotations

from .margins import Near

_SAID = {1: "Labelled present", 0: "Labelled absent", -1: "Not labelled"}


def near_words(finding: str, near: Near, label: int, k: int, probability: float | None) -> str:
    """Words for one finding of one image.

    Args:
        finding: its name.
        near: the neighbours.
        label: 1, 0 or -1.
        k: neighbours a side.
        probability: of the linear head, or None.
    """
    head = "" if probability is None else f" The linear head gives {probability:.2f}."
    if near.dm is None or near.c_pos is None or near.c_neg is None:
        shown = len(near.positives) + len(near.negatives)
        what = f" The {shown} nearest labelled images are shown." if shown else ""
        return f"{finding}: {_SAID[label].lower()}. No margin can be given: {near.reason}.{what}{head}"
    closer = "positives" if near.dm < 0 else "negatives"
    means = (
        f"mean similarity {near.c_pos:.3f} to its {k} nearest positives, {near.c_neg:.3f} to its {k} nearest negatives"
    )
    mixed = _mixed(near, k)
    if near.dm == 0:
        return (
            f"{finding}: {_SAID[label].lower()}. Positives and negatives are equally close ({means}): the features do "
            f"not tell them apart here.{mixed}{head}"
        )
    if label < 0:
        return f"{finding}: not labelled. Labelled {closer} are closer ({means}).{mixed}{head}"
    if (label == 1) == (closer == "positives"):
        return (
            f"{finding}: {_SAID[label].lower()}, and labelled {closer} are closer ({means}): concordant.{mixed}{head}"
        )
    return (
        f"{finding}: {_SAID[label].lower()}, but labelled {closer} are closer ({means}): discordant. The label may be "
        f"wrong, or the encoder does not see the finding in this image; the measure cannot tell which.{mixed}{head}"
    )


def _mixed(near: Near, k: int) -> str:
    if near.impurity is None:
        return ""
    if near.impurity == 0:
        return f" Its {k} nearest images agree."
    return f" Its {k} nearest images are mixed (impurity {near.impurity:.2f})."


NO_FEATURE = "There is no feature of this image yet, so its neighbours are not known."
NOT_SCORED = "The features are not loaded yet: run the scoring method first."
RESEARCH = "Research use only: neighbours in a feature space, not a diagnosis."
