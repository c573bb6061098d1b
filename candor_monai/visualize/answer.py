"""The answer at the top of the report: which encoder separates the findings best, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .estimates import Estimate, findings_of, rows_of, shown_rows
from .report_facts import cohorts_of, made_for_it, untrained
from .verdicts import is_ranked, reference, verdict
from .wording import interval, listed, many, number, probability

CANNOT = "cannot be told"


@dataclass(frozen=True)
class TaskAnswer:
    """The answer for one task.

    Args:
        task: its name.
        headline: the answer in one sentence.
        sentences: what it rests on and what limits it.
    """

    task: str
    headline: str
    sentences: tuple[str, ...]


def answer(results: Mapping[str, Any]) -> list[TaskAnswer]:
    """The answer for every task of the results, in the order in which the tasks first occur."""
    return [task_answer(results, task) for task in tasks_of(results)]


def across_tasks(results: Mapping[str, Any]) -> str:
    """Which encoder has the lowest D on how many of several tasks, in one sentence; empty for one task or encoder."""
    tasks, name = tasks_of(results), titles(results)
    if len(tasks) < 2 or len(name) < 2:
        return ""
    lowest: dict[str, int] = {}
    for task in tasks:
        ranked = [row for row in summary_rows(results, task) if is_ranked(row)]
        if ranked:
            best = name[min(ranked, key=lambda row: row["D"])["encoder"]]
            lowest[best] = lowest.get(best, 0) + 1
    if not lowest:
        return ""
    order = sorted(lowest.items(), key=lambda item: -item[1])
    told = "; ".join(f"{title} on {found}" for title, found in order[:4])
    rest = f"; {len(order) - 4} more" if len(order) > 4 else ""
    return f"The lowest D of the {len(tasks)} tasks: {told}{rest}. How sure that is, is told for each."


def tasks_of(results: Mapping[str, Any]) -> list[str]:
    """Names of the tasks, in the order in which they first occur."""
    return list(dict.fromkeys(row["task"] for row in results["discordance"]))


def titles(results: Mapping[str, Any]) -> dict[str, str]:
    """Readable name of each encoder."""
    return {card["name"]: card.get("title") or card["name"] for card in results["encoders"]}


def summary_rows(results: Mapping[str, Any], task: str) -> list[Mapping[str, Any]]:
    """The one row of each encoder that stands for the task: its pooled level, or its only finding."""
    level = "finding" if len(findings_of(results, task)) == 1 else "task"
    return rows_of(results, task, level)


def task_answer(results: Mapping[str, Any], task: str) -> TaskAnswer:
    """The answer for one task."""
    name = titles(results)
    rows = summary_rows(results, task)
    findings = findings_of(results, task)
    what = findings[0] if len(findings) == 1 else f"the {len(findings)} findings of task {task}"
    ranked = sorted((row for row in rows if is_ranked(row)), key=lambda row: row["D"])
    if not ranked:
        headline, told = _no_number(results, task, rows, what)
        return TaskAnswer(task, headline, (*told, *confounded(results, task)))
    out = [name[row["encoder"]] for row in rows if not is_ranked(row)]
    if len(ranked) == 1:
        headline, sentences = _alone(ranked[0], name[ranked[0]["encoder"]], what)
    else:
        headline, sentences = _ranked(results, task, ranked, name, what)
    if out:
        sentences.append(
            f"{listed(out)} {'has' if len(out) == 1 else 'have'} no place in this ranking (see below why)."
        )
    told = (*sentences, *_by_finding(results, task, ranked[0], name), *confounded(results, task))
    return TaskAnswer(task, headline, told)


def _value(row: Mapping[str, Any]) -> str:
    """D with the interval that may be quoted."""
    if row.get("D_total_lo") is not None and row.get("D_total_hi") is not None:
        return f"D = {number(row['D'])}, 95 % interval {interval(row['D_total_lo'], row['D_total_hi'])}"
    if row.get("D_lo") is not None and row.get("D_hi") is not None:
        shown = interval(row["D_lo"], row["D_hi"])
        return f"D = {number(row['D'])}, conditional 95 % interval {shown}, which is too narrow to rest a claim on"
    return f"D = {number(row['D'])}, no interval"


def _against_chance(row: Mapping[str, Any], title: str, what: str) -> str:
    """One sentence on one row against chance."""
    says = verdict(row)
    chance = reference(row) if reference(row) is not None else row.get("chance")
    value = f"{_value(row)}; chance {number(chance)}"
    if says.code == "better":
        return f"{title} separates {what} better than chance ({value})."
    if says.code == "worse":
        return (
            f"{title} places {what} on the wrong side more often than chance would ({value}): "
            "look for a confounder or swapped labels."
        )
    if says.code == "unclear":
        return f"Whether {title} separates {what} better than chance {CANNOT} from these data ({value})."
    return f"Whether {title} separates {what} better than chance {CANNOT} from this run ({value}): {says.why}."


def _alone(row: Mapping[str, Any], title: str, what: str) -> tuple[str, list[str]]:
    return _against_chance(row, title, what), []


def _ranked(
    results: Mapping[str, Any], task: str, ranked: Sequence[Mapping[str, Any]], name: Mapping[str, str], what: str
) -> tuple[str, list[str]]:
    best, second = ranked[0], ranked[1]
    title = name[best["encoder"]]
    equals, how = not_worse(results, task, ranked)
    says = verdict(best)
    sentences = []
    if equals is None:
        headline = (
            f"{title} has the lowest D for {what} (D = {number(best['D'])}), but whether it really is the best of the "
            f"{len(ranked)} encoders {CANNOT} from this run: {how}."
        )
        sentences.append(_against_chance(best, title, what))
    elif says.code in ("better", "worse"):
        if equals:
            headline = (
                f"{title} has the lowest D for {what} ({_value(best)}), but whether it is really better than "
                f"{listed((name[e] for e in equals), 3)} {CANNOT} from these data."
            )
        else:
            headline = f"{title} separates {what} best of {len(ranked)} encoders ({_value(best)})."
            sentences.append(f"No other encoder is as good, at 95 % confidence {how}.")
        chance = number(reference(best))
        sentences.append(
            f"That is better than chance ({chance})."
            if says.code == "better"
            else f"But it is worse than chance ({chance}): look for a confounder or swapped labels."
        )
    else:
        headline = (
            f"Which encoder separates {what} best {CANNOT}: not even the lowest D is shown to differ from chance."
        )
        sentences.append(_against_chance(best, title, what))
    if not equals:
        sentences.append(f"Next: {name[second['encoder']]}, D = {number(second['D'])}.")
    sentences += _p_best(results, task, best, len(ranked)) + _untrained(results, ranked, name)
    return headline, sentences


def not_worse(
    results: Mapping[str, Any], task: str, ranked: Sequence[Mapping[str, Any]]
) -> tuple[list[str] | None, str]:
    """Encoders that may be as good as the one ranked first, and how that is known.

    Args:
        results: the results.
        task: the task.
        ranked: its rows, best first.

    Returns:
        names of the encoders other than the first that are not shown to be worse, or None when the run cannot tell;
        and the ground as a phrase.
    """
    members = {encoder: row.get("not_worse_than_best") for encoder, row in ranking_rows(results, task).items()}
    if all(members.get(row["encoder"]) is not None for row in ranked):
        return [row["encoder"] for row in ranked[1:] if members[row["encoder"]]], "over all comparisons at once"
    if all(row.get("D_total_lo") is not None and row.get("D_total_hi") is not None for row in ranked):
        overlapping = [row["encoder"] for row in ranked[1:] if row["D_total_lo"] <= ranked[0]["D_total_hi"]]
        return overlapping, "(their intervals do not overlap)"
    return None, "it has neither total intervals nor paired comparisons"


def ranking_rows(results: Mapping[str, Any], task: str) -> dict[str, Mapping[str, Any]]:
    """Encoder -> its row of the ranking that stands for the task: pooled, or of the task's only finding."""
    findings = findings_of(results, task)
    wanted = findings[0] if len(findings) == 1 else None
    found: dict[str, Mapping[str, Any]] = {}
    for row in results.get("ranking") or ():
        if row["task"] == task and (not row.get("finding") or row["finding"] == wanted):
            found[row["encoder"]] = row
    return found


