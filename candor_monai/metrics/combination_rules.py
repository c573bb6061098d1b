"""Rules that combine the heads of several encoders into one decision an image, and the oracle that bounds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from .auroc_tests import auroc
from .logistic_regression import fit_logistic
from .operating_point import SENSITIVITY, decide, operating_point

RULES = (
    "single head",
    "chosen on validation",
    "majority vote",
    "mean probability",
    "stacked logistic regression",
    "OR",
)
ORACLE = "oracle"


@dataclass(frozen=True)
class RuleDecisions:
    """Decisions of every rule for one finding.

    Args:
        positive: rule -> share of the rule's decisions that call the image positive, shape (N,), float64: 0 or 1,
            but for ``single head`` the mean over the heads taken one at a time.
        reasons: rule -> why it has no decision.
        chosen: index of the head with the best validation AUROC, or None.
    """

    positive: dict[str, np.ndarray]
    reasons: dict[str, str]
    chosen: int | None


def combine(
    validation: np.ndarray,
    validation_labels: np.ndarray,
    validation_fold: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    sensitivity: float = SENSITIVITY,
) -> RuleDecisions:
    """Decisions of the six rules and the oracle on test images, for one finding.

    - *single head*: each head at its own validation operating point, averaged over the heads.
    - *chosen on validation*: the head with the largest validation AUROC (a tie: the first), at its operating point.
    - *majority vote*: positive when more than half of the heads are.
    - *mean probability*: mean of the heads' probabilities, at its validation operating point.
    - *stacked logistic regression*: on the heads' standardised logits, ridge penalty 1. The threshold comes from
      predictions for validation images by a model fitted to the other folds; the model applied to test images is fitted
      to all of them.
    - *OR*: positive when any head is.
    - *oracle*: knows the label and picks a right head: a positive is missed only when every head misses it, a negative
      is a false positive only when every head is wrong.

    Args:
        validation: logits of E heads, shape (E, V).
        validation_labels: shape (V,): 1, 0 or -1 (left out).
        validation_fold: patient-disjoint folds, shape (V,), int.
        test: logits, shape (E, N).
        test_labels: shape (N,): 1, 0 or -1; only the oracle looks at them.
        sensitivity: of every operating point.

    Raises:
        ValueError: shapes do not fit.
    """
    if validation.ndim != 2 or test.ndim != 2 or len(validation) != len(test) or len(test) == 0:
        raise ValueError(f"validation {validation.shape} and test {test.shape} must be logits of the same heads")
    kept = validation_labels >= 0
    validation, labels, fold = validation[:, kept], validation_labels[kept], validation_fold[kept]
    points = [operating_point(row, labels, sensitivity) for row in validation]
    if points[0].threshold is None:
        return RuleDecisions({}, dict.fromkeys((*RULES, ORACLE), str(points[0].reason)), None)
    votes = np.stack([decide(row, float(p.threshold or 0.0)) for row, p in zip(test, points, strict=True)])
    share = votes.mean(axis=0)
    positive = {
        "single head": share,
        "majority vote": (share > 0.5).astype(np.float64),
        "OR": votes.any(axis=0).astype(np.float64),
        ORACLE: np.where(test_labels == 1, votes.any(axis=0), votes.all(axis=0)).astype(np.float64),
    }
    mean = operating_point(expit(validation).mean(axis=0), labels, sensitivity)
    positive["mean probability"] = decide(expit(test).mean(axis=0), float(mean.threshold or 0.0)).astype(np.float64)
    reasons: dict[str, str] = {}
    aurocs = [auroc(row, labels) for row in validation]
    chosen = None
    if any(value is None for value in aurocs):
        reasons["chosen on validation"] = "no negative among the validation images"
    else:
        chosen = int(np.argmax([value or 0.0 for value in aurocs]))
        positive["chosen on validation"] = votes[chosen].astype(np.float64)
    stacked = _stacked(validation, labels, fold, test, sensitivity)
    if isinstance(stacked, str):
        reasons["stacked logistic regression"] = stacked
    else:
        positive["stacked logistic regression"] = stacked
    return RuleDecisions(positive, reasons, chosen)


def _stacked(
    validation: np.ndarray, labels: np.ndarray, fold: np.ndarray, test: np.ndarray, sensitivity: float
) -> np.ndarray | str:
    target = labels == 1
    held_out = np.empty(len(labels))
    for f in np.unique(fold):
        inside, outside = fold == f, fold != f
        if not target[outside].any() or target[outside].all():
            return "validation images outside one fold hold one class only"
        held_out[inside] = _fitted(validation[:, outside], target[outside], validation[:, inside])
    point = operating_point(held_out, labels, sensitivity)
    return decide(_fitted(validation, target, test), float(point.threshold or 0.0)).astype(np.float64)


def _fitted(logits: np.ndarray, target: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Decision values for new images of a model on logits in units of their spread: the penalty has no scale."""
    centre, spread = logits.mean(axis=1, keepdims=True), logits.std(axis=1, keepdims=True)
    spread = np.where(spread > 0, spread, 1.0)
    return fit_logistic(((logits - centre) / spread).T, target).decision(((new - centre) / spread).T)


def patient_sums(positive: np.ndarray, chosen: np.ndarray, codes: np.ndarray, patients: int) -> np.ndarray:
    """Sums by patient from which a rate over images and its resamples follow.

    Args:
        positive: share of decisions that call each image positive, shape (N,).
        chosen: the images that count, shape (N,), bool.
        codes: patient of each image, shape (N,), int64.
        patients: number of patients P.

    Returns:
        shape (2, P), float64: Σ positive and the number of chosen images.

    >>> patient_sums(np.array([1.0, 0.5, 0.0]), np.array([True, True, False]), np.array([0, 0, 1]), 2)
    array([[1.5, 0. ],
           [2. , 0. ]])
    """
    owner = codes[chosen]
    return np.stack([np.bincount(owner, positive[chosen], patients), np.bincount(owner, minlength=patients)])
