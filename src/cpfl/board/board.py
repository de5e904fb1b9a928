"""The board: follows every run in a folder and tells what the page shows; bounded work, however often it is asked."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cpfl.board.following import Followed
from cpfl.board.live import COMPARED, drawn_here, live
from cpfl.errors import CpflError
from cpfl.report import page
from cpfl.report.content import Tree, content_of
from cpfl.report.groups import group
from cpfl.report.points import first_seeds
from cpfl.report.reading import shown
from cpfl.report.tables import find_runs

MOST = 8 << 20  # bytes of records that are read at a time; the rest comes next time
OFTEN = 1.0  # seconds between two looks, at least
SHARE = 0.02  # of one core, at most: a look that took long is not repeated soon
AGES = 15.0  # seconds after which "2 min ago" is told anew, though nothing has happened
ADDRESS = "/fresh.json"


class Board:
    """One folder with runs, looked at again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[Path, Followed] = {}
        self._outside: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._tree: Tree = {}
        self._next = self._told = self._spent = 0.0
        self._fresh: tuple[bytes, str] | None = None

    def page(self) -> bytes:
        """The page as it is now."""
        with self._lock:
            self._look()
            return page.render(self._tree, refresh=ADDRESS).encode()

    def fresh(self) -> tuple[bytes, str]:
        """What an open page needs to become the page as it is now, and a tag that tells whether it has changed."""
        with self._lock:
            self._look()
            if self._fresh is None:
                text = json.dumps(page.fresh(self._tree), allow_nan=False, separators=(",", ":")).encode()
                self._fresh = text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'
            return self._fresh

    def _look(self) -> None:
        now = time.monotonic()
        if self._tree and now < self._next:
            return
        began = time.thread_time()
        changed = self._follow()
        if changed or not self._tree or now - self._told > AGES:
            self._told, self._tree, self._fresh = now, self._tell(), None
        self._next = time.monotonic() + self._pause(time.thread_time() - began)

    def _pause(self, spent: float) -> float:
        """Seconds until the next look; what is done once, reading long records or making new charts, does not count."""
        steady, self._spent = min(spent, self._spent), spent
        behind = any(run.left for run in self._runs.values())
        return OFTEN if behind else max(OFTEN, steady / SHARE)

    def _follow(self) -> bool:
        """Read what is new in the folder; whether there was anything."""
        try:
            found = find_runs(self.root)
        except CpflError:  # the folder is gone; it may come back
            found = []
        inside: list[Path] = []
        outside: list[Path] = []
        for path in found:
            (inside if path.resolve().is_relative_to(self.root.resolve()) else outside).append(path)
        self._outside = [(shown(path), f"it is a link that leads out of {shown(self.root)}") for path in outside]
        changed = set(inside) != self._runs.keys()
        self._runs = {path: self._runs.get(path) or Followed(path) for path in inside}
        for run in self._runs.values():
            changed |= run.look()
        most = MOST
        for run in self._wanted():
            read = run.read(most)
            most -= read
            changed |= read > 0
        return changed

    def _wanted(self) -> list[Followed]:
        """Runs whose records are drawn: unfinished ones first, then those that the report draws."""
        runs = self._latest()
        facts = {run.path: facts for run in runs if (facts := run.facts) is not None}
        drawn = {run.folder.path for one in group(facts.values()) for run in first_seeds(one)}
        unfinished = [run for run in self._runs.values() if not run.finished]
        finished = [run for i, run in enumerate(runs) if run.finished and (run.path in drawn or i < COMPARED)]
        return unfinished + [run for run in finished if not run.caught_up]

    def _latest(self) -> list[Followed]:
        """Runs that can be read: unfinished ones, the latest to begin first; then finished ones, the latest to end."""
        runs = [run for run in self._runs.values() if run.facts is not None]
        return sorted(runs, key=lambda run: (run.finished, -(run.ended or run.began), run.path))

    def _tell(self) -> Tree:
        runs = self._latest()
        damaged = [(shown(run.path), run.damage) for run in self._runs.values() if run.damage] + self._outside
        facts = [facts for run in sorted(runs, key=lambda run: run.path) if (facts := run.facts) is not None]
        tree = content_of(facts, damaged)
        tree["live"] = live(self.root, runs, time.time())
        tree["folder"] = shown(self.root)
        _draw_once(tree, drawn_here([run for run in runs if not run.finished]))
        return tree


def _draw_once(tree: Tree, above: Sequence[Followed]) -> None:
    """An experiment whose runs are all drawn above, as they go, need not draw the same curves again."""
    names = {shown(run.path) for run in above}
    for one in tree["groups"]:
        if all(run["path"] in names for run in one["runs"]):
            for section in one["sections"]:
                section["figures"] = [f for f in section["figures"] if not f["id"].endswith("validation-loss")]
            one["sections"] = [section for section in one["sections"] if section["figures"]]
