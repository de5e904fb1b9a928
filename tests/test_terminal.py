"""What a user sees: curves, estimates, and the screen of a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.hold import PATH, Hold

from cpfl.devices.fleet import Fleet
from cpfl.federation.session import ClientResult, ClosedRound, RoundResult, Session
from cpfl.settings import Experiment
from cpfl.terminal import RunView
from cpfl.terminal import progress as estimates
from cpfl.terminal.progress import LEVELS, LONGEST, Curve, ProgressEstimate, duration, time_left

pyte = pytest.importorskip("pyte", reason="pyte, the terminal that these tests look at, is not installed")


# Curves.


def test_a_curve_falls_from_left_to_right() -> None:
    curve = Curve()
    for k in range(8):
        curve.add(8.0 - k)
    assert curve.line(20, LEVELS, *curve.bounds) == LEVELS[::-1]
    assert len(curve.line(4, LEVELS, *curve.bounds)) == 4
    assert Curve().line(10, LEVELS, 0, 1) == ""


def test_a_flat_curve_and_a_single_value() -> None:
    curve = Curve()
    curve.add(3.0)
    assert curve.line(10, LEVELS, 3, 3) == LEVELS[0]
    curve.add(3.0)
    assert curve.line(10, LEVELS, 3, 3) == 2 * LEVELS[0]
    assert curve.line(10, LEVELS, 1, 3) == 2 * LEVELS[-1]


def test_a_long_curve_keeps_its_shape_in_little_memory() -> None:
    curve = Curve()
    for k in range(100_000):
        curve.add(abs(k - 50_000))  # a valley in the middle
    assert len(curve._values) < LONGEST
    line = curve.line(21, LEVELS, *curve.bounds)
    assert line[0] == line[-1] == LEVELS[-1]
    assert line[10] == LEVELS[0]
    assert list(line[:10]) == sorted(line[:10], reverse=True)


# Estimates.


def federation(cohorts: int, **settings: Any) -> tuple[Experiment, list[Session]]:
    experiment = Experiment(clients=2 * cohorts, cohorts=cohorts, **settings)
    fleet = Fleet(np.linspace(1, 2, 2 * cohorts), np.full(2 * cohorts, 1000.0))
    start = {"w": torch.zeros(1)}
    return experiment, [Session(n, [2 * n, 2 * n + 1], experiment, fleet, 4, start) for n in range(cohorts)]


def close(session: Session, loss: float) -> ClosedRound:
    results = [ClientResult(client, 10, 1, loss, loss) for client in session.open_round().participants]
    return session.close_round(RoundResult({"w": torch.zeros(1)}, results))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Real time, to be set."""
    clock = Clock()
    monkeypatch.setattr(estimates, "time", clock)
    return clock


def test_there_is_no_estimate_before_all_cohorts_have_trained(clock: Clock) -> None:
    experiment, sessions = federation(2)
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    assert progress.seconds_left() is None
    clock.now += 1
    progress.add(sessions[0], close(sessions[0], 1.0))
    assert progress.seconds_left() is None  # the other cohort's throughput is unknown
    assert time_left(None) == ""


@pytest.mark.parametrize("cohorts", [1, 3])
def test_a_fixed_number_of_rounds_is_predicted(clock: Clock, cohorts: int) -> None:
    experiment, sessions = federation(cohorts, stopping={"rule": "rounds", "rounds": 50})
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    for _ in range(10):
        for session in sessions:
            clock.now += 0.5
            progress.add(session, close(session, 1.0))
    left = progress.seconds_left()
    assert left is not None
    assert left.amount == pytest.approx(40 * cohorts * 0.5)
    assert time_left(left) == f"about {duration(20 * cohorts)} left"


def test_a_cpu_budget_that_an_evaluation_has_set_is_the_one_that_counts(clock: Clock) -> None:
    experiment, sessions = federation(
        2, max_rounds=500, stopping={"rule": "joint", "eval_interval": 5, "max_cpu_hours": 1}
    )
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    for session in sessions:
        for _ in range(4):
            clock.now += 1
            progress.add(session, close(session, 1.0))
    first = sessions[0]
    assert first.cpu_budget == 1800
    assert progress.rounds_left(first).most == min(496, math.ceil((1800 - first.cpu_seconds) / (first.cpu_seconds / 4)))
    first.cpu_budget = first.cpu_seconds * 2
    assert progress.rounds_left(first).most == 4


