"""What is going on right now, as a part of the report's tree: runs under way, their latest stops, their curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cpfl.board import figures
from cpfl.board.crew import crew
from cpfl.board.following import Followed
from cpfl.errors import DamagedError
from cpfl.report.content import Tree, figure
from cpfl.report.reading import RunFacts, shown
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.terminal.course import duration, spoken

QUIET = 60.0  # seconds without a record after which a run may have been interrupted
STOPS = 8  # the latest that are listed
CURVES = 400  # in one picture, all runs together
COMPARED = 8  # runs side by side: as many as there are colours
COLUMNS = {
    "cohorts stopped": "stopped",
    "rounds": "rounds",
    "hours": "hours",
    "CPU hours": "cpu_hours",
    "traffic GB": "traffic",
    "samples/s": "speed",
    "still to go": "end",
}


def live(root: Path, runs: Sequence[Followed], now: float) -> Tree:
    """All of it; `runs` with the latest first."""
    going = [run for run in runs if not run.finished]
    left = sum(run.left for run in runs)
    read = sum(tail.read for run in runs for tail in run.tails)
    share = 100 * read // (read + left) if left else 100
    return {
        "sentence": _sentence(runs, going, now),
        "reading": f"Still reading: {share} % of the records are in the pictures." if left else "",
        "columns": list(COLUMNS.items()),
        "runs": [_row(root, run, now) for run in going],
        "stops": _stops(root, going, now),
        "crews": [found for run in going if (found := crew(name(root, run), run.path, now))],
        "figures": _figures(root, runs, going),
    }


def name(root: Path, run: Followed) -> str:
    """The run as the page calls it: its path below the folder that is looked at."""
    return shown(run.path.relative_to(root)) if run.path != root else shown(root.name)


def drawn_here(going: Sequence[Followed]) -> list[Followed]:
    """Unfinished runs that have curves, as many as have room in one picture, but at least one."""
    chosen: list[Followed] = []
    curves = 0
    for run in (run for run in going if any(trail.curve for trail in run.trails)):
        curves += len(run.trails)
        if chosen and curves > CURVES:
            break
        chosen.append(run)
    return chosen


def _sentence(runs: Sequence[Followed], going: Sequence[Followed], now: float) -> str:
    if not runs:
        return "There are no runs in this folder yet; the first one appears here as soon as it begins."
    active = sum(now - run.heard <= QUIET for run in going)
    told = [f"{count} {what}" for count, what in (
        (active, "under way"), (len(going) - active, "unfinished and quiet"), (len(runs) - len(going), "finished"),
    ) if count]  # fmt: skip
    if len(runs) == 1:
        return f"One run, {told[0].removeprefix('1 ')}."
    return f"{len(runs)} runs: {', '.join(told)}."


def _row(root: Path, run: Followed, now: float) -> Tree:
    facts = _facts(run)
    trails, stopped = run.trails, sum(bool(trail.stop) for trail in run.trails)
    kind, state = _state(run, facts, stopped, now)
    speed = run.pace.samples_per_second if kind == "training" else None
    left = None
    if kind == "training":
        left = run.pace.training_left(facts.experiment, facts.about["plan"], trails, _allowed(run.path))
    elif kind == "distilling":
        left = run.pace.distilling_left(facts.experiment.distillation.epochs)
    return {
        "name": name(root, run),
        "n": facts.n,
        "seed": facts.experiment.seed,
        "kind": kind,
        "state": state,
        "done": stopped,
        "cohorts": len(trails),
        "stopped": f"{stopped} of {len(trails)}",
        "rounds": f"{sum(trail.rounds for trail in trails):,}",
        "hours": f"{max((trail.clock for trail in trails), default=0.0) / 3600:,.2f}",
        "cpu_hours": f"{sum(trail.cpu_seconds for trail in trails) / 3600:,.1f}",
        "traffic": f"{sum(trail.bytes for trail in trails) / 1e9:,.2f}",
        "speed": f"{speed:,.0f}" if speed else "–",
        "end": spoken(left).removesuffix(" left") or "–",
    }


def _allowed(path: Path) -> dict[int, float]:
    """What the latest judgement lets each cohort spend, if there was one and a limit."""
    try:
        judged = records.read(RunFolder(path).judgements())
    except DamagedError:  # the run itself will say so
        return {}
    return dict(zip(judged[-1]["cohorts"], judged[-1].get("allowed", []), strict=False)) if judged else {}


def _state(run: Followed, facts: RunFacts, stopped: int, now: float) -> tuple[str, str]:
    if now - run.heard > QUIET:
        return "quiet", f"quiet for {duration(now - run.heard)}; if it was interrupted, cpfl resume goes on"
    if run.epoch or stopped == len(run.trails):
        epochs = facts.experiment.distillation.epochs
        return "distilling", f"distilling, epoch {run.epoch} of {epochs}" if run.epoch else "distilling"
    return "training", "training" if any(trail.rounds for trail in run.trails) else "in its first round"


def _stops(root: Path, going: Sequence[Followed], now: float) -> list[Tree]:
    """The latest; a cohort that has stopped writes no more, so its file tells when."""
    found = [
        (tail.heard, run, cohort, trail)
        for run in going
        for cohort, (tail, trail) in enumerate(zip(run.tails, run.trails, strict=True))
        if trail.stop
    ]
    found.sort(key=lambda stop: -stop[0])
    return [
        {
            "run": name(root, run),
            "cohort": cohort,
            "rounds": f"{trail.rounds:,}",
            "hours": f"{trail.clock / 3600:,.2f}",
            "why": trail.stop,
            "ago": duration(now - heard),
        }
        for heard, run, cohort, trail in found[:STOPS]
    ]


def _figures(root: Path, runs: Sequence[Followed], going: Sequence[Followed]) -> list[Tree]:
    made = []
    shown_here = {name(root, run): run.trails for run in drawn_here(going)}
    if shown_here:
        title = "Validation loss of the cohorts"
        caption = "Every cohort's validation loss as it goes, a dot where it stopped."
        made.append(figure("live-curves", title, caption, figures.curves(shown_here, title)))
    compared = {name(root, run): run.trails for run in runs[:COMPARED]}
    if going and len(compared) > 1:
        title = "Runs side by side"
        caption = "The mean validation loss over the cohorts of each run; a cohort that has stopped keeps its last."
        spec = figures.side_by_side(compared, title)
        if spec["datasets"]["runs"]:
            made.append(figure("live-runs", title, caption, spec))
    return made


def _facts(run: Followed) -> RunFacts:
    assert run.facts is not None, "runs that cannot be read are not shown here"
    return run.facts
