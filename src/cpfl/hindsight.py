"""What the stopping rule `joint` would have done with a run: its snapshots judged again, without training.

The run kept `snapshots = "25 rounds"` (or any number) and may have stopped by another rule; a cohort that had stopped
by a round is judged as it was then. `federation.joint.replayed` tells where a gain and a number of legs had ended it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpfl import experiment_file
from cpfl.distillation.judges import JUDGES
from cpfl.errors import RunFolderError
from cpfl.opening import given_arrays, reopen, torch_device
from cpfl.problem import check_judge
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.setting_types import interval


@dataclass(frozen=True)
class Moment:
    """The federation after so many rounds: what it had cost, judgements included, and what it was worth."""

    round: int
    cpu_hours: float
    value: float
    loss: float | None


def judged(
    path: str | Path, *, data: str | Path | None = None, device: str = "auto", **settings: Any
) -> Iterator[Moment]:
    """A finished run at each of its snapshots; `settings` are those of the rule and of the join, dots written as `__`:
    `stopping__judge="public"`, `distillation__join="probabilities"`."""
    folder = RunFolder.open(Path(path))
    experiment = folder.experiment()
    kind, size = interval(experiment.snapshots) if experiment.snapshots else ("none", 0.0)
    if kind != "rounds":
        raise RunFolderError(f"{path} kept no models by rounds: run it with --set snapshots='25 rounds'")
    problem = reopen(folder, data, None, given_arrays(None, None, None), lambda text: None)
    chosen = {"stopping.rule": "joint", **{key.replace("__", "."): value for key, value in settings.items()}}
    asked = replace(problem, experiment=experiment_file.with_settings(problem.experiment, chosen))
    check_judge(asked.data, asked.experiment.stopping)
    judge = JUDGES[asked.experiment.stopping.judge](asked, asked.experiment.distillation, torch_device(device))
    lines = [records.read(folder.rounds(cohort)) for cohort in range(len(problem.plan))]
    going = [len(cohort) for cohort in lines if not (cohort and cohort[-1]["stop"])]
    end, judging = min(going) if going else max(map(len, lines)), judge.cost().cpu_seconds
    for leg in range(1, int(end // size) + 1):
        number = int(leg * size)
        trained = math.fsum(line["cpu_seconds"] for cohort in lines for line in cohort[:number])
        seen = judge.look([load_state(_latest(folder, cohort, number)) for cohort in range(len(lines))])
        yield Moment(number, (trained + leg * judging) / 3600, seen.value, seen.loss)


def _latest(folder: RunFolder, cohort: int, number: int) -> Path:
    """A cohort's newest model that is not of a later round."""
    early = [path for path in folder.snapshots(cohort) if int(path.stem.rpartition("-")[2]) <= number]
    return early[-1] if early else folder.start(cohort)
