"""The sweep command, and going on with a sweep."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import cpfl
from cpfl import experiment_file
from cpfl.cli.options import (
    Address,
    AsJson,
    DataFolder,
    Device,
    EngineName,
    ExperimentName,
    GpuShare,
    Jobs,
    NodeData,
    Settings,
    Track,
    Workers,
    console,
    notes,
    show_json,
    values,
    whole_numbers,
)
from cpfl.engines.ray import Place
from cpfl.errors import CpflError, SweepError
from cpfl.experiment import Experiment
from cpfl.report import tables
from cpfl.sweep import default_folder
from cpfl.sweep.plan import Plan, folder_name
from cpfl.terminal import SweepView
from cpfl.terminal.sweep_view import sentence


def sweep(
    experiment: ExperimentName,
    cohorts: Annotated[str | None, typer.Option(help="Values of n, such as 1,2,4,8; else the experiment's.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 90,91,92; else the experiment's.")] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,VALUE…", help="Values of any other setting; may be repeated."),
    ] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; else a new one in runs/.")] = None,
    data: DataFolder = None,
    engine: EngineName = "auto",
    device: Device = "auto",
    workers: Workers = 0,
    address: Address = "",
    gpu_share: GpuShare = 1.0,
    node_data: NodeData = "",
    jobs: Jobs = 1,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment over n, seeds and other settings, and show what n costs and gains.

    What is finished is not done again, what was interrupted is resumed: the same command again, or cpfl resume DIR.

    Example: cpfl sweep digits --cohorts 1,2,4,8 --over data.alpha=0.1,1 --jobs 2
    """
    base = experiment_file.load(experiment, settings or [])
    numbers = None if cohorts is None else whole_numbers(cohorts, "--cohorts")
    chosen_seeds = None if seeds is None else whole_numbers(seeds, "--seeds")
    where = out or default_folder(base)
    words = {"cohorts": numbers, "seeds": chosen_seeds, "over": values(over or [], "--over"), "out": where}
    given = experiment_file.parse_assignments(settings or [])  # a combination that takes another recipe keeps it
    place = Place(address, gpu_share, device, node_data)
    common = {"data": data, "engine": engine, "device": device, "workers": workers, "track": track or []}
    go(base, where, jobs, as_json, {**words, **common, "settings": given, "cluster": place})


def go(experiment: Experiment | Path, where: Path, jobs: int, as_json: bool, words: Mapping[str, Any]) -> None:
    """Do the sweep, then show its table and picture; failed runs are told last, with exit code 1."""
    with SweepView(notes if as_json else console) as view:
        try:
            runs = cpfl.sweep(experiment, jobs=jobs, watcher=view, **words)
        except SweepError as error:
            runs = error.runs
    assert view.plan is not None
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(_group(view.plan, run.path.name), []).append(run.summary)
    if as_json:
        show_json(_tree(runs, view, where))
    elif runs:
        for group, summaries in groups.items():
            table = tables.trade_off(summaries, console.width)
            table.title = f"{table.title}, {group}" if group else table.title
            console.print(table)
    pictures = _draw(view.plan, groups, where)
    if not as_json:
        lines = [f"runs:    {where}", *(f"picture: {picture}" for picture in pictures)]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    if view.failures:
        for path, failure in view.failures:
            if not isinstance(failure, CpflError):  # ours to mend: the whole story
                notes.print("".join(traceback.format_exception(failure)), highlight=False, markup=False, soft_wrap=True)
            notes.print(f"cpfl: {path.name}: {sentence(failure)}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _group(plan: Plan, name: str) -> str:
    return ", ".join(f"{key} = {value}" for key, value in plan.varied(name).items())


def _tree(runs: list[cpfl.Run], view: SweepView, where: Path) -> dict[str, Any]:
    assert view.plan is not None
    rows, by_group = [], dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]()
    for run in runs:
        settings = view.plan.varied(run.path.name)
        row = {**run.summary, "path": str(run.path)} | ({"settings": settings} if settings else {})
        rows.append(row)
        by_group.setdefault(_group(view.plan, run.path.name), (settings, []))[1].append(row)
    return {
        "runs": rows,
        "by_cohorts": [
            {**row, **({"settings": settings} if settings else {})}
            for settings, group in by_group.values()
            for row in tables.by_cohorts(group)
        ],
        "failed": [{"path": str(path), "error": sentence(error)} for path, error in view.failures],
        "path": str(where),
    }


def _draw(plan: Plan, groups: Mapping[str, list[dict[str, Any]]], where: Path) -> list[Path]:
    """A picture for each combination of other settings than n and the seed."""
    from cpfl.report import figures  # takes half a second that other commands need not pay

    pictures = []
    for group, summaries in groups.items():
        title = f"{plan.base.name}: what n costs and gains" + (f", {group}" if group else "")
        name = next(plan.varied(name) for name in plan.runs if _group(plan, name) == group)
        # folder_name keeps it safe, whatever the values are
        label = folder_name({"cohorts": 0, "seed": 0, **name}).removeprefix("n000-seed0")
        pictures.append(figures.save(figures.trade_off(summaries, title), where / f"trade-off{label}.png"))
    return pictures
