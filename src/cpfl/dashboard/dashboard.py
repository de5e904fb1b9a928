"""The dashboard follows every run in a folder and makes the page; its work is bounded, however often it is polled."""

import hashlib
import json
import threading
import time
from pathlib import Path

from cpfl.dashboard.follow import Followed
from cpfl.dashboard.live import COMPARED, drawn_live, live
from cpfl.errors import CpflError
from cpfl.report.content import Tree, content_of
from cpfl.report.groups import group
from cpfl.report.reading import shown
from cpfl.report.writing import fresh, render
from cpfl.runs.finding import find_runs

MOST = 8 << 20  # bytes of records that one update reads; the next one reads on
INTERVAL = 1.0  # seconds between two updates, at least
SHARE = 0.02  # of one core, at most: an update that took long is not repeated soon
AGES = 15.0  # seconds after which "2 min ago" is rendered again although nothing has changed
ADDRESS = "/fresh.json"


class Dashboard:
    """The page over one folder with runs, updated when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[Path, Followed] = {}
        self._outside: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._tree: Tree = {}
        self._next = self._rendered = self._spent = 0.0
        self._page: bytes | None = None
        self._fresh: tuple[bytes, str] | None = None

    def page(self) -> bytes:
        """The whole page."""
        with self._lock:
            self._update()
            if self._page is None:
                self._page = render(self._tree, refresh=ADDRESS).encode(errors="replace")
            return self._page

    def fresh(self) -> tuple[bytes, str]:
        """What an open page needs to be up to date, and an ETag that changes with it."""
        with self._lock:
            self._update()
            if self._fresh is None:
                text = json.dumps(fresh(self._tree), allow_nan=False, separators=(",", ":")).encode()
                self._fresh = text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'
            return self._fresh

    def _update(self) -> None:
        now = time.monotonic()
        if self._tree and now < self._next:
            return
        began = time.thread_time()
        changed = self._follow()
        if changed or not self._tree or now - self._rendered > AGES:
            self._rendered, self._tree, self._page, self._fresh = now, self._content(), None, None
        # What is done once, reading long records or making new charts, does not count.
        spent = time.thread_time() - began
        steady, self._spent = min(spent, self._spent), spent
        behind = any(run.unread for run in self._runs.values())
        self._next = time.monotonic() + (INTERVAL if behind else max(INTERVAL, steady / SHARE))

    def _follow(self) -> bool:
        """Read what is new in the folder; whether there was anything."""
        try:
            found = find_runs(self.root)
        except CpflError:  # the folder is gone; it may come back
            found = []
        inside = {path for path in found if path.resolve().is_relative_to(self.root.resolve())}
        reason = f"it is a link that leads out of {shown(self.root)}"
        self._outside = [(shown(path), reason) for path in found if path not in inside]
        changed = inside != self._runs.keys()
        self._runs = {path: self._runs.get(path) or Followed(path, self.root) for path in found if path in inside}
        for run in self._runs.values():
            changed |= run.reload()
        most = MOST
        for run in self._wanted():
            read = run.read(most)
            most -= read
            changed |= read > 0
        return changed

    def _wanted(self) -> list[Followed]:
        """Runs whose records are drawn: unfinished ones first, then those that the report draws."""
        runs = self._latest()
        drawn = {run.folder.path for one in group(run.facts for run in runs) for run in one.first_seeds}
        unfinished = [run for run in self._runs.values() if not run.finished]
        finished = [run for i, run in enumerate(runs) if run.finished and (run.path in drawn or i < COMPARED)]
        return unfinished + [run for run in finished if not run.caught_up]

    def _latest(self) -> list[Followed]:
        """Runs that can be read: unfinished ones, the latest to begin first; then finished ones, the latest to end."""
        runs = [run for run in self._runs.values() if not run.damage]
        return sorted(runs, key=lambda run: (run.finished, -(run.ended or run.began), run.path))

    def _content(self) -> Tree:
        runs = self._latest()
        damaged = [(shown(run.path), run.damage) for run in self._runs.values() if run.damage] + self._outside
        tree = content_of([run.facts for run in sorted(runs, key=lambda run: run.path)], damaged)
        tree |= {"live": live(runs, time.time()), "folder": shown(self.root)}
        # An experiment whose runs are all drawn live does not draw the same curves again.
        names = {shown(run.path) for run in drawn_live([run for run in runs if not run.finished])}
        for one in tree["groups"]:
            if all(run["path"] in names for run in one["runs"]):
                for section in one["sections"]:
                    section["figures"] = [f for f in section["figures"] if not f["id"].endswith("validation-loss")]
                one["sections"] = [section for section in one["sections"] if section["figures"]]
        return tree