def test_before_a_cohort_stops_the_least_is_told(clock: Clock) -> None:
    """What is told at any time holds at the end, although cohorts stop at different rounds."""
    experiment, sessions = federation(3, max_rounds=200, stopping={"patience": 10, "window": 1})
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    told: list[tuple[float, float]] = []
    lowest = {0: 15, 1: 60, 2: 150}  # the round of each cohort's minimum
    while training := [session for session in sessions if not session.stopped]:
        for session in training:
            clock.now += 0.1  # one after the other: fewer cohorts go faster
            progress.add(session, close(session, 1 + abs(session.round - lowest[session.cohort]) / 100))
        if left := progress.seconds_left():
            assert not left.sure  # no cohort trained longer than these
            assert time_left(left).startswith("at least ")
            told.append((clock.now, left.amount))
    assert len(told) > 50
    for at, least in told:
        assert least <= clock.now - at + 0.5


def test_a_cohort_is_expected_to_train_as_long_as_others(clock: Clock) -> None:
    """One is resumed at its start, where another has stopped after 50 rounds."""
    experiment, sessions = federation(2, max_rounds=200, stopping={"patience": 10, "window": 1})
    while not sessions[0].stopped:
        close(sessions[0], 1 + abs(sessions[0].round - 40) / 100)
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    for _ in range(5):
        clock.now += 0.1
        progress.add(sessions[1], close(sessions[1], 1 - sessions[1].round / 100))
    left = progress.seconds_left()
    assert left is not None
    assert left.sure
    assert left.amount == pytest.approx(0.1 * (sessions[0].round - 5))


def test_limits_in_hours_count(clock: Clock) -> None:
    experiment, sessions = federation(1, stopping={"rule": "budget", "max_hours": 0.01})
    progress = ProgressEstimate(experiment)
    progress.start(sessions)
    clock.now += 1
    progress.add(sessions[0], close(sessions[0], 1.0))
    left = progress.rounds_left(sessions[0])
    each = sessions[0].clock
    assert left.most == pytest.approx((36 - each) / each, abs=1)
    while not sessions[0].stopped:
        close(sessions[0], 1.0)
    assert sessions[0].round == pytest.approx(1 + left.most, abs=2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (80, "80 s"), (100, "2 min"), (7000, "1.9 h"), (10**5, "28 h"), (10**6, "12 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# Screens.


def test_plain_lines_elsewhere() -> None:
    experiment, sessions = federation(2, max_rounds=3)
    out = io.StringIO()
    with RunView(Console(file=out, width=160), experiment, 1) as view:
        view.on_start(sessions)
        for session in sessions:
            while not session.stopped:
                view.on_round(session, close(session, 1.0))
    assert "\x1b" not in out.getvalue()
    assert re.findall(r"cohort (\d) stopped after 3 rounds, .* \(max rounds\)", out.getvalue()) == ["0", "1"]


def drawn(view: RunView, console: Console) -> list[str]:
    """The lines of a view."""
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(view._draw(), pad=False)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 24), (60, 12), (200, 60)])
@pytest.mark.parametrize("cohorts", [1, 18, 200])
def test_any_view_fits_its_screen(width: int, height: int, cohorts: int) -> None:
    experiment, sessions = federation(cohorts, max_rounds=40, stopping={"patience": 30})
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    view = RunView(console, experiment, 1)
    view.on_start(sessions)
    for session in sessions:
        for k in range(40 if session.cohort % 3 == 1 else 20):
            view.on_round(session, close(session, 2.0 - k / 100))
    lines = drawn(view, console)
    assert len(lines) <= height
    assert max(map(len, lines)) < width
    text = "\n".join(lines)
    for word in ("stopped", "rounds", "virtual h", "of real time", "samples/s"):  # nothing of the facts is cut off
        assert word in text
    rows = [line for line in lines if re.match(r" +\d+ +[24]0 ", line)]
    if len(rows) < cohorts:
        found = re.search(r"and (\d+) more: (\d+) training, (\d+) stopped", lines[-1])
        assert found is not None
        more, training, stopped = map(int, found.groups())
        assert more == training + stopped == cohorts - len(rows)
        assert not any("stop" in row for row in rows)  # those that still train are shown first
    else:
        assert len(rows) == cohorts
    for row in rows:  # and nothing of a cohort
        assert row.endswith(("no gain 0/30", "no gain 0 of 30", "stop: max rounds", "stopped: max rounds"))
    assert any(LEVELS[-1] in row for row in rows)


