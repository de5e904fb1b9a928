"""A resume reports which closed rounds it runs again: those after the last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_runs
from small_runs import Unbroken
from test_checkpoint import Messages

from cpfl import api
from cpfl.runs import records


@pytest.fixture
def trained(tmp_path: Path, unbroken: Unbroken) -> Path:
    """A run that was killed before its distillation."""
    path = Path(shutil.copytree(unbroken(), tmp_path / "run"))
    for name in ("summary.json", "models/global.safetensors"):
        (path / name).unlink()
    return path


def test_rounds_closed_after_the_last_checkpoint_are_reported(trained: Path, unbroken: Unbroken) -> None:
    """As if checkpoints came more rarely: one cohort has none, another one none of its last round."""
    for lost in ("cohort-0000-*", "cohort-0001-round-000005.*"):
        for file in trained.glob(f"checkpoints/{lost}"):
            file.unlink()
    messages = Messages()
    api.resume(trained, device="cpu", callback=messages)
    (logged,) = [line for line in records.read(trained / "log.jsonl") if line["event"] == "run again"]
    assert logged["run_again"] == [
        {"cohort": 0, "first_round": 1, "last_round": 5},
        {"cohort": 1, "first_round": 5, "last_round": 5},
    ]
    assert "closed after the last checkpoint and run again: 6 rounds of 2 cohorts" in messages.texts
    assert small_runs.differing(trained, unbroken()) == []


def test_nothing_is_run_again_where_every_round_has_a_checkpoint(trained: Path) -> None:
    messages = Messages()
    api.resume(trained, device="cpu", callback=messages)
    assert "run again" not in [line["event"] for line in records.read(trained / "log.jsonl")]
    assert not any("run again" in text for text in messages.texts)