def _p_best(results: Mapping[str, Any], task: str, best: Mapping[str, Any], encoders: int) -> list[str]:
    p = ranking_rows(results, task).get(best["encoder"], {}).get("p_best")
    if p is None:
        return []
    shown = f"below {probability(p)[2:]}" if p < 0.001 else probability(p)
    return [f"The best of {encoders} encoders that know nothing would reach a D this low with probability {shown}."]


def _untrained(results: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]], name: Mapping[str, str]) -> list[str]:
    cards = {card["name"]: card for card in results["encoders"] if untrained(card)}
    rows = [row for row in ranked[1:] if row["encoder"] in cards]
    rows.sort(key=lambda row: made_for_it(cards[row["encoder"]]))
    return [f"For comparison, the untrained {name[row['encoder']]} has D = {number(row['D'])}." for row in rows[:1]]


def confounded(results: Mapping[str, Any], task: str) -> list[str]:
    """A warning when an encoder that was never trained separates findings: then something coarse goes with them.

    On the calibration cohort there is none: its encoders were made for its findings.
    """
    if all(cohort["name"] == "calibration" for cohort in cohorts_of(results)):
        return []
    names = {card["name"] for card in results["encoders"] if untrained(card) and not made_for_it(card)}
    found: dict[str, list[str]] = {}
    for estimate, rows in shown_rows(results, task):
        for row in rows:
            if row["encoder"] in names and verdict(row).code == "better":
                found.setdefault(row["encoder"], []).append(estimate.label)
    name = titles(results)
    return [
        f"Mind that {name[encoder]}, which was never trained, is better than chance for {listed(labels, 4)}: something "
        "coarse in the images (brightness, framing, equipment) goes with it, and every encoder gets credit for that."
        for encoder, labels in found.items()
    ]


