"""kill -9 in rounds that do not go to plan: what is under way and what a selection has learnt survive."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import small_runs
from small_runs import Unbroken

CASES: dict[str, dict[str, Any]] = {
    "oort": {
        "clients": 12, "federation.selection": "oort", "federation.participants": 2, "federation.over_selection": 0.5,
        "devices.crash_rate": 0.2,
    },
    "refl, stale": {
        "clients": 12, "federation.selection": "refl", "federation.participants": 1, "federation.over_selection": 1,
        "federation.late": "stale", "devices.availability": "synthetic",
    },
    "fedbuff": {"clients": 12, "federation.buffer": 2, "federation.concurrency": 3},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed(case: str, tmp_path: Path, unbroken: Unbroken) -> None:
    whole, path = unbroken(**CASES[case]), tmp_path / "run"
    words = small_runs.run_words(path, CASES[case])
    killed = small_runs.cpfl(*words, driver=("kill", "100"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (path / "summary.json").exists()
    resumed = small_runs.cpfl("resume", path, "--device", "cpu")
    assert resumed.returncode == 0, resumed.stderr
    assert small_runs.differing(whole, path) == []
