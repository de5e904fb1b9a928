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
    assert curve.line(20) == LEVELS[::-1]
    assert len(curve.line(4)) == 4
    assert Curve().line(10) == ""


def test_a_flat_curve_and_a_single_value() -> None:
    curve = Curve()
    curve.add(3.0)
    assert curve.line(10) == LEVELS[0]
    curve.add(3.0)
    assert curve.line(10) == 2 * LEVELS[0]


def test_a_long_curve_keeps_its_shape_in_little_memory() -> None:
    curve = Curve()
    for k in range(100_000):
        curve.add(abs(k - 50_000))  # a valley in the middle
    assert len(curve._values) < LONGEST
    line = curve.line(21)
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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 24), (60, 10), (200, 60)])
@pytest.mark.parametrize("cohorts", [1, 18, 200])
def test_any_view_fits_its_screen(width: int, height: int, cohorts: int) -> None:
    experiment, sessions = federation(cohorts, max_rounds=40, stopping={"patience": 30})
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True)
    view = RunView(console, experiment, 1)
    view.on_start(sessions)
    for session in sessions:
        for k in range(40 if session.cohort % 3 == 1 else 20):
            view.on_round(session, close(session, 2.0 - k / 100))
    lines = ["".join(part.text for part in line).rstrip() for line in console.render_lines(view._draw(), pad=False)]
    assert len(lines) <= height
    assert max(map(len, lines)) < width
    rows = [line for line in lines if re.match(r" +\d+ +[24]0 ", line)]
    if len(rows) < cohorts:
        found = re.search(r"and (\d+) more: (\d+) training, (\d+) stopped", lines[-1])
        assert found is not None
        more, training, stopped = map(int, found.groups())
        assert more == training + stopped == cohorts - len(rows)
        assert not any("stopped" in row for row in rows)  # those that still train are shown first
    else:
        assert len(rows) == cohorts
    assert any(LEVELS[-1] in row and LEVELS[0] in row for row in rows)


Screens = list[list[str]]
Stage = tuple[Callable[[Screens], bool], Callable[[], None]]


def screens(words: list[str], rows: int, columns: int, cwd: Path, stages: list[Stage]) -> tuple[Screens, int]:
    """The screens of a real terminal, a few times a second, and the exit code.

    Each stage is a condition on the screens so far, and what to do when it holds.
    """
    pid, handle = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        environment |= PATH
        os.execve(sys.executable, [sys.executable, "-m", "cpfl", *words], environment)
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    seen: Screens = []
    taken = time.monotonic()
    while True:
        ready, _, _ = select.select([handle], [], [], 0.05)
        if ready:
            try:
                content = os.read(handle, 1 << 16)
            except OSError:  # the other side has closed
                break
            stream.feed(content)
        elif time.monotonic() - taken > 0.2:  # not in the middle of a drawing
            taken = time.monotonic()
            seen.append([line.rstrip() for line in screen.display])
            if stages and stages[0][0](seen):
                stages.pop(0)[1]()
    seen.append([line.rstrip() for line in screen.display])
    return seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alive(seen: Screens) -> Screens:
    """Those that show a run in progress."""
    return [screen for screen in seen if any(re.match(r" +cohort +rounds", line) for line in screen)]


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
