"""What stopping earlier would have given: finished runs distilled again from their snapshots, each moment once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.errors import CpflError, RunFolderError
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.setting_types import hours, interval

QUORUMS = (0.25, 0.5, 0.75)  # all of them is what the run itself did
STEPS = (1, 1.5, 2, 3, 5, 7)  # moments of a decade of hours; fixed, so that all runs are asked at the same ones
MOST = 12  # moments of a run, the latest ones: two decades

Note = Callable[[str], None]


def study(runs: Iterable[str | Path], *, note: Note = lambda text: None, **common: Any) -> list[Path]:
    """Distil every finished run at a few quorums and moments, unless that is done already; the new ones' folders.

    `common` goes to `cpfl.distill` as it is: data, device, or a model and arrays of one's own.
    """
    made = []
    for path in runs:
        try:
            for settings in missing(RunFolder.open(Path(path))):
                told = ", ".join(f"{key} {value}" for key, value in settings.items())
                note(f"{path}: distilling, {told}")
                made.append(Path(api.distill(path, **settings, **common)["path"]))
        except CpflError as error:  # one run that cannot be studied does not keep the others from it
            note(f"{path} is not studied: {error}")
    return made


def missing(folder: RunFolder) -> list[dict[str, Any]]:
    """Settings of the distillations that a run still lacks."""
    summary, experiment = folder.summary(), folder.experiment()
    if summary is None:
        raise RunFolderError("it is unfinished")
    if not experiment.snapshots:
        raise RunFolderError("it kept no snapshots; run it with --set snapshots=5h")
    own = experiment.distillation
    if own.at or own.quorum < 1:
        raise RunFolderError("its own distillation did not wait for all cohorts")
    kind, size = interval(experiment.snapshots)
    first = size / 3600 if kind == "seconds" else summary["hours"] / 20
    wanted: list[dict[str, Any]] = [{"at": f"{h:g}h"} for h in moments(first, summary["hours"])]
    if experiment.cohorts > 1:
        wanted += [{"quorum": quorum} for quorum in QUORUMS]
    done = [_settings(path) for path in (folder.path / "distillations").glob("*/summary.json")]
    return [settings for settings in wanted if (own.model_dump() | settings) not in done]


def moments(first: float, last: float) -> list[float]:
    """Round hours between these two."""
    if not 0 < first <= last:
        return []
    decades = range(math.floor(math.log10(first)), math.floor(math.log10(last)) + 1)
    # As text, so that 0.7 is 0.7 wherever it is computed.
    round_ones = [hours(f"{step * 10.0**decade:g}h") for decade in decades for step in STEPS]
    return [hour for hour in round_ones if first <= hour < last][-MOST:]


def _settings(path: Path) -> Any:
    try:
        return files.read_json(path).get("distillation")
    except CpflError:  # a damaged one is done again
        return None
