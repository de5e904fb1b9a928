"""kill -9 in the middle of a tune, and the same command again: the result is that of a tune that was never killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import small_runs
from forked import Forked
from tests.hold import PATH
from tests.tune.small_tunes import SETTINGS

from cpfl.tuning.result import read

COST = {"hours": "0.02", "trials": "5", "points": "4", "batch": "2", "seeds": "1"}
SEARCH = {
    "cohorts": "1,2",
    "meetings.rule": "none,mean",
    "meetings.interval": "20s",
    "federation.local_epochs": "1..4",
    "assignment.rule": "random",
}


def start(out: Path, driver: tuple[str, ...] = ()) -> Forked:
    """The tune as a process."""
    words = ["tune", "digits", "--device", "cpu", "--engine", "reference", "--out", str(out)]
    words += [word for key, value in COST.items() for word in (f"--{key}", value)]
    words += [f"--search={key}={value}" for key, value in SEARCH.items()]
    words += [f"--set={key}={value}" for key, value in SETTINGS.items()]
    program = ("dying:main", ["dying.py", *driver, *words]) if driver else ("cpfl.cli:main", ["cpfl", *words])
    return Forked(*program, small_runs.environment() | PATH)


def content(out: Path) -> dict[str, Any]:
    """What a tune found."""
    return {key: value for key, value in read(out).items() if key != "checksum"}


def test_killed_again_and_again(tmp_path: Path) -> None:
    process = start(tmp_path / "whole")
    _, error = process.communicate()
    assert process.returncode == 0, error
    out = tmp_path / "t"
    operations = [
        "trials/0001/rounds/:3",  # in the first batch
        "tune.json:3",  # it is trained and told
        "journal.log:5",  # while trials are asked for
        "trials/0003/curve.jsonl:2",
        "trials/0004/checkpoints/:3",
        "tests/:9",
    ]
    killed = 0
    for operation in operations:
        process = start(out, ("at", operation))
        _, error = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), (operation, error)
        killed += process.returncode != 0
    assert killed >= 4
    process = Forked("cpfl.cli:main", ["cpfl", "resume", str(out), "--device", "cpu"], small_runs.environment() | PATH)
    _, error = process.communicate()
    assert process.returncode == 0, error
    assert content(out) == content(tmp_path / "whole")
    assert (out / "recommended.toml").read_text() == (tmp_path / "whole" / "recommended.toml").read_text()
