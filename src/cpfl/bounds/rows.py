"""One row for every n: means over seeds and their sample standard deviation, of runs that differ in nothing else."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from cpfl.bounds.measure import RunBound
from cpfl.reports.tables import deviation
from cpfl.runs.folder import RunFolder
from cpfl.settings import effects

OVER = ("cohorts", "seed", "snapshots", "checkpoint_seconds")  # what runs of one group may differ in


def rows(runs: Sequence[RunBound]) -> list[dict[str, Any]]:
    """A row for every n of every group of runs; `settings` are those in which the groups differ."""
    settings = [effects.leaves(RunFolder(run.path).experiment().model_dump(mode="json")) for run in runs]
    keys = dict.fromkeys(key for own in settings for key in own if key not in OVER)
    different = [key for key in keys if len({json.dumps(own.get(key)) for own in settings}) > 1]
    groups: dict[str, list[RunBound]] = {}
    for run, own in zip(runs, settings, strict=True):
        groups.setdefault(", ".join(f"{key} = {own.get(key)}" for key in different), []).append(run)
    return [
        _row([run for run in group if run.n == n], name)
        for name, group in groups.items()
        for n in sorted({run.n for run in group})
    ]


def _row(runs: Sequence[RunBound], settings: str) -> dict[str, Any]:
    found: dict[str, Any] = {"n": runs[0].n, "seeds": len(runs), **({"settings": settings} if settings else {})}
    for key in runs[0].numbers():
        values = [run.numbers()[key] for run in runs]
        found |= {key: statistics.fmean(values), f"{key}_spread": deviation(values)}
    return found
