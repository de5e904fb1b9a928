"""The command sweep, and what it shares with resuming a sweep."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpfl.cli import options
from cpfl.errors import CpflError, SweepError, failure, printable

if TYPE_CHECKING:
    from cpfl.settings import Experiment
    from cpfl.sweeps import SweepGrid


def sweep(
    experiment: options.ExperimentName,
    cohorts: Annotated[
        str | None, typer.Option("--cohorts", "-n", help="Values of n: 1,2,4,8. Default: the experiment's.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 90,91,92. Default: the experiment's.")] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,VALUE…", help="Values of any other setting; may be repeated."),
    ] = None,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, options.PathOption("--out", "-o", help="The folder of all runs. Default: a new one in runs/.")
    ] = None,
    data: options.DataFolder = None,
    engine: options.EngineName = "auto",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    jobs: options.Jobs = 1,
    track: options.Track = None,
    download: options.Download = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Run an experiment over n, seeds and other settings, and show what n costs and gains.

    The same command again, or cpfl resume DIR, skips finished runs and resumes interrupted ones.

    Example: cpfl sweep digits --cohorts 1,2,4,8 --over data.alpha=0.1,1 --jobs 2
    """
    from cpfl.settings import experiment_file

    numbers = None if cohorts is None else options.whole_numbers(cohorts, "--cohorts")
    all_seeds = None if seeds is None else options.whole_numbers(seeds, "--seeds")
    others = options.values(over or [], "--over")
    given = experiment_file.parse_assignments(settings or [])
    several = {key: some for key, some in {"cohorts": numbers, "seed": all_seeds, **others}.items() if some}
    base = experiment_file.varied_base(experiment, given, several)
    texts = {"n": cohorts, "seed": seeds} | dict(pair.partition("=")[::2] for pair in over or [])
    varied = ", ".join(f"{key} = {value}" for key, value in texts.items() if value)
    options.at_once(f"{base.name}: a sweep over {varied}")

    from cpfl.sweeps import default_folder

    folder = out or default_folder(base)
    arguments = options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, track)
    arguments |= {"out": folder, "cohorts": numbers, "seeds": all_seeds, "over": others}
    arguments["settings"] = given  # kept with another recipe or server
    arguments["download"] = options.may_download(download)
    run_sweep(base, folder, jobs, as_json, quiet, arguments)


def run_sweep(
    experiment: Experiment | Path, folder: Path, jobs: int, as_json: bool, quiet: bool, arguments: Mapping[str, Any]
) -> None:
    """Run a sweep, then show its tables and pictures. Failed runs are listed last, with exit code 1."""
    import cpfl
    from cpfl.reports import tables
    from cpfl.reports.advice import advise_runs
    from cpfl.sweeps.view import SweepView

    with SweepView(options.progress_console(as_json, quiet)) as view:
        try:
            runs = cpfl.sweep(experiment, jobs=jobs, callback=view, **arguments)
        except SweepError as error:
            runs = error.runs
    assert view.grid is not None
    all_rows: list[dict[str, Any]] = []
    groups: dict[str, list[dict[str, Any]]] = {}  # by the settings other than n and the seed
    for run in runs:
        varied = view.grid.varied(run.path.name)
        all_rows.append({**run.summary, "path": str(run.path)} | ({"settings": varied} if varied else {}))
        groups.setdefault(", ".join(f"{key} = {value}" for key, value in varied.items()), []).append(all_rows[-1])
    advices = advise_runs([run.path for run in runs])
    if as_json:
        by_cohorts = [
            row | {key: rows[0][key] for key in rows[0].keys() & {"settings"}}
            for rows in groups.values()
            for row in tables.by_cohorts(rows)
        ]
        failed = [{"path": path, "error": failure(reason)} for path, reason in view.failures]
        found = {"runs": all_rows, "by_cohorts": by_cohorts, "failed": failed, "path": folder}
        options.show_json(found | {"advice": [advice.tree() for advice in advices]})
    else:
        for group, rows in groups.items():
            table = tables.trade_off(rows, options.console.width)
            table.title = printable(f"{table.title}, {group}") if group else table.title
            options.console.print(table)
    pictures = []
    try:
        pictures = _draw(view.grid, groups, folder)
    except CpflError as error:  # without what draws, or without space, the runs are there all the same
        options.notify(f"no picture: {error}")
    if not as_json:
        options.say("\n".join([f"runs:    {folder}", *(f"picture: {picture}" for picture in pictures)]))
        for advice in advices:
            options.say((f"{advice.comparison.label}: " if len(advices) > 1 else "") + advice.text())
    if view.failures:
        for path, reason in view.failures:
            if not isinstance(reason, CpflError):  # a bug: the whole traceback
                options.notify("".join(traceback.format_exception(reason)))
            options.notify(f"cpfl: {path.name}: {failure(reason)}")
        raise typer.Exit(1)


def _draw(grid: SweepGrid, groups: Mapping[str, list[dict[str, Any]]], folder: Path) -> list[Path]:
    """A picture for each combination of other settings than n and the seed."""
    from cpfl.reports import figures, style
    from cpfl.sweeps.grid import folder_name

    pictures = []
    for group, rows in groups.items():
        title = f"{grid.base.name}: what n costs and gains" + (f", {group}" if group else "")
        # folder_name keeps it safe, whatever the values are
        label = folder_name({"cohorts": 0, "seed": 0, **rows[0].get("settings", {})}).removeprefix("n000-seed0")
        pictures.append(style.save(figures.trade_off(rows) | {"title": title}, folder / f"trade-off{label}.png"))
    return pictures
