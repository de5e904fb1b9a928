"""Follow a tune: its trials as tiles, and the best of them so far. It reads tune.json and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpfl.dashboard.board import LONGEST, Board, make_board
from cpfl.dashboard.follow import Stamp, stamp
from cpfl.errors import DamagedError, shortened
from cpfl.reports.content import Tree
from cpfl.reports.reading import READ_ERRORS, damage, shown
from cpfl.terminal.progress import duration
from cpfl.user_files import check_readable

FILE = "tune.json"
STATES = {"running": "running", "complete": "done", "pruned": "pruned", "repeated": "repeated", "failed": "failed"}
FINISHED = "finished"
BETTER = {"maximise": max, "minimise": min}


class FollowedTune:
    """The folder of a tune."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""  # what is wrong with it; empty: nothing
        self._stamp: Stamp = None
        self._tree: Mapping[str, Any] = {}

    def update(self) -> bool:
        """Read the file if it has changed; it is always whole."""
        found = stamp(self.path / FILE)
        if found == self._stamp:
            return False
        self._stamp, self.damage = found, ""
        try:
            check_readable(self.path / FILE)
            self._tree = json.loads((self.path / FILE).read_bytes())
            self.board(0.0)
        except (*READ_ERRORS, RecursionError) as error:
            reason = error if isinstance(error, OSError) else DamagedError(f"{self.path / FILE} is damaged: {error!r}")
            self.damage = damage(reason)
        return True

    @property
    def runs(self) -> set[Path]:
        """The run folders of its trials."""
        return {self.path / str(trial["path"]) for trial in self._tree["trials"]}

    @property
    def finished(self) -> bool:
        """Whether nothing of it is to come."""
        return bool(self._tree["state"] == FINISHED)

    def board(self, now: float) -> Board:
        """A tile for every trial, planned ones too."""
        trials, planned = list(self._tree["trials"]), int(self._tree["trials_planned"])
        tiles = [self._tile(trial) for trial in trials]
        numbers = range(len(trials), 0 if self.finished else planned)
        waiting = {"label": "", "colour": "", "text": "", "share": None, "state": "queued"}
        tiles += [waiting | {"name": f"trial {number}", "label": f"trial {number}"} for number in numbers]
        failed = [
            {"name": tile["name"], "reason": shown(str(trial["error"]))}
            for tile, trial in zip(tiles, trials, strict=False)
            if tile["state"] == "failed"
        ]
        ended = sum(tile["state"] not in ("running", "queued") for tile in tiles)
        facts = {"now": shown(str(self._tree["state"]))}
        if self._stamp:
            facts["last written, in real time"] = f"{duration(now - self._stamp[1])} ago"
        if best := self._best(trials):
            facts["best so far, on validation samples"] = f"trial {int(best['number'])}, {self._score(best['best'])}"
        name = shown(self.path.name or self.path.resolve().name)
        return make_board(f"Tune {name}", tiles, (ended, len(tiles)), facts, failed, "trials")

    def _tile(self, trial: Mapping[str, Any]) -> Tree:
        state, best, reference = STATES[trial["state"]], trial["best"], shown(str(trial["reference"]))
        label = ", ".join(filter(None, (f"trial {int(trial['number'])}", reference, shown(str(trial["text"])))))
        text = self._score(best) if best else ""
        if state == "failed":
            text = shown(shortened(str(trial["error"]), LONGEST))
        elif state == "repeated":
            text = f"the same as trial {trial['same_as']}"
        elif best and not trial["feasible"]:
            text += ", outside the limits"
        return {"label": label, "name": label, "colour": "", "state": state, "text": text, "share": None}

    def _score(self, point: Mapping[str, Any]) -> str:
        hours = f"{float(point['hours']):,.2f} virtual h, {float(point['cpu_hours']):,.1f} virtual CPU h"
        return f"{shown(str(self._tree['metric']))} {float(point['accuracy']):.1f} % after {hours}"

    def _best(self, trials: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        ((way, _),) = self._tree["goal"].items()
        known = [trial for trial in trials if trial["feasible"] and trial["best"] and trial["value"] is not None]
        return BETTER[way](known, key=lambda trial: float(trial["value"])) if known else None
