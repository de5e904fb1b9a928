"""The live part of the page: the boards, unfinished runs with progress and time left, workers, stops and figures."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpfl.dashboard.board import ACTIVE, ENDED, Board, per_cent_of, run_board, share_of, sweep_board
from cpfl.dashboard.figures import COMPARED, Colours, drawn_live, live_figures
from cpfl.dashboard.follow import Followed
from cpfl.dashboard.state import clock, patience, state_of
from cpfl.dashboard.sweeps import FollowedSweep
from cpfl.dashboard.tunes import FollowedTune
from cpfl.dashboard.work import Work
from cpfl.reports.content import Tree
from cpfl.reports.reading import READ_ERRORS
from cpfl.terminal.progress import Expected, duration, time_left
from cpfl.terminal.views import worker_cells
from cpfl.user_files import check_readable

FRESH = 30.0  # seconds after which workers.json may be no longer true
STOPS = 8  # the latest that are listed
PATIENT = 6  # runs whose cohorts are listed


def live(
    runs: Sequence[Followed],
    sweeps: Sequence[FollowedSweep],
    tunes: Sequence[FollowedTune],
    every: Mapping[Path, Followed],
    colours: Colours,
    machine: Mapping[str, str],
    now: float,
) -> Tree:
    """The live part of the tree.

    Parameters
    ----------
    runs
        Those that can be read, the latest first.
    every
        All runs by path, damaged ones too.
    colours
        Those that runs had before.
    machine
        What is said of the machine, by name.
    """
    failed = {sweep.path / name for sweep in sweeps for name in sweep.failures}
    active = [run for run in runs if not run.finished and run.path not in failed]
    drawn = dict.fromkeys(run.name for run in (*drawn_live(active), *runs[:COMPARED], *active))
    of_run = colours.of(list(drawn))
    boards = [sweep_board(sweep, every, now, of_run) for sweep in sweeps]
    swept = {sweep.path / name for sweep in sweeps for name in sweep.runs}.union(*(tune.runs for tune in tunes))
    alone = [run for run in runs if run.path not in swept]
    others = run_board(alone, now, of_run)
    open_boards = [board for board in boards if board.counts.keys() - {*ENDED}]
    tuned = [tune.board(now) for tune in tunes if not tune.finished]
    if len(alone) > 1 and others.counts.keys() - {*ENDED}:
        open_boards.append(others)
    unread = sum(run.unread for run in runs)
    read = sum(tail.read for run in runs for tail in run.tails)
    share = 100 * read // (read + unread) if unread else 100
    works = {path: work for board in (*boards, others) for path, work in board.works.items()}
    rows = [_row(run, works.get(run.path), of_run, now) for run in active]
    return {
        "sentence": _sentence([*boards, *tuned, others]),
        "tab": _tab([*boards, *tuned, others]),
        "reading": f"Still reading: {share} % of the records are in the figures." if unread else "",
        "machine": machine if active else {},
        "boards": [board.tree for board in (*open_boards, *tuned)],
        "heads": list(dict.fromkeys(head for row in rows for head in row["cells"])),
        "runs": rows,
        "patience": [
            patience(run.facts, run.histories) | {"name": run.name, "colour": of_run[run.name]}
            for run in [run for run in active if _trains(run, now)][:PATIENT]
        ],
        "stops": _stops(active, now),
        "pools": [found for run in active if (found := worker_pool(run.name, run.path, now))],
        "figures": live_figures(runs, active, of_run),
    }


def busy_runs(runs: Sequence[Followed], sweeps: Sequence[FollowedSweep], now: float) -> set[Path]:
    """Runs in progress, and all runs of a sweep of which one is in progress or still to begin."""
    busy = {run.path for run in runs if state_of(run, now)[0] in ACTIVE}
    begun = {run.path for run in runs}
    for sweep in sweeps:
        paths = {sweep.path / name for name in sweep.runs}
        queued = not sweep.ended and bool(paths - begun)
        busy -= {sweep.path / name for name in sweep.failures}
        busy |= paths if queued or paths & busy else set()
    return busy


def _sentence(boards: Sequence[Board]) -> str:
    """What the page says first: the runs by state, those that can change first."""
    counts = sum((board.counts for board in boards), Counter[str]())
    if not counts:
        return "There are no runs in this folder yet; the first one appears here as soon as it begins."
    words = {
        "running": "in progress",
        "quiet": "unfinished and quiet",
        "interrupted": "interrupted",
        "failed": "failed",
        "queued": "queued",
        "pruned": "stopped early",
        "repeated": "repeated",
        "done": "finished",
    }
    texts = [f"{counts[state]} {what}" for state, what in words.items() if counts[state]]
    whole = sum(counts.values())
    return f"One run, {texts[0].removeprefix('1 ')}." if whole == 1 else f"{whole} runs: {', '.join(texts)}."


def _tab(boards: Sequence[Board]) -> str:
    """The title of the browser's tab: how many runs have finished and how much work is done, where not all is."""
    filled = [board for board in boards if board.counts]
    chosen = [board for board in filled if board.counts.keys() - {*ENDED}] or filled
    counts = sum((board.counts for board in chosen), Counter[str]())
    if not counts:
        return "cpfl dashboard"
    share = share_of(chosen)
    runs = f"{sum(counts[state] for state in ENDED)}/{sum(counts.values())} runs"
    failed = f"{counts['failed']} failed" if counts["failed"] else ""
    return " · ".join(filter(None, (runs, failed, "" if share is None else f"{share} %", "cpfl")))


