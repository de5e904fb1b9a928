"""The whole report as one plain tree, which becomes a page, files, or an answer over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cpfl.errors import CpflError
from cpfl.report import cohort_figures, figures, points, tables
from cpfl.report.advice import LOSS, Advice, advise
from cpfl.report.groups import Group, group
from cpfl.report.reading import RunFacts, read_all, shown

Tree = dict[str, Any]
DIAMONDS = " Hollow diamonds are the paper's figures."
OTHER = " What is set otherwise than there stands under the table."


class _Measure(NamedTuple):
    """A picture against n: each line's key in the summaries, and the name of its published figure."""

    name: str
    title: str
    axis: str
    caption: str
    keys: dict[str, tuple[str, str]]


AGAINST = (
    _Measure(
        "accuracy",
        "Accuracy against n",
        "test accuracy, %",
        "The global model's accuracy, and dashed the mean of its teachers.",
        {"student": ("student_accuracy", "student"), "teachers": ("teacher_accuracy_mean", "teachers")},
    ),
    _Measure(
        "hours",
        "Hours against n",
        "virtual hours to convergence",
        "Time until the last cohort stopped.",
        {"student": ("hours", "hours")},
    ),
    _Measure(
        "cpu-hours",
        "CPU hours against n",
        "CPU hours",
        "Training time of all clients together.",
        {"student": ("cpu_hours", "cpu_hours")},
    ),
    _Measure(
        "traffic",
        "Traffic against n",
        "GB sent",
        "Models sent down and up in all rounds, and the cohort models at the end.",
        {"student": ("comm_gb", "comm_gb")},
    ),
)


def content(paths: Iterable[Path], loss: float = LOSS) -> Tree:
    """Everything that a report says about the runs in these folders."""
    return content_of(*_sound(paths), loss)


def content_of(runs: Iterable[RunFacts], damaged: Sequence[tuple[str, str]], loss: float = LOSS) -> Tree:
    """The same about runs that somebody has read already."""
    groups = group(runs)
    advices = {one.id: advise(one.rows, loss) for one in groups}
    several = len(groups) > 1
    return {
        "title": groups[0].label if len(groups) == 1 else f"{len(groups)} experiments" if groups else "no readable run",
        "loss": loss,
        "notes": _notes(groups, damaged),
        "together": _against(groups, "all") if several else [],
        "groups": [_group(one, advices[one.id], several) for one in groups],
        "damaged": [{"path": path, "reason": reason} for path, reason in damaged],
    }


def all_figures(tree: Tree) -> list[Tree]:
    """Every picture of the report that could be drawn."""
    live = tree.get("live", {}).get("figures", [])
    found = [*live, *tree["together"], *(f for g in tree["groups"] for s in g["sections"] for f in s["figures"])]
    return [one for one in found if "spec" in one]


def _sound(paths: Iterable[Path]) -> tuple[list[RunFacts], list[tuple[str, str]]]:
    """Runs whose every file that is drawn can be read."""
    runs, damaged = read_all(paths)
    while True:
        drawn = [run for one in group(runs) for run in points.first_seeds(one)]
        bad = [(run, shown(str(error))) for run in drawn if (error := _error(run)) is not None]
        if not bad:
            return runs, damaged
        damaged += [(run.name, reason) for run, reason in bad]
        runs = [run for run in runs if all(run is not other for other, _ in bad)]


def _error(run: RunFacts) -> CpflError | None:
    try:
        _ = run.trails, run.judged
    except CpflError as error:
        return error
    return None


