"""The command that shows a plan of cohorts before a run: plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cpfl import experiment_file, opening
from cpfl.cli.options import AsJson, DataFolder, ExperimentName, Settings, console, notes, show_json, whole_numbers
from cpfl.cohorts import CohortPlan, told
from cpfl.data.federated import Given
from cpfl.errors import SettingError
from cpfl.plan_view import PlanView, look
from cpfl.planning import plan_cohorts
from cpfl.problem import Problem
from cpfl.runs import files


def add_to(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command()(plan)


def plan(
    experiment: ExperimentName,
    settings: Settings = None,
    cohorts: Annotated[str, typer.Option(help="Several n to compare, such as 1,4,16; else the experiment's.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="A picture (.svg, .png, .pdf, .html), or the plan itself (.csv).")
    ] = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show who would train with whom: sizes, samples, label skew, hours a round, and what the plan reveals.

    Example: cpfl plan digits --set cohorting.plan=label-balanced --out plan.svg
    """
    from cpfl.report import plan_figure  # drawing takes half a second to import

    if out is not None:
        plan_figure.check_name(out)
    chosen = experiment_file.load(experiment, settings or [])
    numbers = whole_numbers(cohorts, "--cohorts") if cohorts else [chosen.cohorts]
    if len(set(numbers)) < len(numbers):
        raise SettingError(f"--cohorts {cohorts} names a number twice")
    if out is not None and out.suffix == ".csv" and len(numbers) > 1:
        raise SettingError(f"--out {out} holds one plan: give one number with --cohorts, not {len(numbers)}")
    wanted = [experiment_file.with_settings(chosen, {"cohorts": n}) for n in numbers]
    first = opening.prepare_named(wanted[0], data, None, Given(), _note)
    problems = [
        first,
        *(replace(first, experiment=one, plan=_plan(replace(first, experiment=one))) for one in wanted[1:]),
    ]
    views = [look(problem) for problem in problems]
    if out is not None and out.suffix == ".csv":
        files.write_atomic(out, told.to_csv(first.plan).encode())
    elif out is not None:
        names = opening.class_names(first, data) or list(map(str, range(first.data.classes)))
        title = f"{chosen.name}: {chosen.clients} clients, plan {chosen.cohorting.plan}"
        with files.explained(out):
            plan_figure.save(plan_figure.picture([view.as_dict() for view in views], title, names), out)
    if as_json:
        show_json({"name": chosen.name, "seed": chosen.seed, "plans": [view.as_dict() for view in views]})
        return
    console.print(_cohorts(views[0]) if len(views) == 1 else _numbers(views))
    for line in [*(_sentences(views[0]) if len(views) == 1 else []), views[0].reveals]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if out is not None:
        console.print(f"written: {out}", highlight=False, soft_wrap=True, markup=False)


def _plan(problem: Problem) -> CohortPlan:
    return plan_cohorts(problem.experiment, problem.data, problem.fleet, problem.model_bytes)


def _cohorts(view: PlanView) -> Table:
    table = Table(title=f"plan {view.plan}, n = {view.cohorts}", title_justify="left")
    for name in ("cohort", "clients", "samples", "label skew", "hours a round", "slowest client", "with it, hours"):
        table.add_column(name, justify="right")
    for row in view.by_cohort:
        hours = (f"{row.hours_per_round:.4f}", str(row.slowest), f"{row.slowest_hours:.4f}")
        table.add_row(str(row.cohort), f"{row.clients:,}", f"{row.samples:,}", f"{row.skew:.3f}", *hours)
    return table


def _numbers(views: list[PlanView]) -> Table:
    table = Table(title=f"plan {views[0].plan}", title_justify="left")
    for name in (
        "n",
        "clients",
        "samples",
        "mean skew",
        "worst skew",
        "hours a round, mean",
        "longest",
        "slowest client",
    ):
        table.add_column(name, justify="right")
    for view in views:
        rows = view.by_cohort
        table.add_row(
            str(view.cohorts),
            _range([row.clients for row in rows]),
            _range([row.samples for row in rows]),
            f"{view.skew:.3f}",
            f"{view.skew_worst:.3f}",
            f"{view.hours_per_round:.4f}",
            f"{view.hours_per_round_longest:.4f}",
            str(max(rows, key=lambda row: row.slowest_hours).slowest),
        )
    return table


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _sentences(view: PlanView) -> list[str]:
    return [
        f"label skew: {view.skew:.3f} on average, {view.skew_worst:.3f} at worst: the share of a cohort's samples that "
        "would need another label for it to mirror the whole",
        f"a round: {view.hours_per_round:.4f} hours on average over the cohorts, {view.hours_per_round_longest:.4f} in "
        "the slowest, if participants are drawn at random",
    ]


def _note(text: str) -> None:
    notes.print(text, highlight=False, soft_wrap=True, markup=False)