def _trains(run: Followed, now: float) -> bool:
    return state_of(run, now)[0] == "training" and any(history.rounds for history in run.histories)


def _row(run: Followed, work: Work | None, colours: Mapping[str, str], now: float) -> Tree:
    facts, histories = run.facts, run.histories
    stopped = sum(bool(history.stop) for history in histories)
    kind, state = state_of(run, now)
    speed, left = 0.0, None
    if kind == "training" and run.samples.rate:
        speed = run.samples.rate
        left = None if work is None else work.left.times(1 / speed)
    elif kind == "distilling" and run.epoch:
        epochs = facts.experiment.distillation.epochs - run.epoch
        left = Expected(epochs / run.epochs.rate, sure=True) if run.epochs.rate else None
    hours, cpu_hours = (f"{clock(facts)} {what}" for what in ("hours", "CPU hours"))
    meetings = {"meetings": f"{len(run.meetings):,}"} if facts.experiment.meets else {}
    return {
        "name": run.name,
        "colour": colours[run.name],
        "n": facts.n,
        "seed": facts.experiment.seed,
        "kind": kind,
        "state": state,
        "share": per_cent_of(run, work),
        "cells": {
            "cohorts stopped": f"{stopped} of {len(histories)}",
            "rounds": f"{sum(history.rounds for history in histories):,}",
            **meetings,
            hours: f"{max((history.clock for history in histories), default=0.0) / 3600:,.2f}",
            cpu_hours: f"{sum(history.cpu_seconds for history in histories) / 3600:,.1f}",
            "traffic GB": f"{sum(history.bytes for history in histories) / 1e9:,.2f}",
            "samples/s": f"{speed:,.0f}" if speed else "–",
            "real time": duration(now - run.started),
            "real time left": time_left(left).removesuffix(" left") or "–",
        },
    }


def _stops(active: Sequence[Followed], now: float) -> list[Tree]:
    """The latest stops; a cohort that has stopped writes no more, so its file has the time."""
    cohorts = [(run, cohort, history) for run in active for cohort, history in enumerate(run.histories)]
    found = [(run.tails[cohort].modified, run, cohort, history) for run, cohort, history in cohorts if history.stop]
    stops = []
    for modified, run, cohort, h in sorted(found, key=lambda stop: -stop[0])[:STOPS]:
        text = f"cohort {cohort} after {h.rounds:,} rounds, {h.clock / 3600:,.2f} {clock(run.facts)} h ({h.stop})"
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