def test_curves_have_one_scale() -> None:
    """The worse cohort is drawn higher, and the one with half of the rounds half as long."""
    experiment, sessions = federation(2, max_rounds=400, stopping={"patience": 300})
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True)
    view = RunView(console, experiment, 1)
    view.on_start(sessions)
    for session, start, rounds in zip(sessions, (1.0, 2.0), (200, 100), strict=True):
        for k in range(rounds):
            view.on_round(session, close(session, start - 0.5 * k / rounds))
    lines = drawn(view, console)
    low, high = (re.search(rf" {session} +\d.*?([{LEVELS}]+)", "\n".join(lines)) for session in (0, 1))
    assert low is not None
    assert high is not None
    assert max(low[1]) < min(high[1])
    assert len(low[1]) == pytest.approx(2 * len(high[1]), abs=1)
    head = next(line for line in lines if "cohort" in line and "loss" in line)
    assert re.search(rf"{LEVELS[0]} 0\.5\d* to {LEVELS[-1]} 2$", head)


def test_meetings_are_counted() -> None:
    settings = {"rule": "mean", "interval": "5 rounds"}
    experiment, sessions = federation(2, max_rounds=400, stopping={"patience": 300}, meetings=settings)
    console = Console(file=io.StringIO(), width=60, height=24, force_terminal=True)
    view = RunView(console, experiment, 1)
    view.on_start(sessions)
    for session in sessions:
        closed = None
        while not session.waiting:
            closed = close(session, 1.0)
            view.on_round(session, closed)
        assert "at the meeting" in "\n".join(drawn(view, console))
    for session in sessions:
        session.phases = 2
    assert "2 meetings" in "\n".join(drawn(view, console))


Screens = list[list[str]]
Stage = tuple[Callable[[Screens], bool], Callable[[], None]]


class Terminal:
    """A real terminal with a program in it: its screens, a few times a second, and all that was sent to it."""

    def __init__(self, words: list[str], rows: int, columns: int, cwd: Path, **environment: str) -> None:
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            own = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **PATH, **environment}
            os.execve(sys.executable, [sys.executable, "-m", "cpfl", *words], own)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.seen: Screens = []
        self.sent = b""
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        """As if somebody pulled at the window."""
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def run(self, stages: list[Stage]) -> int:
        """Its exit code. Each stage is a condition on the screens so far, and what to do when it holds."""
        taken = time.monotonic()
        while True:
            ready, _, _ = select.select([self._handle], [], [], 0.05)
            if ready:
                try:
                    content = os.read(self._handle, 1 << 16)
                except OSError:  # the other side has closed
                    break
                self.sent += content
                self._stream.feed(content)
            elif time.monotonic() - taken > 0.2:  # not in the middle of a drawing
                taken = time.monotonic()
                self._look()
                if stages and stages[0][0](self.seen):
                    stages.pop(0)[1]()
        self._look()
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _look(self) -> None:
        self.seen.append([line.rstrip() for line in self._screen.display])


def screens(words: list[str], rows: int, columns: int, cwd: Path, stages: list[Stage]) -> tuple[Screens, int]:
    """The screens of a program in a terminal, and its exit code."""
    terminal = Terminal(words, rows, columns, cwd)
    code = terminal.run(stages)
    return terminal.seen, code


def alive(seen: Screens) -> Screens:
    """Those that show a run in progress."""
    return [screen for screen in seen if any(re.match(r" *cohort +rounds", line) for line in screen)]


def shown(pattern: str) -> Callable[[Screens], bool]:
    """Whether a line matched."""
    return lambda seen: any(re.search(pattern, line) for screen in alive(seen) for line in screen)


@pytest.mark.parametrize(("columns", "cohorts"), [(80, 4), (160, 40)])
def test_a_run_in_a_real_terminal(tmp_path: Path, columns: int, cohorts: int) -> None:
    settings = [f"cohorts={cohorts}", "max_rounds=60", "stopping.patience=25", "distillation.epochs=2"]
    hold = Hold(tmp_path, 8)  # rounds, until that was seen; then more, and some cohorts stop
    settings += [f"{key}={value}" for key, value in hold.settings({}).items()]
    words = ["run", "digits", "--engine", "reference", *(f"--set={word}" for word in settings), "--out", "r"]
    stops = r"stopped:" if cohorts == 4 else r"and 2\d more: \d+ training, [1-9]\d* stopped"
    stages: list[Stage] = [
        (shown("left"), lambda: hold.allow(50)),
        (lambda seen: shown("no gain")(seen) and shown(stops)(seen) and len(alive(seen)) >= 3, hold.end),
    ]
    seen, code = screens(words, 24, columns, tmp_path, stages)
    assert code == 0
    live = alive(seen)
    assert len(live) >= 3
    for screen in live:
        header = next(line for line in screen if line.startswith("train "))
        assert f"of {cohorts} stopped" in header
    assert any("left" in line for screen in live for line in screen)
    assert any("no gain" in line and LEVELS[0] in line for screen in live for line in screen)
    if cohorts == 4:
        assert any("stopped:" in line for screen in live for line in screen)
        rows = [line for line in live[-1] if re.match(r" +\d+ +\d+ +\d+\.\d\d ", line)]
        assert len(rows) == 4
    else:
        assert any(re.search(r"and 2\d more: \d+ training, \d+ stopped", line) for line in live[-1])
    assert not any(line.startswith("train ") for line in seen[-1])  # the live view is removed, the outcome stays
    assert any(line.startswith("global model") for line in seen[-1])


