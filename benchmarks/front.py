"""A front: accuracy against virtual hours, CPU hours and traffic, for several ways to train one fleet.

    python benchmarks/front.py benchmarks/front/demo.toml --runs runs/demo

A TOML file names the experiment, the seeds, the virtual hours at which rows are compared, and the rows. A row has
settings, and in `tune` the values that are tried for some of them: at every hour the values with the highest mean
accuracy on the clients' validation samples are shown. Test samples choose nothing.

Every row is a sweep (`cpfl sweep`): finished runs are kept, interrupted ones are resumed, so the same command again
continues. Models of earlier hours come from snapshots. With `--out DIR` all values, the tables and a picture are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import cpfl
from cpfl import method
from cpfl.reports import style
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import reload_task
from cpfl.runs.teachers import select_teachers
from cpfl.task.loading import given_arrays

Row = dict[str, Any]
COSTS = {"cpu_hours": ("CPU hours", 1), "client_gb": ("client GB", 1), "global_gb": ("global GB", 2)}


def main() -> None:
    words = parsed()
    front = tomllib.loads(words.front.read_text(encoding="utf-8"))
    if unknown := set(words.rows or ()) - set(front["rows"]):
        raise SystemExit(f"--rows: {', '.join(sorted(unknown))} unknown; known: {', '.join(front['rows'])}")
    names = [name for name in front["rows"] if not words.rows or name in words.rows]
    measured = [value for name in names for value in measure(front, name, words)]
    chosen = best(measured)
    shown = front.get("show", front["hours"])
    parts = [table(chosen, hour) for hour in shown] + [verdict(chosen, hour) for hour in shown]
    text = "\n\n".join(part for part in parts if part)
    print(f"\n{text}")
    if words.out is not None:
        words.out.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(value) for value in measured]
        (words.out / "values.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (words.out / "tables.md").write_text(text + "\n", encoding="utf-8")
        style.save(picture(front, chosen), words.out / "front.png")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("front", type=Path, help="the TOML file")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of all run folders")
    parser.add_argument("--out", type=Path, help="the folder of values, tables and the picture")
    parser.add_argument("--rows", nargs="*", metavar="NAME", help="only these rows")
    parser.add_argument("--seeds", nargs="*", type=int, metavar="SEED", help="instead of the file's")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser.parse_args()


def measure(front: Row, name: str, words: argparse.Namespace) -> list[Row]:
    """Run a row's sweep, and measure every run at every hour."""
    row = front["rows"][name]
    tune = row.get("tune", {})
    first = {key: values[0] for key, values in tune.items()}  # a row may need one of them to be valid
    folder = words.runs / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    hours = front["hours"]
    common = {"stopping.rule": "budget", "stopping.max_hours": max(hours), "snapshots": f"{hours[0]:g}h"}
    runs = cpfl.sweep(
        front["experiment"],
        seeds=words.seeds or front["seeds"],
        over=tune,
        out=folder,
        jobs=words.jobs,
        settings={**common, **front.get("settings", {}), **row["settings"], **first},
        engine=words.engine,
        device=words.device,
        data=words.data,
    )
    print(f"{name}: {len(runs)} runs", flush=True)
    grid = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["runs"]
    found = []
    for run in runs:
        tuned = {key: value for key, value in grid[run.path.name].items() if key not in ("cohorts", "seed")}
        own = {"row": name, "tuned": tuned, "seed": run.summary["seed"], "cohorts": run.summary["cohorts"]}
        found += [own | value for value in over_time(run.path, hours, words)]
    return found