def _by_finding(results: Mapping[str, Any], task: str, best: Mapping[str, Any], name: Mapping[str, str]) -> list[str]:
    """How the encoder ranked first does finding by finding."""
    rows = [row for row in rows_of(results, task, "finding") if row["encoder"] == best["encoder"]]
    if best["level"] != "task" or len(rows) < 2:
        return []
    return [f"Finding by finding, {name[best['encoder']]} is {_tally([(Estimate(r['finding']), r) for r in rows])}."]


def _tally(rows: Sequence[tuple[Estimate, Mapping[str, Any]]]) -> str:
    by_code: dict[str, list[str]] = {}
    for estimate, row in rows:
        by_code.setdefault(verdict(row).code, []).append(estimate.label)
    phrases = {
        "better": "better than chance for {}",
        "worse": "worse than chance for {}",
        "unclear": "not to be told from chance for {}",
        "untested": "not tested against chance for {}",
        "small": "not testable (too few) for {}",
        "tied": "tied for {}",
        "insufficient": "not estimable for {}",
    }
    return "; ".join(text.format(listed(by_code[code], 5)) for code, text in phrases.items() if code in by_code)


def _one_by_finding(title: str, pairs: Sequence[tuple[Estimate, Mapping[str, Any]]]) -> str:
    """One encoder, finding by finding."""
    known = [(row["D"], estimate.label, verdict(row).code) for estimate, row in pairs if is_ranked(row)]
    if not known or {code for _, _, code in known} - {"untested", "small"}:
        return f"{title} is {_tally(pairs)}."
    (low, first, _), (high, last, _) = min(known), max(known)
    one = f"{number(low)} ({first})"
    span = one if len(known) == 1 else f"from {one} to {number(high)} ({last})"
    missing = [estimate.label for estimate, row in pairs if row.get("D") is None]
    rest = f"; not estimable for {listed(missing)}" if missing else ""
    return f"{title} has D {span}; whether that is better than chance {CANNOT} from this run{rest}."


def _no_number(
    results: Mapping[str, Any], task: str, rows: Sequence[Mapping[str, Any]], what: str
) -> tuple[str, tuple[str, ...]]:
    """When no encoder has a number for the task."""
    name = titles(results)
    reasons = list(dict.fromkeys(verdict(row).why for row in rows))
    why = f"No single number is given for {what}: {reasons[0] if reasons else 'the run has no row for the whole task'}."
    shown = shown_rows(results, task)
    encoders = list(dict.fromkeys(row["encoder"] for _, part in shown for row in part))
    if len(encoders) == 1:
        pairs = [(estimate, row) for estimate, part in shown for row in part]
        return _one_by_finding(name[encoders[0]], pairs), (why,)
    lowest: dict[str, list[str]] = {}
    for estimate, part in shown:
        found = [row for row in part if is_ranked(row)]
        if found:
            lowest.setdefault(name[min(found, key=lambda row: row["D"])["encoder"]], []).append(estimate.label)
    if not lowest:
        return f"No finding of task {task} can be estimated for any of {many(len(encoders), 'encoder')}.", (why,)
    every = "every finding that can be estimated"
    told = "; ".join(f"{title} for {listed(found, 4) if len(lowest) > 1 else every}" for title, found in lowest.items())
    return (
        f"Which encoder separates {what} best {CANNOT} by one number.",
        (why, f"Finding by finding, the lowest D has: {told}.", "Which of these differences are real is told below."),
    )
