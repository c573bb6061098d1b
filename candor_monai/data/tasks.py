"""What is asked of a cohort: findings, their weights, matching covariates and the policy for unclear labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..utils import UserError, read_yaml, resource, unknown
from ..utils.typed import build

UNCERTAIN = ("exclude", "positive", "negative")
BLANK = ("negative", "exclude")
POOLING = ("weighted_mean", "mean")


@dataclass(frozen=True)
class Task:
    """A set of binary findings asked of the images of one cohort.

    Args:
        name: short name, as in the results.
        findings: names of the findings, in the order of the label columns.
        weights: finding -> weight in the pooled rate; a finding not named weighs 1.
        match_on: covariates whose values define a matched group; empty puts all images into one group.
        pooling: ``"weighted_mean"`` or ``"mean"`` over the findings.
        uncertain: what an uncertain label becomes: ``"exclude"``, ``"positive"`` or ``"negative"``.
        blank: what a blank in a label table becomes: ``"negative"`` ("not mentioned") or ``"exclude"``.
        title: the task in words.

    Raises:
        UserError: a value is not one of those named, a finding is named twice, or a weight is not positive.

    >>> Task("pair", ("Edema", "Pneumothorax"), {"Pneumothorax": 3.0}).weight("Edema")
    1.0
    """

    name: str
    findings: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    match_on: tuple[str, ...] = ()
    pooling: str = "mean"
    uncertain: str = "exclude"
    blank: str = "negative"
    title: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a task needs a name.")
        for key, known in (("pooling", POOLING), ("uncertain", UNCERTAIN), ("blank", BLANK)):
            if getattr(self, key) not in known:
                raise unknown(f"value of {key} in task {self.name!r}:", str(getattr(self, key)), known)
        repeated = sorted({f for f in self.findings if self.findings.count(f) > 1})
        if repeated:
            raise UserError(f"task {self.name!r} names finding {repeated[0]!r} twice.")
        for finding, weight in self.weights.items():
            if finding not in self.findings:
                raise unknown(f"finding among the weights of task {self.name!r}:", finding, self.findings)
            if not weight > 0:
                raise UserError(f"task {self.name!r}: the weight of {finding!r} must be positive, is {weight}.")

    def weight(self, finding: str) -> float:
        """Weight of a finding in the pooled rate."""
        return float(self.weights.get(finding, 1.0))

    def with_findings(self, findings: tuple[str, ...]) -> Task:
        """The same task asked of other findings; weights of findings that are gone are dropped."""
        return replace(self, findings=findings, weights={f: w for f, w in self.weights.items() if f in findings})


def list_tasks() -> list[str]:
    """Names of the shipped tasks.

    >>> "chest" in list_tasks()
    True
    """
    return sorted(path.stem for path in resource("configs", "tasks").glob("*.yaml"))


def load_task(task: str | Path | Mapping[str, Any] | Task) -> Task:
    """A task by name (configs/tasks), from a YAML file, or from a mapping of its fields.

    Raises:
        UserError: unknown name or key, or a value out of range.

    >>> load_task("chest").weight("Pneumothorax")
    3.0
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, Mapping):
        return _from_mapping(dict(task), "task")
    path = Path(task)
    if path.suffix not in (".yaml", ".yml"):
        if str(task) not in list_tasks():
            raise unknown("task", str(task), list_tasks())
        path = resource("configs", "tasks", f"{task}.yaml")
    return _from_mapping(read_yaml(path), str(path))


def _from_mapping(fields: dict[str, Any], where: str) -> Task:
    given = {key: value for key, value in fields.items() if value is not None}
    task: Task = build(Task, {"name": "task", **given}, where, lenient=True)
    return task