def over_time(path: Path, hours: Sequence[float], words: argparse.Namespace) -> list[Row]:
    """A run's global model at every hour: accuracy on test and validation samples, and what it had cost by then."""
    kept = path / "front.json"
    found: list[Row] = json.loads(kept.read_text(encoding="utf-8"))["values"] if kept.is_file() else []
    missing = [hour for hour in hours if hour not in [value["hours"] for value in found]]
    folder = RunFolder.open(path)
    experiment, device = folder.experiment(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arrays = given_arrays(None, None, None, experiment, print)
    task = reload_task(folder, words.data, None, arrays, print) if missing else None
    for hour in missing:
        assert task is not None
        settings = experiment.distillation.model_copy(update={"at": f"{hour:g}h"})
        teachers = select_teachers(folder, settings)
        if experiment.merges or experiment.cohorts == 1:
            outcome = method.merge(task, teachers, device)
        else:
            outcome = method.distill(task, teachers, settings, device, lambda record: None)
        costs = {key: teachers.costs[key] for key in COSTS}
        accuracies = {"accuracy": outcome.accuracies["student_accuracy"], "validation": validation(outcome)}
        found.append({"hours": hour, **accuracies, **costs, "rounds": teachers.costs["rounds"]})
    if missing:
        files.write_json(kept, {"values": found})
    return [value for value in found if value["hours"] in hours]


def validation(outcome: Any) -> float:
    """The accuracy on the validation samples of all clients, also of those that a deadline drops."""
    clients = [one for one in outcome.client_accuracies if one["held_back"]]
    right = sum(one["accuracy_held_back"] * one["held_back"] for one in clients)
    return float(right / sum(one["held_back"] for one in clients))


def best(measured: Iterable[Row]) -> list[Row]:
    """Of every row and hour the values of the settings that validate best in the mean over seeds."""
    groups: dict[tuple[str, float], dict[str, list[Row]]] = {}
    for value in measured:
        tried = groups.setdefault((value["row"], value["hours"]), {})
        tried.setdefault(json.dumps(value["tuned"], sort_keys=True), []).append(value)
    return [one for tried in groups.values() for one in max(tried.values(), key=lambda some: mean(some, "validation"))]


def table(chosen: Sequence[Row], hour: float) -> str:
    """The rows at one hour: mean ± sample standard deviation over seeds, and every seed's difference."""
    at = by_row([value for value in chosen if value["hours"] == hour])
    base = strongest(at.values(), cohorts=False)
    bases = {value["seed"]: value["accuracy"] for value in base}
    heads = ["", "chosen", "accuracy %", *(head for head, _ in COSTS.values()), "seed by seed, against the best n = 1"]
    body = [heads]
    for name, some in at.items():
        settings = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in some[0]["tuned"].items())
        costs = [f"{mean(some, key):,.{digits}f}" for key, (_, digits) in COSTS.items()]
        gains = [f"{one['accuracy'] - bases[one['seed']]:+.1f}" for one in some if one["seed"] in bases]
        against = "(the best n = 1)" if some == base else "  ".join(gains)
        body.append([name, settings, cell(some), *costs, against])
    widths = [max(len(line[i]) for line in body) for i in range(len(heads))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in body]
    padded.insert(1, ["-" * width for width in widths])
    title = f"After {hour:g} virtual hour{'' if hour == 1 else 's'}:\n"
    return "\n".join([title, *(f"| {' | '.join(line)} |" for line in padded)])


def verdict(chosen: Sequence[Row], hour: float) -> str:
    """One sentence: is the best row with cohorts better than the best one without, beyond the spread over seeds?

    Both are chosen by validation accuracy. Empty: one of them is missing, or there is a single seed.
    """
    rows = by_row([value for value in chosen if value["hours"] == hour]).values()
    plain, ours = (strongest(rows, cohorts) for cohorts in (False, True))
    if min(len(plain), len(ours)) < 2:
        return ""
    gains = [a["accuracy"] - b["accuracy"] for a, b in zip(ours, plain, strict=True)]
    gain, spread = statistics.fmean(gains), statistics.stdev(gains)
    clear = abs(gain) > spread and len({one > 0 for one in gains}) == 1
    return (
        f"After {hour:g} h, {ours[0]['row']!r} has {abs(gain):.1f} points {'more' if gain > 0 else 'less'} than "
        f"{plain[0]['row']!r}, the best row with n = 1: {cell(ours)} against {cell(plain)} %. That is "
        f"{'more than' if clear else 'within'} the spread of the difference over seeds, {spread:.1f}."
    )


def strongest(rows: Iterable[list[Row]], cohorts: bool) -> list[Row]:
    """The row with several cohorts, or with one, that validates best; empty: there is none."""
    able = [some for some in rows if (some[0]["cohorts"] > 1) is cohorts]
    return max(able, key=lambda some: mean(some, "validation"), default=[])


def picture(front: Row, chosen: Sequence[Row]) -> style.Spec:
    """Accuracy against hours, a line for every row and a band from the lowest to the highest seed."""
    rows = []
    for hour in front["hours"]:
        for name, values in by_row([value for value in chosen if value["hours"] == hour]).items():
            some = [value["accuracy"] for value in values]
            own = {"mean": statistics.fmean(some), "low": min(some), "high": max(some)}
            rows.append({"row": name, "hours": hour} | own)
    last = sorted((row for row in rows if row["hours"] == max(front["hours"])), key=lambda row: -row["mean"])
    names = [row["row"] for row in last]  # the best one first
    base = {"x": style.field("hours:Q", title="virtual hours"), "color": style.colour_of("row", names)}
    y = style.field("mean:Q", title="test accuracy, %", scale={"zero": False})
    band = {"y": style.field("low:Q", title="test accuracy, %", scale={"zero": False}), "y2": {"field": "high"}}
    spec = style.chart(
        "Accuracy against virtual hours by row",
        style.mark("line", base | {"y": y}, strokeWidth=2.5, point=True),
        style.mark("area", base | band, opacity=0.08),
        rows=rows,
    )
    return spec | {"title": front["title"]}


def by_row(values: Iterable[Row]) -> dict[str, list[Row]]:
    """Values by row, seeds in order."""
    found: dict[str, list[Row]] = {}
    for value in values:
        found.setdefault(value["row"], []).append(value)
    return {name: sorted(some, key=lambda one: one["seed"]) for name, some in found.items()}


def mean(some: Iterable[Row], key: str) -> float:
    return statistics.fmean(one[key] for one in some)


def cell(some: Sequence[Row]) -> str:
    values = [one["accuracy"] for one in some]
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
