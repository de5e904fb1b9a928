"""Which models become teachers: all at their stops, all at a virtual time, or when a quorum has stopped.

The run folder is enough to answer that, so it can be answered again later without training.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cpfl.errors import DamagedError, MissingError, RunFolderError
from cpfl.federation.session import Session
from cpfl.federation.stopping import ROUNDING
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.settings import Distillation
from cpfl.settings.types import hours

Lines = list[dict[str, Any]]
USED: dict[str, tuple[type, ...]] = {  # of a record
    "round": (int,),
    "clock": (int, float),
    "cpu_seconds": (int, float),
    "bytes": (int,),
    "samples": (int,),
    "stop": (str,),
}


@dataclass(frozen=True)
class Teachers:
    """Cohort models that are distilled, and what training had cost by then."""

    cohorts: list[int]
    sources: list[Path | State]  # their models, in memory or in files
    hours: float
    untrained: bool  # all of them are initial models
    costs: dict[str, Any]  # of the whole run, for its summary
    accounts: list[dict[str, Any]]  # the same by cohort
    load: Callable[[Path], State] = load_state  # from a file
    clients: list[list[int]] | None = None  # of every cohort of the run by then; None: they were never drawn anew
    work: Sequence[int] = ()  # samples that each cohort has trained on since its last meeting

    def states(self) -> Iterator[State]:
        """The models one after the other: those in files are never all in memory."""
        return (self.load(source) if isinstance(source, Path) else source for source in self.sources)


def select_teachers(folder: RunFolder, settings: Distillation, sessions: Sequence[Session] = ()) -> Teachers:
    """The models that these settings select; those of stopped `sessions` are taken from memory."""
    about = folder.about()
    found = [_records(folder, cohort) for cohort in range(len(about["cohorts"]))]
    lines = [line for line, _ in found]
    evaluations = records.read_sealed(folder.evaluations(), folder.identity)
    meetings = records.read_sealed(folder.meetings(), folder.identity)
    stops = [_stopped(cohort, line, evaluations, meetings) for cohort, line in enumerate(lines)]
    clocks = [line[-1]["clock"] if line else 0.0 for line in lines]
    moment = min(_moment(folder, settings, stops), max(stops))  # after the last stop nothing changes any more
    behind = [i for i, stop in enumerate(stops) if stop == math.inf and clocks[i] < moment]
    if behind:
        raise RunFolderError(
            f"cohort {behind[0]} of {folder.path} has trained for {clocks[behind[0]] / 3600:.2f} h and not stopped: "
            f"its model at {moment / 3600:.2f} h does not exist yet; wait, or choose an earlier time"
        )
    if doubtful := [cohort for cohort, (line, sure) in enumerate(found) if line and not sure]:
        raise RunFolderError(
            f"no checkpoint vouches for {folder.rounds(doubtful[0])}: if the run is training, wait for one, else "
            f"cpfl resume {folder.path}, which trains the cohort again"
        )
    chosen: dict[int, Path | State] = {}
    for cohort, stop in enumerate(stops):
        if stop <= moment + ROUNDING:
            chosen[cohort] = files.on_host(sessions[cohort].teacher()) if sessions else folder.teacher(cohort)
        elif settings.unfinished == "latest":
            chosen[cohort] = latest_model(folder, cohort, lines[cohort], meetings, moment)
    if not chosen:
        raise RunFolderError(f"no cohort had stopped at {moment / 3600:.2f} h, and distillation.unfinished = 'drop'")
    spent_by_cohort = [[r for r in line if r["clock"] <= moment + ROUNDING] for line in lines]
    spent = list(chain.from_iterable(spent_by_cohort))
    evaluated, met = ([e for e in each if e["clock"] <= moment + ROUNDING] for each in (evaluations, meetings))
    sizes = about["cohort_model_bytes"]  # of cohorts that train a model of their own
    sent = sum(r["bytes"] for r in [*spent, *evaluated, *met])
    sent += sum(sizes.get(str(i), about["model_bytes"]) for i in chosen)
    between_servers = sum(e.get("global_bytes", 0) for e in evaluated) + sum(m["bytes"] for m in met)
    between_servers += sum(sizes.get(str(i), about["model_bytes"]) for i in chosen)
    work = {
        cohort: sum(r["samples"] for r in own if r["round"] > _last_meeting(met, cohort)[0])
        for cohort, own in enumerate(spent_by_cohort)
    }
    return Teachers(
        cohorts=list(chosen),
        sources=list(chosen.values()),
        hours=moment / 3600,
        untrained=all(source == folder.start(cohort) for cohort, source in chosen.items()),
        costs={
            "hours": moment / 3600,
            "cpu_hours": math.fsum(r["cpu_seconds"] for r in [*spent, *evaluated]) / 3600,
            "comm_gb": sent / 1e9,
            "client_gb": (sent - between_servers) / 1e9,
            # With one cohort its server is the global one: all that clients send reaches it.
            "global_gb": (sent if len(lines) == 1 else between_servers) / 1e9,
            "wasted_cpu_hours": math.fsum(r.get("wasted_cpu_seconds", 0.0) for r in spent) / 3600,
            "wasted_gb": sum(r.get("wasted_bytes", 0) for r in spent) / 1e9,
            "repeats": sum(r.get("repeats", 0) for r in spent),
            "rounds": len(spent),
            "cut_off": sum(r["stop"] == "max rounds" for r in spent),
            "samples": sum(r["samples"] for r in spent),
        },
        accounts=[
            {
                "cohort": cohort,
                "rounds": len(own),
                "hours": (stop if stop <= moment + ROUNDING else own[-1]["clock"]) / 3600 if own else 0.0,
                "cpu_hours": math.fsum(r["cpu_seconds"] for r in own) / 3600,
                "comm_gb": sum(r["bytes"] for r in own) / 1e9,
                "stop": own[-1]["stop"] if stop <= moment + ROUNDING else "",
            }
            for cohort, own, stop in ((i, spent_by_cohort[i], stops[i]) for i in chosen)
        ],
        work=[work[cohort] for cohort in chosen],
        clients=_drawn_anew(about["cohorts"], met),
        load=lambda path: folder.load(path)[0],
    )


def _drawn_anew(cohorts: list[list[int]], meetings: Lines) -> list[list[int]] | None:
    """The clients of every cohort after these meetings; None: nobody has changed the cohort."""
    drawn = dict(pair for one in meetings for pair in zip(one["cohorts"], one.get("clients") or (), strict=False))
    return [drawn.get(cohort, own) for cohort, own in enumerate(cohorts)] if drawn else None


def _records(folder: RunFolder, cohort: int) -> tuple[list[dict[str, Any]], bool]:
    """A cohort's records, and whether anything vouches for them, evaluations and meetings: its teacher or its
    newest checkpoint."""
    path, facts = folder.rounds(cohort), _newest_checkpoint(folder, cohort)  # before records: they may be growing
    lines = records.read(path)
    if not all(type(line.get(key)) in kinds for line in lines for key, kinds in USED.items()):
        raise DamagedError(f"{path} is damaged: a line lacks {', '.join(USED)}, or has them in another type")
    stopped = bool(lines and lines[-1]["stop"]) or (folder.path / "summary.json").is_file()
    if stopped or folder.teacher(cohort).is_file():
        last = folder.numbers(folder.teacher(cohort))
        # It is written before its cohort's last record, and a kill may come between them.
        stopped = stopped or bool(lines and lines[-1]["round"] >= last["round"])
        facts = last if stopped else facts
    if facts:
        records.check(folder.path, path, facts, whole=stopped)
        records.check_shared(folder.path, folder.shared, facts)
    return lines, bool(facts)


def _newest_checkpoint(folder: RunFolder, cohort: int) -> dict[str, Any]:
    """Its numbers; empty if there is none."""
    for path in folder.checkpoints(cohort):
        with suppress(DamagedError, MissingError):
            return folder.numbers(path)
    return {}


def _stopped(cohort: int, lines: Lines, evaluations: Lines, meetings: Lines) -> float:
    """When a cohort stopped: after its last round, or at the end of the evaluation or meeting that it had waited
    for."""
    if not (lines and lines[-1]["stop"]):
        return math.inf
    last = lines[-1]
    waited = [
        one["clock"]
        for one in [*evaluations, *meetings]
        if (cohort, last["round"])
        in zip(one["cohorts"], one.get("rounds") or [one["round"]] * len(one["cohorts"]), strict=True)
    ]
    return float(max([last["clock"], *waited]))


def _moment(folder: RunFolder, settings: Distillation, stops: list[float]) -> float:
    if settings.at:
        return hours(settings.at) * 3600
    needed = math.ceil(settings.quorum * len(stops) - 1e-9)
    moment = sorted(stops)[needed - 1]
    if moment == math.inf:
        stopped = sum(stop < math.inf for stop in stops)
        raise RunFolderError(
            f"{stopped} of the {len(stops)} cohorts of {folder.path} have stopped, {needed} are needed: "
            "wait, resume it, or set distillation.at or a lower distillation.quorum"
        )
    return moment


def latest_model(folder: RunFolder, cohort: int, lines: Lines, meetings: Lines, moment: float) -> Path:
    """The file of a cohort's latest snapshot at that time, or of the model that it has from a meeting since."""
    if not folder.experiment().snapshots:
        raise RunFolderError(
            f"{folder.path} kept no snapshots, so cohort {cohort}'s model at {moment / 3600:.2f} h is gone: "
            "run it with snapshots=5h (or '50 rounds'), or set distillation.unfinished = drop"
        )
    last_met, meeting = _last_meeting([m for m in meetings if m["clock"] <= moment + ROUNDING], cohort)
    before = {line["round"] for line in lines if line["clock"] <= moment + ROUNDING}
    rounds = before.intersection(chain.from_iterable(line.get("snapshots", ()) for line in lines))
    if meeting and max(rounds, default=0) <= last_met:
        own = folder.own_start(cohort).is_file()  # it trains a model of its own
        return folder.meeting_model(meeting, cohort if own else None)
    if not rounds:
        return folder.start(cohort)
    latest = folder.snapshot(cohort, max(rounds))
    if not latest.is_file():
        raise RunFolderError(f"{latest} is missing: restore it, or choose another distillation.at")
    return latest


def _last_meeting(meetings: Lines, cohort: int) -> tuple[int, int]:
    """After which round a cohort last met the others, and the meeting's number; 0 and 0: never."""
    for meeting in reversed(meetings):
        rounds = dict(zip(meeting["cohorts"], meeting["rounds"], strict=True))
        if cohort in rounds:
            return rounds[cohort], meeting["meeting"]
    return 0, 0