def _notes(groups: Sequence[Group], damaged: Sequence[Any]) -> list[str]:
    notes = []
    if len(groups) > 1:
        notes.append(
            f"These folders hold {len(groups)} different experiments; each is reported apart, "
            "and only runs that differ in nothing but n and seed are averaged."
        )
    runs = [run for one in groups for run in one.runs]
    unfinished = sum(run.summary is None for run in runs)
    if unfinished:
        notes.append(f"{_are(unfinished, 'run')} unfinished and in no mean; the list of runs says how far they are.")
    if damaged:
        notes.append(f"{_are(len(damaged), 'folder')} damaged and left out; the last section names what is wrong.")
    again = sum(len({(run.n, run.experiment.seed) for run in one.runs}) < len(one.runs) for one in groups)
    if again:
        notes.append("Some n was run more than once with the same seed; every run is counted.")
    return notes


def _are(count: int, what: str) -> str:
    return f"{count} {what}{' is' if count == 1 else 's are'}"


def _group(one: Group, advice: Advice, several: bool) -> Tree:
    rows, prefix = one.rows, f"{one.id}-" if several else ""
    trade = [_trade_off(one, advice, prefix)] if rows else []
    sections = [
        ("trade-off", "The trade-off", trade),
        ("against-n", "Against n", [] if several else _against([one], prefix)),
        ("cohorts", "Inside the cohorts", _cohorts(one, advice, prefix)),
        ("earlier", "Stopping earlier", _earlier(one, prefix) if rows else []),
    ]
    return {
        "id": one.id,
        "label": one.label,
        "n": advice.n,
        "sentence": advice.sentence,
        "reasons": advice.reasons,
        "table": tables.cells(rows, one.published.get("by_n", [])) if rows else None,
        "source": one.published.get("source", ""),
        "remarks": one.published.get("remarks", []),
        "differences": one.differences,
        "sections": [{"id": f"{one.id}-{key}", "title": title, "figures": f} for key, title, f in sections if f],
        "runs": [_run(run) for run in sorted(one.runs, key=lambda run: (run.n, run.experiment.seed, run.name))],
    }


def _run(run: RunFacts) -> Tree:
    last = max((cohort.hours for cohort in run.cohorts), default=0.0)
    summary = run.summary or {}
    return {
        "path": run.name,
        "n": run.n,
        "seed": run.experiment.seed,
        "state": run.state,
        "finished": run.summary is not None,
        "rounds": f"{sum(cohort.rounds for cohort in run.cohorts):,}",
        "hours": f"{summary.get('hours', last):,.2f}",
        "accuracy": f"{summary['student_accuracy']:.2f}" if summary else "–",
    }


def figure(name: str, title: str, caption: str, spec: Tree) -> Tree:
    """A picture with its words."""
    return {"id": name, "title": title, "caption": caption, "spec": spec}


def _trade_off(one: Group, advice: Advice, prefix: str) -> Tree:
    published = one.published.get("by_n", [])
    title = f"{one.label}: what n costs and gains"
    spec = figures.trade_off(one.summaries, title, published, advice.n)
    caption = (
        "Accuracy against hours: up and left is better, a larger dot costs more CPU hours, "
        "and the dashed line joins the n that no other beats."
    )
    diamonds = _diamonds([one], bool(figures.with_hours(published)))
    return figure(f"{prefix}trade-off", title, caption + diamonds, spec)


def _against(groups: Sequence[Group], prefix: str) -> list[Tree]:
    series = {one.label: one.rows for one in groups if one.rows}
    published = {one.label: one.published.get("by_n", []) for one in groups}
    start = "all-" if prefix == "all" else prefix
    made = []
    for name, title, axis, caption, keys in AGAINST if series else ():
        spec = figures.against_n(series, published, keys, title, axis)
        drawn = any(printed in row for rows in published.values() for row in rows for _, printed in keys.values())
        said = f"{caption} Mean and standard deviation over seeds.{_diamonds(groups, drawn)}"
        made.append(figure(f"{start}{name}-against-n", title, said, spec))
    return made


def _diamonds(groups: Sequence[Group], drawn: bool) -> str:
    return (DIAMONDS + OTHER * any(one.differences for one in groups)) if drawn else ""


