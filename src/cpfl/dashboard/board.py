"""The board: a tile for every run of a sweep, queued ones too, with its state; progress and time left of all."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cpfl.dashboard.follow import Followed
from cpfl.dashboard.state import clock, state_of
from cpfl.dashboard.sweeps import FollowedSweep
from cpfl.dashboard.work import Work, ended_rounds, work_of
from cpfl.errors import shortened
from cpfl.reports.content import Tree
from cpfl.reports.reading import shown
from cpfl.terminal.progress import Expected, duration, time_left, total

TILES = 120  # on one board; the others are counted
LONGEST = 90  # characters of a reason in a tile
MARKS = {
    "done": "✓",
    "pruned": "◐",
    "repeated": "=",
    "running": "▶",
    "quiet": "‖",
    "interrupted": "‖",
    "failed": "✗",
    "queued": "○",
}
ENDED = ("done", "pruned", "repeated")  # a run in another state, but failed, may still change
SAMPLES = "training samples"
ACTIVE = ("training", "distilling")
Found = TypeVar("Found")
Share = tuple[float, float] | None  # work that is done, and all that is expected; None: not known


class Board(NamedTuple):
    """What is known of the runs of a sweep, of the trials of a tune, or of runs that belong to neither."""

    tree: Tree  # for the page
    counts: Counter[str]  # runs by state
    work: Share
    unit: str  # of the work
    works: dict[Path, Work]  # by run, of those that have begun

    @property
    def over(self) -> bool:
        """Whether no run of it will change."""
        return not self.counts.keys() - {*ENDED, "failed"}


def sweep_board(sweep: FollowedSweep, runs: Mapping[Path, Followed], now: float, colours: Mapping[str, str]) -> Board:
    """The board of a sweep; `runs` are those of the folder that the page shows."""
    own = {name: runs[path] for name in sweep.runs if (path := sweep.path / name) in runs}
    works, tiles = _works(sweep, own), []
    for name, settings in sweep.runs.items():
        state, text = _state(sweep, name, own.get(name), now)
        names = {"label": _label(settings), "name": shown(name), "colour": ""}
        tile: Tree = {**names, "state": state, "text": text, "share": None}
        if name in own:
            share = per_cent_of(own[name], works.get(name)) if state == "running" else None
            tile |= {"share": share, "colour": colours.get(own[name].name, "")}
        tiles.append(tile)
    reasons = sweep.failures | {name: run.damage for name, run in own.items() if run.damage}
    failed = [{"name": tile["name"], "reason": shown(reasons[name])}
              for name, tile in zip(sweep.runs, tiles, strict=True) if tile["state"] == "failed"]  # fmt: skip
    wanted = [works.get(name) for name, tile in zip(sweep.runs, tiles, strict=True) if tile["state"] != "failed"]
    running = [own[name] for name, tile in zip(sweep.runs, tiles, strict=True) if tile["state"] == "running"]
    done, left = _progress(wanted)
    facts = {"real time since the start": duration((now if running else sweep.ended or now) - sweep.began)}
    if running and left is not None and not any(run.unread for run in own.values()):
        facts["real time left"] = time_left(_seconds(left, sweep.rate(done, now), running)).removesuffix(" left")
    name = shown(sweep.path.name or sweep.path.resolve().name)
    work = None if left is None else (done, done + left.amount)
    found = {run.path: works[one] for one, run in own.items() if one in works}
    return make_board(f"Sweep {name}", tiles, work, facts if sweep.began else {}, failed)._replace(works=found)


def run_board(runs: Sequence[Followed], now: float, colours: Mapping[str, str]) -> Board:
    """The board of runs that belong to no sweep, the latest first."""
    tiles, works = [], {run.path: work for run in runs if (work := work_of(run)) is not None}
    for run in runs:
        state, text = _run_state(run, now)
        share = per_cent_of(run, works.get(run.path)) if state == "running" else None
        names = {"label": run.name, "name": run.name, "colour": colours.get(run.name, "")}
        tiles.append({**names, "state": state, "text": text, "share": share})
    done, left = _progress([works.get(run.path) for run in runs])
    whole = None if left is None else (done, done + left.amount)
    return make_board("Runs", tiles, whole, {}, [])._replace(works=works)


def make_board(
    title: str,
    tiles: Sequence[Tree],
    work: Share,
    facts: Mapping[str, str],
    failed: Sequence[Tree],
    unit: str = SAMPLES,
) -> Board:
    """A board from its tiles, each with `label`, `name`, `colour`, `state`, `text` and `share`."""
    counts = Counter(tile["state"] for tile in tiles)
    told = sorted(range(len(tiles)), key=lambda i: tiles[i]["state"] in (*ENDED, "queued"))[:TILES]
    tree = {
        "title": title,
        "runs": len(tiles),
        "counts": [{"state": state, "mark": MARKS[state], "count": counts[state]} for state in MARKS if counts[state]],
        "unit": unit,
        "facts": dict(facts),
        "tiles": [tiles[i] | {"mark": MARKS[tiles[i]["state"]]} for i in sorted(told)],
        "more": len(tiles) - len(told),
        "failed": list(failed),
    }
    board = Board(tree, counts, work, unit, {})
    tree["share"] = share_of([board])
    return board


def share_of(boards: Sequence[Board]) -> int | None:
    """The work of boards that is done, in per cent; 100 only when no run will change; None: it is not known."""
    share = per_cent([board.work for board in boards]) if len({board.unit for board in boards}) == 1 else None
    return share if share is None or all(board.over for board in boards) else min(share, 99)


def per_cent(works: Iterable[Share]) -> int | None:
    """Of the work of all: what is done, rounded down; None: not known of one of them."""
    found = list(works)
    if not found or None in found:
        return None
    done, whole = (sum(work[i] for work in found if work) for i in (0, 1))
    return math.floor(100 * done / whole) if whole else None


def _label(settings: Mapping[str, Any]) -> str:
    """What distinguishes a run of a sweep: n, the seed, and the last words of other settings."""
    others = [
        f"{key.rpartition('.')[2]} = {value}" for key, value in settings.items() if key not in ("cohorts", "seed")
    ]
    return ", ".join([f"n = {settings['cohorts']}", f"seed {settings['seed']}", *others])


def _run_state(run: Followed, now: float) -> tuple[str, str]:
    """The state of a run that can be read, as its tile shows it, and a few words."""
    kind, text = state_of(run, now)
    if kind == "done":
        summary = run.facts.summary or {}
        return (
            "done",
            f"{run.facts.metric} {summary['student_accuracy']:.1f} %, {summary['hours']:,.2f} {clock(run.facts)} h",
        )
    if kind == "training" and (rounds := sum(history.rounds for history in run.histories)):
        text = f"training, {rounds:,} rounds"
    return ("running" if kind in ACTIVE else kind), text


def _state(sweep: FollowedSweep, name: str, run: Followed | None, now: float) -> tuple[str, str]:
    if run is not None and run.damage:
        return "failed", shortened(run.damage, LONGEST)
    if run is not None and run.finished:
        return _run_state(run, now)
    if name in sweep.failures:
        return "failed", shown(shortened(sweep.failures[name], LONGEST))
    if sweep.ended and (run is None or run.modified <= sweep.ended):
        return "interrupted", "not begun" if run is None else "cpfl resume continues it"
    return ("queued", "") if run is None else _run_state(run, now)


def per_cent_of(run: Followed, work: Work | None) -> int | None:
    """How far a run has come, in per cent of its training; while it distills, of its epochs."""
    if run.epoch:
        return 100 * run.epoch // run.facts.experiment.distillation.epochs
    return per_cent([(work.done, work.whole)] if work else [])


def _progress(works: Sequence[Work | None]) -> tuple[float, Expected | None]:
    """What is done of the work, and what is left; None: not known of one of the runs."""
    known = [work for work in works if work is not None]
    done = sum(work.done for work in known)
    return done, total(work.left for work in known) if len(known) == len(works) else None


def _seconds(left: Expected, rate: float, running: Iterable[Followed]) -> Expected | None:
    """Real seconds for the rest of the work, or for the longest distillation in progress."""
    epochs = ((run.facts.experiment.distillation.epochs - run.epoch, run.epochs.rate) for run in running if run.epoch)
    distilling = max((open_ / speed for open_, speed in epochs if speed), default=0.0)
    if not rate:
        return None
    seconds = left.times(1 / rate)
    return seconds._replace(amount=max(seconds.amount, distilling))


def _works(sweep: FollowedSweep, own: Mapping[str, Followed]) -> dict[str, Work]:
    """The work of every run of a sweep; of one that has not begun it is that of runs with the nearest n."""
    sound = {name: run for name, run in own.items() if not run.damage}
    finished = [run for run in sound.values() if run.finished]
    ended = {n: ended_rounds(run for run in finished if run.facts.n == n) for n in {run.facts.n for run in finished}}
    works: dict[str, Work] = {}
    for name, run in sound.items():
        work = work_of(run, _nearest(ended, run.facts.n) or [])
        works |= {name: work} if work is not None else {}
    by_n: dict[int, list[Work]] = {}
    for name in [name for name in works if sound[name].finished] or list(works):
        by_n.setdefault(sound[name].facts.n, []).append(works[name])
    for name, settings in sweep.runs.items():
        if name not in works and (like := _nearest(by_n, int(settings["cohorts"]))):
            whole = total(Expected(work.whole, work.left.sure) for work in like)
            works[name] = Work(0.0, whole.times(1 / len(like)))
    return works


def _nearest(by_n: Mapping[int, Found], n: int) -> Found | None:
    """What is known of the n that is nearest in ratio."""
    return by_n[min(by_n, key=lambda other: abs(math.log(other / n)))] if by_n else None
