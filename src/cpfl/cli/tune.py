"""The command tune."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpfl.cli import options
from cpfl.errors import SettingError

if TYPE_CHECKING:
    from cpfl.tuning import TuneResult

COSTS = (("hours", "hours"), ("cpu_hours", "CPU hours"), ("traffic_gb", "traffic GB"))


def tune(
    experiment: options.ExperimentName,
    hours: Annotated[float | None, typer.Option(help="Limit: virtual hours.")] = None,
    cpu_hours: Annotated[float | None, typer.Option(help="Limit: CPU hours of all clients.")] = None,
    traffic: Annotated[str | None, typer.Option(help="Limit: traffic, such as 50GB.")] = None,
    accuracy: Annotated[float | None, typer.Option(help="Per cent to reach, with the least of --minimise.")] = None,
    minimise: Annotated[
        str | None,
        typer.Option(**options.one_of("cpu", "hours", "traffic"), help="With --accuracy: what to save. Default: cpu."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs of the search, references included.")] = 40,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B… or KEY=LOW..HIGH[:log]", help="Search a setting over these; may be repeated."),
    ] = None,
    space: Annotated[Path | None, options.PathOption(help="A TOML file with the tables [search] and [fixed].")] = None,
    settings: options.Settings = None,
    seeds: Annotated[int, typer.Option(min=0, help="Fresh seeds for the test at the end.")] = 3,
    points: Annotated[int, typer.Option(min=1, help="Evaluations of a trial.")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="Trials that train at the same time.")] = 6,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop trials that are behind everywhere.")] = True,
    out: Annotated[
        Path | None, options.PathOption("--out", "-o", help="The tune's folder. Default: a new one in runs/.")
    ] = None,
    data: options.DataFolder = None,
    engine: options.EngineName = "auto",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    jobs: options.Jobs = 1,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Find settings for a fleet: split or not, into how many, who with whom, meet how often, wait for whom.

    cpfl resume DIR continues a tune that was interrupted, as does the same command again.

    Example: cpfl tune digits --hours 1 --trials 12; cpfl tune digits --accuracy 60 --minimise cpu
    """
    import cpfl
    from cpfl.settings import experiment_file
    from cpfl.tuning.space import read_space
    from cpfl.tuning.view import TuneView

    searched, fixed = read_space(space) if space is not None else ({}, {})
    searched |= _searched(search or [])
    with TuneView(options.progress_console(as_json, quiet)) as view:
        found = cpfl.tune(
            experiment,
            hours=hours,
            cpu_hours=cpu_hours,
            traffic=traffic,
            accuracy=accuracy,
            minimise=minimise,
            trials=trials,
            search=searched,
            settings={**fixed, **experiment_file.parse_assignments(settings or [])},
            out=out,
            seeds=seeds,
            points=points,
            batch=batch,
            prune=prune,
            jobs=jobs,
            callback=view,
            **options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, None),
        )
    _result(found, as_json)


def resume_tune(path: Path, jobs: int, as_json: bool, quiet: bool, arguments: Mapping[str, Any]) -> None:
    """Continue the tune in a folder."""
    from cpfl.tuning import resume
    from cpfl.tuning.view import TuneView

    with TuneView(options.progress_console(as_json, quiet)) as view:
        found = resume(path, jobs, view, **arguments)
    _result(found, as_json)


def _result(found: TuneResult, as_json: bool) -> None:
    if as_json:
        options.show_json(found.tree)
    else:
        _show(found.tree, found.path)


def _searched(pairs: list[str]) -> dict[str, str]:
    """KEY=VALUES as the library takes it."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, sign, text = (part.strip() for part in pair.partition("="))
        if not (sign and key and text):
            raise SettingError(f"--search takes KEY=A,B or KEY=LOW..HIGH, such as cohorts=1,2,4, not {pair!r}")
        if key in found:
            raise SettingError(f"--search {key} is given twice: put all its values after one, with commas")
        found[key] = text
    return found


def _show(tree: dict[str, Any], folder: Path) -> None:
    """The finalists, what settings are worth, the test, and what to do."""
    trials = {trial["number"]: trial for trial in tree["trials"]}
    metric, heads = tree["metric"], tuple(head for _, head in COSTS)
    rows = []
    for one in tree["finalists"]:
        trial, score = trials[one["trial"]], one["accuracy"]
        name = trial["reference"] or trial["text"]
        costs = (f"{one['point'][key]:.3g}" for key, _ in COSTS)
        rows.append((name, one["result"], "failed" if score is None else f"{score:.1f}", *costs))
    if rows:
        options.show_table(rows, ("finalist", "final model"), (f"validation {metric} %", *heads), "finalists")
    tests = [
        (one["who"], f"{one['mean']:.1f} ± {one['std']:.1f}", *(f"{one[key]:.3g}" for key, _ in COSTS))
        for one in tree["tests"]
        if one["mean"] is not None
    ]
    if tests:
        count = len(tree["tests"][0]["seeds"])
        options.show_table(tests, ("",), (f"test {metric} %", *heads), f"fresh seeds: mean ± deviation of {count}")
    shares = [f"{one['key']} {100 * one['share']:.0f} %" for one in tree["importances"][:5]]
    if shares:
        options.say(f"what settings are worth: {', '.join(shares)}")
    states = [trial["state"] for trial in trials.values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    options.say(f"trials: {counts}\n\n{tree['paragraph']}\n")
    if tree["recommendation"]:
        options.say(f"recommended: cpfl run {folder / tree['recommendation']['file']}")
