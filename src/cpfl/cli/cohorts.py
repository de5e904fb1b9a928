"""The command that shows an assignment of clients to cohorts before a run: cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cpfl.cli import options
from cpfl.errors import SettingError

if TYPE_CHECKING:
    from cpfl.task.overview import AssignmentView


def cohorts(
    experiment: options.ExperimentName,
    settings: options.Settings = None,
    numbers: Annotated[
        str, typer.Option("--cohorts", help="Values of n to compare, such as 1,4,16. Default: the experiment's.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write a picture (.svg, .png, .pdf, .html), or the assignment (.csv).")
    ] = None,
    data: options.DataFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which clients would form cohorts: sizes, samples, label skew, hours a round, what the server learns.

    Example: cpfl cohorts digits --set assignment.rule=label-balanced --out cohorts.svg
    """
    from cpfl.cohorts import predefined
    from cpfl.data.federated import Given
    from cpfl.report import assignment_figure
    from cpfl.runs import files
    from cpfl.settings import experiment_file
    from cpfl.task import loading
    from cpfl.task.assignment import assign_cohorts
    from cpfl.task.overview import look

    if out is not None:
        assignment_figure.check_name(out)
    base = experiment_file.load(experiment, settings or [])
    values = options.whole_numbers(numbers, "--cohorts") if numbers else [base.cohorts]
    if len(set(values)) < len(values):
        raise SettingError(f"--cohorts {numbers} names a number twice")
    if out is not None and out.suffix == ".csv" and len(values) > 1:
        raise SettingError(f"--out {out} holds one assignment: give one number with --cohorts, not {len(values)}")
    experiments = [experiment_file.with_settings(base, {"cohorts": n}) for n in values]
    first = loading.load_task(experiments[0], data, None, Given(), options.notify)
    others = [
        replace(first, experiment=one, cohorts=assign_cohorts(one, first.data, first.fleet, first.model_bytes))
        for one in experiments[1:]
    ]
    views = [look(task) for task in (first, *others)]
    if out is not None and out.suffix == ".csv":
        files.write_atomic(out, predefined.to_csv(first.cohorts).encode())
    elif out is not None:
        names = loading.class_names(first, data) or list(map(str, range(first.data.classes)))
        title = f"{base.name}: {base.clients} clients, assignment {base.assignment.rule}"
        with files.explained(out):
            assignment_figure.save(assignment_figure.picture([view.as_dict() for view in views], title, names), out)
    if as_json:
        options.show_json({"name": base.name, "seed": base.seed, "assignments": [view.as_dict() for view in views]})
        return
    options.console.print(_one_n(views[0]) if len(views) == 1 else _several_n(views))
    for line in [*(_explanation(views[0]) if len(views) == 1 else []), views[0].reveals]:
        options.say(line)
    if out is not None:
        options.say(f"written: {out}")


def _one_n(view: AssignmentView) -> Table:
    heads = ("cohort", "clients", "samples", "label skew", "hours a round", "slowest client", "with it, hours")
    table = _table(f"assignment {view.rule}, n = {view.cohorts}", heads)
    for row in view.by_cohort:
        hours = (f"{row.hours_per_round:.4f}", str(row.slowest), f"{row.slowest_hours:.4f}")
        table.add_row(str(row.cohort), f"{row.clients:,}", f"{row.samples:,}", f"{row.skew:.3f}", *hours)
    return table


def _several_n(views: list[AssignmentView]) -> Table:
    heads = ("n", "clients", "samples", "mean skew", "worst skew", "hours a round, mean", "longest", "slowest client")
    table = _table(f"assignment {views[0].rule}", heads)
    for view in views:
        table.add_row(
            str(view.cohorts),
            _range([row.clients for row in view.by_cohort]),
            _range([row.samples for row in view.by_cohort]),
            f"{view.skew:.3f}",
            f"{view.skew_worst:.3f}",
            f"{view.hours_per_round:.4f}",
            f"{view.hours_per_round_longest:.4f}",
            str(max(view.by_cohort, key=lambda row: row.slowest_hours).slowest),
        )
    return table


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _explanation(view: AssignmentView) -> list[str]:
    return [
        f"label skew: {view.skew:.3f} on average, {view.skew_worst:.3f} at worst: the share of a cohort's samples that "
        "would need another label to match the label distribution of all clients",
        f"a round: {view.hours_per_round:.4f} hours on average over the cohorts, {view.hours_per_round_longest:.4f} in "
        "the slowest, if participants are drawn at random",
    ]