def test_a_sweep_in_a_real_terminal(tmp_path: Path) -> None:
    hold = Hold(tmp_path, 2, first=1)  # n = 1 ends, n = 2 trains until that was seen
    settings = [f"{key}={value}" for key, value in hold.settings({"max_rounds": 40, "distillation.epochs": 2}).items()]
    words = ["sweep", "digits", "--cohorts", "1,2,4", *(f"--set={word}" for word in settings), "--out", "s"]
    words += ["--engine", "reference"]  # one run after the other: a run that is held would hold those beside it
    wanted = r"^sweep .*1 of 3 runs ended · [\d,]+ rounds · about .* left"

    def reported(seen: Screens) -> bool:
        return any(re.search(wanted, line) for screen in seen for line in screen)

    seen, code = screens(words, 24, 80, tmp_path, [(reported, hold.end)])
    assert code == 0
    assert reported(seen)
    text = "\n".join(seen[-1])
    assert len(re.findall(r"^n = [124], seed 90: ", text, re.MULTILINE)) == 3
    assert "What n costs and gains" in text


def test_the_first_line_comes_before_torch(tmp_path: Path) -> None:
    """With a torch that cannot be imported, what is about to happen is on the screen all the same."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')\n")
    path = f"{tmp_path}{os.pathsep}{PATH['PYTHONPATH']}"
    for words, line in (
        (["run", "digits", "--set", "cohorts=4"], "digits: 40 clients, n = 4, seed 90: loading …"),
        (["sweep", "digits", "--cohorts", "1,2"], "digits: a sweep over n = 1,2: loading …"),
        (["resume", "runs/x"], "resume runs/x: loading …"),
        (["dashboard", "runs"], "dashboard runs: loading …"),
    ):
        terminal = Terminal(words, 24, 80, tmp_path, PYTHONPATH=path)
        assert terminal.run([]) != 0
        shown = [line for line in terminal.seen[-1] if line]
        assert shown[0] == line
        assert any("torch is imported" in line for line in shown[1:])


def test_a_narrow_terminal_without_colour_and_a_resize(tmp_path: Path) -> None:
    """At 60 columns, then wider, then narrow again: every line fits, nothing stays behind, nothing needs a colour."""
    hold = Hold(tmp_path, 8)
    settings = hold.settings({"cohorts": 3, "max_rounds": 30, "stopping.patience": 25, "distillation.epochs": 2})
    words = ["run", "digits", "--engine", "reference", *(f"--set={key}={value}" for key, value in settings.items())]
    terminal = Terminal([*words, "--out", "r"], 20, 60, tmp_path, NO_COLOR="1")
    sizes: list[int] = []

    def look(columns: int | None) -> Callable[[], None]:
        def then() -> None:
            sizes.append(len(terminal.seen))
            if columns:
                terminal.resize(20, columns)
            else:
                hold.end()

        return then

    def drawn_again(pattern: str) -> Callable[[Screens], bool]:
        def check(seen: Screens) -> bool:
            since = alive(seen[sizes[-1] if sizes else 0 :])
            return len(since) >= 3 and any(re.search(pattern, line) for line in since[-1])

        return check

    stages: list[Stage] = [
        (drawn_again(r"no gain \d+/25"), look(110)),
        (drawn_again(r"no gain \d+ of 25"), look(60)),
        (drawn_again(r"no gain \d+/25"), look(None)),
    ]
    code = terminal.run(stages)
    assert code == 0
    assert not stages
    for end in sizes:
        screen = terminal.seen[end - 1]
        assert sum(line.startswith("train ") for line in screen) == 1
        assert sum("cohort" in line and "rounds" in line and "loss" in line for line in screen) == 1
        assert len([line for line in screen if re.match(r" +[012] +\d+ +\d+\.\d\d ", line)]) == 3
        assert "virtual h" in "\n".join(screen)
        assert "of real time" in "\n".join(screen)
    colours = [found for found in re.findall(rb"\x1b\[([\d;]*)m", terminal.sent) if re.search(rb"(^|;)[349]\d", found)]
    assert colours == []
