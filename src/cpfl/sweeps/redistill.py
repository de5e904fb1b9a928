"""Distill finished runs again from their snapshots, at earlier moments: what would stopping earlier have given?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.distillation.outputs import TeacherOutputs
from cpfl.engines.create import torch_device
from cpfl.engines.shared import StudentEngine
from cpfl.errors import CpflError, RunFolderError
from cpfl.runs.folder import RunFolder
from cpfl.runs.outcome import read_summary
from cpfl.settings.types import hours, interval
from cpfl.sweeps.turns import Turn, give, stream_of_its_own

QUORUMS = (0.25, 0.5, 0.75)  # the run itself waited for all cohorts
STEPS = (1, 1.5, 2, 3, 5, 7)  # moments in a decade of hours; fixed, so that all runs have the same ones
SIDE_BY_SIDE = {"cuda": 8}  # students; on a CPU they would share the same cores
MOST = 12  # moments of a run, the latest ones: two decades


def redistill(
    runs: Iterable[str | Path], *, notify: Callable[[str], None] = lambda text: None, **common: Any
) -> list[Path]:
    """Distill every finished run at a few quorums and moments, unless that is done already; the new folders.

    `common` is passed to `cpfl.distill`: data, device, or a model and arrays of one's own.
    """
    made: list[Path] = []
    for path in runs:
        try:
            wanted = missing(RunFolder.open(Path(path)))
            distiller = api.Distiller(path, **common)
            distiller.outputs = TeacherOutputs()
            together = SIDE_BY_SIDE.get(torch_device(distiller.device).type, 1)
            for first in range(0, len(wanted), together):
                several = wanted[first : first + together]
                for settings in several:
                    notify(f"{path}: distilling, {', '.join(f'{key} {value}' for key, value in settings.items())}")
                distiller.outputs.begin()
                side_by_side(distiller, several, made)
        except CpflError as error:  # the other runs can still be distilled
            notify(f"{path} is not distilled again: {error}")
    return made


def side_by_side(distiller: api.Distiller, several: Sequence[Mapping[str, Any]], made: list[Path]) -> None:
    """Students of a run take turns, a step each: a GPU does the steps at the same time. Their folders are `made`."""
    turns: list[Turn] = []

    def distill(number: int) -> None:
        with stream_of_its_own(torch_device(distiller.device)):
            engine = StudentEngine(turns[number].wait)
            made.append(Path(distiller(several[number], engine=engine)["path"]))

    if len(several) == 1:
        made.append(Path(distiller(several[0])["path"]))
        return
    turns += [Turn(partial(distill, number), str(settings)) for number, settings in enumerate(several)]
    try:
        while left := [turn for turn in turns if not turn.ended]:
            for turn in left:
                give(turn)
    except BaseException:
        for turn in turns:
            turn.cancel()
        raise
    if errors := [turn.error for turn in turns if turn.error is not None]:
        raise errors[0]


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
