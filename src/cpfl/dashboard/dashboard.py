"""The dashboard follows every run in a folder and makes the page; its work is bounded, however often it is polled."""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Container
from pathlib import Path

from cpfl.dashboard.figures import COMPARED, Colours
from cpfl.dashboard.follow import Followed
from cpfl.dashboard.live import busy_runs, live
from cpfl.dashboard.machine import Machine
from cpfl.dashboard.sweeps import FollowedSweep
from cpfl.dashboard.tunes import FILE as TUNE
from cpfl.dashboard.tunes import FollowedTune
from cpfl.errors import CpflError
from cpfl.reports.content import Tree, content_of
from cpfl.reports.groups import Group, group
from cpfl.reports.reading import shown
from cpfl.reports.writing import fresh, render
from cpfl.runs.finding import find_runs
from cpfl.sweeps.grid import FILE as SWEEP

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
        self._sweeps: dict[Path, FollowedSweep] = {}
        self._tunes: dict[Path, FollowedTune] = {}
        self._outside: list[tuple[str, str]] = []
        self._colours, self._machine = Colours(), Machine()
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
        changed |= self._follow_sweeps()
        most = MOST
        for run in self._wanted():
            read = run.read(most)
            most -= read
            changed |= read > 0
        return changed

    def _follow_sweeps(self) -> bool:
        """Read what is new of the sweeps and tunes in the folder, also of one whose first run has not begun."""
        folders = {self.root, *(path.parent for path in self._runs if path != self.root)}
        with contextlib.suppress(OSError):
            folders |= {path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()}
        sweeps = sorted(path for path in folders if (path / SWEEP).is_file())
        tunes = sorted(path for path in folders if (path / TUNE).is_file())
        changed = [sweeps, tunes] != [list(self._sweeps), list(self._tunes)]
        self._sweeps = {path: self._sweeps.get(path) or FollowedSweep(path) for path in sweeps}
        self._tunes = {path: self._tunes.get(path) or FollowedTune(path) for path in tunes}
        for sweep in self._sweeps.values():
            changed |= sweep.update()
        for tune in self._tunes.values():
            changed |= tune.update()
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
        sweeps = [sweep for sweep in self._sweeps.values() if not sweep.damage]
        damaged = [(shown(run.path), run.damage) for run in self._runs.values() if run.damage]
        tunes = [tune for tune in self._tunes.values() if not tune.damage]
        damaged += [(shown(sweep.path), sweep.damage) for sweep in self._sweeps.values() if sweep.damage]
        damaged += [(shown(tune.path), tune.damage) for tune in self._tunes.values() if tune.damage]
        now, machine = time.time(), self._machine.facts() if any(not run.finished for run in runs) else {}
        reported = [run.facts for run in sorted(runs, key=lambda run: run.path)]
        busy = busy_runs(runs, sweeps, now)
        compared = [run for one in group(reported) if _comparable(one, busy) for run in one.runs]
        tree = content_of(compared, damaged + self._outside)
        tree |= {"live": live(runs, sweeps, tunes, self._runs, self._colours, machine, now), "folder": shown(self.root)}
        return tree


def _comparable(one: Group, busy: Container[Path]) -> bool:
    """Whether the report of an experiment says something: two n have finished, or one, and no other will now."""
    finished = {run.n for run in one.runs if run.summary is not None}
    return len(finished) > 1 or (len(finished) == 1 and not any(run.folder.path in busy for run in one.runs))