def _cohorts(one: Group, advice: Advice, prefix: str) -> list[Tree]:
    numbers = one.numbers
    split = [n for n in numbers if n > 1]
    chosen = next((n for n in (4, advice.n) if n in split), split[0] if split else numbers[0])
    seed = f"seed {one.of(chosen)[0].experiment.seed}"
    made = []
    rows: points.Rows
    if rows := points.losses(one):
        plain = "; the dashed line is the run that was not partitioned" if 1 in numbers and split else ""
        caption = f"Every cohort's validation loss ({seed}), a dot where it stopped{plain}."
        title = "Validation loss per cohort"
        made.append(
            figure(f"{prefix}validation-loss", title, caption, cohort_figures.losses(rows, numbers, chosen, title))
        )
    if rows := points.waits(one):
        caption = (
            f"One bar for every cohort ({seed}), earliest stop first; orange is the time in which its average client "
            "had done its part of the round and waited for the slowest."
        )
        title = "Timeline of the cohorts"
        made.append(figure(f"{prefix}timeline", title, caption, cohort_figures.timeline(rows, numbers, chosen, title)))
    if rows := points.judged(one):
        public = one.runs[0].experiment.stopping.judge == "public"
        axis = "agreement on public samples, %" if public else "right on validation samples, %"
        caption = (
            "What all cohorts' models, joined, were worth each time they were judged (one seed of every n); a diamond "
            "where the rule stopped them. The axis is logarithmic: the rule asks what twice the CPU hours would gain."
        )
        title = "What the cohorts are worth together"
        made.append(figure(f"{prefix}judged", title, caption, cohort_figures.judged(rows, numbers, title, axis)))
    if rows := points.finishes(one):
        caption = "The share of cohorts that had stopped by an hour, all seeds; the diamond is the last one."
        title = "Finish times of the cohorts"
        made.append(figure(f"{prefix}finish-times", title, caption, cohort_figures.finish_times(rows, numbers, title)))
    if rows := points.sizes(one):
        caption = "What a cohort holds against how long it trains; a dot for every cohort and seed."
        title = "Samples in a cohort against its hours"
        made.append(figure(f"{prefix}samples", title, caption, cohort_figures.sizes(rows, numbers, title)))
    return made


def _earlier(one: Group, prefix: str) -> list[Tree]:
    numbers, published = one.numbers, one.published.get("at", [])
    quorums, budgets = points.quorums(one), points.budgets(one)
    studied = any(student.at is not None for run in one.runs for student in run.students)
    draw: list[tuple[str, str, bool, str, Callable[[str], Tree]]] = [
        ("quorum-accuracy", "Accuracy by quorum", len({row["quorum"] for row in quorums}) > 1,
         "The student's accuracy if one distils when only a part of the cohorts has stopped.",
         lambda title: figures.quorum(quorums, numbers, "accuracy", title, "accuracy, %")),
        ("quorum-hours", "Hours by quorum", len({row["quorum"] for row in quorums}) > 1,
         "How long that takes: the last cohorts are often slow.",
         lambda title: figures.quorum(quorums, numbers, "hours", title, "virtual hours")),
        ("time-budget", "Accuracy against the time budget", studied,
         f"The student's accuracy if one distils what there is after so many hours.{_diamonds([one], bool(published))}",
         lambda title: figures.budget(budgets, numbers, published, title)),
    ]  # fmt: skip
    kept = any(run.experiment.snapshots for run in one.runs)
    missing = (
        "Not drawn yet: cpfl report DIR --study makes the distillations that it needs."
        if kept
        else "Not drawn: these runs kept no snapshots; run them with --set snapshots=5h, then cpfl report DIR --study."
    )
    if max(numbers) == 1:
        draw = draw[2:]  # a single cohort has no quorum
    return [
        figure(f"{prefix}{name}", title, caption, make(title))
        if there
        else {"id": f"{prefix}{name}", "title": title, "caption": caption, "missing": missing}
        for name, title, there, caption, make in draw
    ]
