"""Commands that show an experiment before it runs: presets, settings, cohorts."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from cpfl.cli import options
from cpfl.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpfl.task.overview import AssignmentView


def presets(data: options.DataFolder = None, as_json: options.AsJson = False) -> None:
    """List the experiments that come with the package, and whether their data sets are on this machine.

    Example: cpfl presets; cpfl run digits
    """
    from cpfl.data import sources
    from cpfl.data.catalogue import CATALOGUE
    from cpfl.settings import experiment_file

    roots, rows = sources.search_roots(data), list[dict[str, Any]]()
    for name in experiment_file.presets():
        chosen = experiment_file.load(name)
        sets = dict.fromkeys((chosen.data.train, chosen.data.public, chosen.devices.trace))
        found = [sources.describe(one, roots) for one in sets if one in CATALOGUE]
        missing = [entry.name for entry in found if entry.format == "missing"]
        facts = {"name": name, "what": experiment_file.description(name), "clients": chosen.clients}
        rows.append(facts | {"data": [entry.name for entry in found], "missing": missing})
    if as_json:
        options.show_json(rows)
        return
    cells = [(row["name"], row["what"], _data_text(row), f"{row['clients']:,}") for row in rows]
    options.show_table(cells, ("preset", "what it is", "data"), ("clients",))
    if any(row["missing"] for row in rows):
        options.say("cpfl data list says where a missing set comes from; cpfl data get NAME downloads one")


def _data_text(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} (missing)" if name in row["missing"] else name for name in row["data"])


def settings(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A setting, such as federation.server, or a section. Default: all.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema of all settings.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print them as a page in Markdown.")] = False,
) -> None:
    """List all settings of an experiment, or explain one of them or one section.

    Example: cpfl settings; cpfl settings federation.server
    """
    from cpfl.settings import Experiment, describe

    found = describe.find(key) if key else describe.all_settings()
    if as_json:
        options.show_json(Experiment.model_json_schema())
    elif markdown:
        print(describe.page(), end="")
    elif key:
        options.say("\n\n".join(map(str, found)))
    else:
        for section, infos in groupby(found, lambda info: info.key.rpartition(".")[0]):
            head = Column("setting", no_wrap=True)
            table = Table(head, "default", "what it is", title=section or "experiment", title_justify="left")
            for info in infos:
                table.add_row(*map(Text, (info.key, describe.as_text(info.default), info.first_sentence)))
            options.console.print(table)


def cohorts(
    experiment: options.ExperimentName,
    settings: options.Settings = None,
    numbers: Annotated[
        str, typer.Option("--cohorts", "-n", help="Values of n to compare, such as 1,4,16. Default: the experiment's.")
    ] = "",
    out: Annotated[
        Path | None,
        options.PathOption("--out", "-o", help="Write a picture (.svg, .png, .pdf, .html), or the assignment (.csv)."),
    ] = None,
    data: options.DataFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which clients would form cohorts: sizes, samples, label skew, hours a round, what the server learns.

    Example: cpfl cohorts digits --set assignment.rule=label-balanced --out cohorts.svg
    """
    from cpfl.cohorts import predefined
    from cpfl.data.given import Given
    from cpfl.reports import assignment_figure, style
    from cpfl.runs import files
    from cpfl.settings import experiment_file
    from cpfl.task import loading
    from cpfl.task.overview import assignment_view
    from cpfl.task.population import assign_cohorts

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
    views = [assignment_view(task) for task in (first, *others)]
    if out is not None and out.suffix == ".csv":
        files.write_atomic(out, predefined.to_csv(first.cohorts).encode())
    elif out is not None:
        names = loading.class_names(first, data) or first.data.objective.column_names(first.data.classes)
        title = f"{base.name}: {base.clients} clients, assignment {base.assignment.rule}"
        with files.explained(out):
            style.save(assignment_figure.picture(list(map(asdict, views)), title, names), out)
    if as_json:
        options.show_json({"name": base.name, "seed": base.seed, "assignments": list(map(asdict, views))})
        return
    if len(views) == 1:
        _show_one(views[0])
    else:
        _compare(views)
    options.say(views[0].reveals)
    if out is not None:
        options.say(f"written: {out}")


def _show_one(view: AssignmentView) -> None:
    heads = ("cohort", "clients", "samples", "label skew", "hours a round", "slowest client", "with it, hours")
    rows = [
        (f"{row.cohort}", f"{row.clients:,}", f"{row.samples:,}", f"{row.skew:.3f}", f"{row.hours_per_round:.4f}",
         f"{row.slowest}", f"{row.slowest_hours:.4f}")
        for row in view.by_cohort
    ]  # fmt: skip
    options.show_table(rows, (), heads, f"assignment {view.rule}, n = {view.cohorts}")
    options.say(
        f"label skew: {view.skew:.3f} on average, {view.skew_worst:.3f} at worst: the share of a cohort's samples that "
        "would need another label to match the label distribution of all clients\n"
        f"a round: {view.hours_per_round:.4f} hours on average over the cohorts, {view.hours_per_round_longest:.4f} in "
        "the slowest, if participants are drawn at random"
    )


def _compare(views: list[AssignmentView]) -> None:
    heads = ("n", "clients", "samples", "mean skew", "worst skew", "hours a round, mean", "longest", "slowest client")
    rows = []
    for view in views:
        sizes = [_range([row.clients for row in view.by_cohort]), _range([row.samples for row in view.by_cohort])]
        hours = (f"{view.hours_per_round:.4f}", f"{view.hours_per_round_longest:.4f}")
        slowest = max(view.by_cohort, key=lambda row: row.slowest_hours).slowest
        rows.append((f"{view.cohorts}", *sizes, f"{view.skew:.3f}", f"{view.skew_worst:.3f}", *hours, f"{slowest}"))
    options.show_table(rows, (), heads, f"assignment {views[0].rule}")


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
