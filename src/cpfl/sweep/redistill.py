"""Distill finished runs again from their snapshots, at earlier moments: what would stopping earlier have given?"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.errors import CpflError, RunFolderError
from cpfl.runs.folder import RunFolder
from cpfl.runs.outcome import read_summary
from cpfl.settings.types import hours, interval

QUORUMS = (0.25, 0.5, 0.75)  # the run itself waited for all cohorts
STEPS = (1, 1.5, 2, 3, 5, 7)  # moments in a decade of hours; fixed, so that all runs have the same ones
MOST = 12  # moments of a run, the latest ones: two decades


def redistill(
    runs: Iterable[str | Path], *, notify: Callable[[str], None] = lambda text: None, **common: Any
) -> list[Path]:
    """Distill every finished run at a few quorums and moments, unless that is done already; the new folders.

    `common` is passed to `cpfl.distill`: data, device, or a model and arrays of one's own.
    """
    made = []
    for path in runs:
        try:
            wanted = missing(RunFolder.open(Path(path)))
            students = api.distill_each(path, wanted, **common)
            for settings in wanted:
                notify(f"{path}: distilling, {', '.join(f'{key} {value}' for key, value in settings.items())}")
                made.append(Path(next(students)["path"]))
        except CpflError as error:  # the other runs can still be distilled
            notify(f"{path} is not distilled again: {error}")
    return made


def missing(folder: RunFolder) -> list[dict[str, Any]]:
    """Settings of the distillations that a run still lacks."""
    summary, experiment = folder.summary(), folder.experiment()
    if summary is None:
        raise RunFolderError("it is unfinished")
    if not experiment.snapshots:
        raise RunFolderError('it kept no snapshots; run it with snapshots = "5h"')
    own = experiment.distillation
    if own.at or own.quorum < 1:
        raise RunFolderError("its own distillation did not wait for all cohorts")
    kind, size = interval(experiment.snapshots)
    first = size / 3600 if kind == "seconds" else summary["hours"] / 20
    stops = sorted(cohort["hours"] for cohort in summary["by_cohort"])
    when: list[tuple[float, dict[str, Any]]] = [(h, {"at": f"{h:g}h"}) for h in moments(first, summary["hours"])]
    if experiment.cohorts > 1:
        when += [(stops[math.ceil(quorum * len(stops) - 1e-9) - 1], {"quorum": quorum}) for quorum in QUORUMS]
    done = []
    for path in (folder.path / "distillations").glob("*/summary.json"):
        with suppress(CpflError):  # a damaged one is distilled again
            done.append(read_summary(path, folder.identity).get("distillation"))
    when.sort(key=lambda one: one[0])  # in this order most teachers are those of the student before
    return [settings for _, settings in when if (own.model_dump() | settings) not in done]


def moments(first: float, last: float) -> list[float]:
    """Round hours between these two."""
    if not 0 < first <= last:
        return []
    decades = range(math.floor(math.log10(first)), math.floor(math.log10(last)) + 1)
    # As text, so that 0.7 is 0.7 wherever it is computed.
    round_hours = [hours(f"{step * 10.0**decade:g}h") for decade in decades for step in STEPS]
    return [hour for hour in round_hours if first <= hour < last][-MOST:]
