"""Which models become teachers: all at their stops, all at a virtual time, or at the moment a quorum has stopped.

Reads the run folder only, so every question about stopping can be asked again later without training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpfl.errors import RunFolderError
from cpfl.experiment import Distillation
from cpfl.federation.stopping import ROUNDING
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.setting_types import hours


@dataclass(frozen=True)
class Teachers:
    """Who teaches: cohorts, the files of their models, and what training had cost by then."""

    cohorts: list[int]
    paths: list[Path]
    hours: float
    cpu_hours: float
    comm_gb: float
    wasted_cpu_hours: float  # of cpu_hours, what came to nothing
    wasted_gb: float
    repeats: int  # attempts at rounds that brought too few results
    rounds: int
    samples: int
    cut_off: int  # cohorts that max_rounds ended before they had converged
    accounts: list[dict[str, Any]]  # the same by cohort


def choose(folder: RunFolder, settings: Distillation) -> Teachers:
    """The teachers that these settings ask for."""
    about = folder.about()
    lines = [records.read(folder.rounds(cohort)) for cohort in range(len(about["plan"]))]
    judged = records.read(folder.judgements())
    stops = [_stopped(cohort, line, judged) for cohort, line in enumerate(lines)]
    clocks = [line[-1]["clock"] if line else 0.0 for line in lines]
    moment = min(_moment(folder, settings, stops), max(stops))  # after the last stop nothing changes any more
    behind = [i for i, stop in enumerate(stops) if stop == math.inf and clocks[i] < moment]
    if behind:
        raise RunFolderError(
            f"cohort {behind[0]} of {folder.path} has trained for {clocks[behind[0]] / 3600:.2f} h and not stopped: "
            f"its model at {moment / 3600:.2f} h is not there yet; wait, or ask for an earlier time"
        )
    cohorts, paths = [], []
    for cohort, stop in enumerate(stops):
        if stop <= moment + ROUNDING:
            cohorts.append(cohort)
            paths.append(folder.teacher(cohort))
        elif settings.unfinished == "latest":
            cohorts.append(cohort)
            paths.append(_latest(folder, cohort, lines[cohort], moment))
    if not cohorts:
        raise RunFolderError(f"no cohort had stopped at {moment / 3600:.2f} h, and distillation.unfinished = 'drop'")
    spent = [r for line in lines for r in line if r["clock"] <= moment + ROUNDING]
    asked = [j for j in judged if j["clock"] <= moment + ROUNDING]
    sizes = about.get("cohort_model_bytes", {})  # of cohorts that train a model of their own
    sent = sum(r["bytes"] for r in [*spent, *asked]) + sum(sizes.get(str(i), about["model_bytes"]) for i in cohorts)
    return Teachers(
        cohorts=cohorts,
        paths=paths,
        hours=moment / 3600,
        cpu_hours=math.fsum(r["cpu_seconds"] for r in [*spent, *asked]) / 3600,
        comm_gb=sent / 1e9,
        wasted_cpu_hours=math.fsum(r.get("wasted_cpu_seconds", 0.0) for r in spent) / 3600,  # older runs wasted nothing
        wasted_gb=sum(r.get("wasted_bytes", 0) for r in spent) / 1e9,
        repeats=sum(r.get("repeats", 0) for r in spent),
        rounds=len(spent),
        samples=sum(r["samples"] for r in spent),
        cut_off=sum(r["stop"] == "max rounds" for r in spent),
        accounts=[_account(cohort, lines[cohort], moment, stops[cohort]) for cohort in cohorts],
    )


def _stopped(cohort: int, lines: list[dict[str, Any]], judged: list[dict[str, Any]]) -> float:
    """When a cohort stopped: after its last round, or at the end of the judgement that it had waited for then."""
    if not (lines and lines[-1]["stop"]):
        return math.inf
    last = lines[-1]
    waited = [j["clock"] for j in judged if j["round"] == last["round"] and cohort in j["cohorts"]]
    return float(max([last["clock"], *waited]))


def _account(cohort: int, lines: list[dict[str, Any]], moment: float, stop: float) -> dict[str, Any]:
    """What one cohort had spent by a moment, on its own rounds."""
    stopped = stop <= moment + ROUNDING
    spent = [line for line in lines if line["clock"] <= moment + ROUNDING]
    return {
        "cohort": cohort,
        "rounds": len(spent),
        "hours": (stop if stopped else spent[-1]["clock"]) / 3600 if spent else 0.0,
        "cpu_hours": math.fsum(line["cpu_seconds"] for line in spent) / 3600,
        "comm_gb": sum(line["bytes"] for line in spent) / 1e9,
        "stop": spent[-1]["stop"] if stopped else "",
    }


def _moment(folder: RunFolder, settings: Distillation, stops: list[float]) -> float:
    if settings.at:
        return hours(settings.at) * 3600
    needed = math.ceil(settings.quorum * len(stops) - 1e-9)
    moment = sorted(stops)[needed - 1]
    if moment == math.inf:
        stopped = sum(stop < math.inf for stop in stops)
        raise RunFolderError(
            f"{stopped} of the {len(stops)} cohorts of {folder.path} have stopped, {needed} are needed: "
            "wait, resume it, or give --at or a lower --quorum"
        )
    return moment


def _latest(folder: RunFolder, cohort: int, lines: list[dict[str, Any]], moment: float) -> Path:
    if not folder.experiment().snapshots:
        raise RunFolderError(
            f"{folder.path} kept no snapshots, so cohort {cohort}'s model at {moment / 3600:.2f} h is gone: "
            "run it with --set snapshots=5h (or '50 rounds'), or set distillation.unfinished=drop"
        )
    ended = {line["round"]: line["clock"] for line in lines}
    latest = folder.start(cohort)
    for path in folder.snapshots(cohort):
        # A snapshot may be there a moment before the record of its round.
        if ended.get(int(path.stem.rpartition("-")[2]), math.inf) <= moment + ROUNDING:
            latest = path
    return latest
