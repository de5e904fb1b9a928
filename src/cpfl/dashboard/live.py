"""The live part of the page: unfinished runs with progress and time left, their workers, latest stops and curves."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpfl.dashboard.follow import Followed
from cpfl.report import cohort_figures
from cpfl.report.content import Tree, figure, with_rows
from cpfl.report.reading import READ_ERRORS, CohortHistory, RunFacts
from cpfl.settings import Experiment
from cpfl.terminal.progress import Bounds, duration, rounds_left, time_left
from cpfl.terminal.views import worker_cells
from cpfl.user_files import check_readable

QUIET = 60.0  # seconds without a record after which a run may have been interrupted
FRESH = 30.0  # seconds after which workers.json may be no longer true
STOPS = 8  # the latest that are listed
CURVES = 400  # in one figure, all runs together
COMPARED = 8  # runs side by side: as many as there are colours


def live(runs: Sequence[Followed], now: float) -> Tree:
    """The live part of the tree; `runs` with the latest first."""
    active = [run for run in runs if not run.finished]
    unread = sum(run.unread for run in runs)
    read = sum(tail.read for run in runs for tail in run.tails)
    share = 100 * read // (read + unread) if unread else 100
    return {
        "sentence": _sentence(runs, active, now),
        "reading": f"Still reading: {share} % of the records are in the figures." if unread else "",
        "runs": [_row(run, now) for run in active],
        "stops": _stops(active, now),
        "pools": [found for run in active if (found := worker_pool(run.name, run.path, now))],
        "figures": _figures(runs, active),
    }


def drawn_live(active: Sequence[Followed]) -> list[Followed]:
    """Unfinished runs that have curves, as many as fit into one figure, but at least one."""
    chosen: list[Followed] = []
    curves = 0
    for run in (run for run in active if any(history.curve for history in run.histories)):
        curves += len(run.histories)
        if chosen and curves > CURVES:
            break
        chosen.append(run)
    return chosen


def _sentence(runs: Sequence[Followed], active: Sequence[Followed], now: float) -> str:
    if not runs:
        return "There are no runs in this folder yet; the first one appears here as soon as it begins."
    writing = sum(now - run.modified <= QUIET for run in active)
    counts = {
        "in progress": writing,
        "unfinished and quiet": len(active) - writing,
        "finished": len(runs) - len(active),
    }
    texts = [f"{count} {what}" for what, count in counts.items() if count]
    return f"One run, {texts[0].removeprefix('1 ')}." if len(runs) == 1 else f"{len(runs)} runs: {', '.join(texts)}."


def _row(run: Followed, now: float) -> Tree:
    facts = run.facts
    histories, stopped = run.histories, sum(bool(history.stop) for history in run.histories)
    kind, state = _state(run, facts, stopped, now)
    speed, left = 0.0, None
    if kind == "training":
        speed = run.samples.rate
        left = training_left(speed, facts.experiment, facts.about["cohorts"], histories, _cpu_budgets(facts))
    elif kind == "distilling" and run.epochs.rate:
        seconds = (facts.experiment.distillation.epochs - run.epoch) / run.epochs.rate
        left = seconds, seconds
    return {
        "name": run.name,
        "n": facts.n,
        "seed": facts.experiment.seed,
        "kind": kind,
        "state": state,
        "done": stopped,
        "cohorts": len(histories),
        "cells": {
            "cohorts stopped": f"{stopped} of {len(histories)}",
            "rounds": f"{sum(history.rounds for history in histories):,}",
            "hours": f"{max((history.clock for history in histories), default=0.0) / 3600:,.2f}",
            "CPU hours": f"{sum(history.cpu_seconds for history in histories) / 3600:,.1f}",
            "traffic GB": f"{sum(history.bytes for history in histories) / 1e9:,.2f}",
            "samples/s": f"{speed:,.0f}" if speed else "–",
            "time left": time_left(left).removesuffix(" left") or "–",
        },
    }


def training_left(
    speed: float,
    experiment: Experiment,
    cohorts: Sequence[Sequence[int]],
    histories: Sequence[CohortHistory],
    cpu_budgets: Mapping[int, float],
) -> Bounds:
    """Real seconds until every cohort has stopped, at the least and at the most.

    `speed` is in samples a second; `cpu_budgets` holds CPU seconds by cohort, where an evaluation has set them.
    """
    training = {cohort: history for cohort, history in enumerate(histories) if not history.stop}
    if not speed or not all(history.rounds for history in training.values()):
        return None
    least = most = 0.0
    limit = experiment.stopping.max_cpu_hours * 3600 or math.inf
    for cohort, h in training.items():
        budget = cpu_budgets.get(cohort, limit * len(cohorts[cohort]) / experiment.clients)
        left = rounds_left(experiment, h.rounds, h.clock, h.cpu_seconds, budget, h.best_round)
        least += left.least * h.last_samples / speed
        most += left.most * h.last_samples / speed
    return least, most


def _cpu_budgets(facts: RunFacts) -> dict[int, float]:
    """The CPU seconds that the latest evaluation allows each cohort, if there is one and a limit."""
    last = facts.evaluations[-1] if facts.evaluations else {}
    return dict(zip(last.get("cohorts", ()), last.get("cpu_budgets", ()), strict=False))


def _state(run: Followed, facts: RunFacts, stopped: int, now: float) -> tuple[str, str]:
    if now - run.modified > QUIET:
        return "quiet", f"quiet for {duration(now - run.modified)}; if it was interrupted, cpfl resume continues it"
    if run.epoch or stopped == len(run.histories):
        epochs = facts.experiment.distillation.epochs
        return "distilling", f"distilling, epoch {run.epoch} of {epochs}" if run.epoch else "distilling"
    return "training", "training" if any(history.rounds for history in run.histories) else "in its first round"


def _stops(active: Sequence[Followed], now: float) -> list[Tree]:
    """The latest stops; a cohort that has stopped writes no more, so its file has the time."""
    cohorts = [(run, cohort, history) for run in active for cohort, history in enumerate(run.histories)]
    found = [(run.tails[cohort].modified, run, cohort, history) for run, cohort, history in cohorts if history.stop]
    stops = []
    for modified, run, cohort, h in sorted(found, key=lambda stop: -stop[0])[:STOPS]:
        text = f"cohort {cohort} after {h.rounds:,} rounds, {h.clock / 3600:,.2f} h ({h.stop})"
        prefix = f"{run.name}: " if len(active) > 1 else ""
        stops.append({"text": prefix + text, "ago": duration(now - modified)})
    return stops


def worker_pool(run: str, folder: Path, now: float) -> Tree | None:
    """The workers of a run on a cluster, from its workers.json; None: there is no recent one."""
    path = folder / "workers.json"
    try:
        if now - path.stat().st_mtime > FRESH:
            return None
        check_readable(path)
        load = json.loads(path.read_bytes())
        link = str(load.get("dashboard") or "")
        rows = [
            {key: str(worker[key]) for key in ("worker", "node", "device")} | worker_cells(worker)
            for worker in load["workers"]
        ]
    except (*READ_ERRORS, RecursionError):  # it is rewritten every second, or not ours
        return None
    return {"run": run, "workers": rows, "dashboard": link if link.startswith(("http://", "https://")) else ""}


def _figures(runs: Sequence[Followed], active: Sequence[Followed]) -> list[Tree]:
    cohorts = [
        ({"run": run.name, "cohort": cohort}, history)
        for run in drawn_live(active)
        for cohort, history in enumerate(run.histories)
    ]
    compared = {run.name: run.histories for run in runs[:COMPARED]}
    made = []
    if cohorts:
        made.append(figure("live-curves", cohort_figures.losses(cohorts, cohorts[0][0]["run"])))
    if active and len(compared) > 1:
        made.append(figure("live-runs", cohort_figures.side_by_side(compared)))
    return with_rows(made)
