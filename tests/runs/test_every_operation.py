"""What a kill leaves at every operation on a file, in every kind of run: resume gives the uninterrupted run's results.

Nothing is trained (untrained.py); test_kill.py kills real processes that train.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import small_runs
import untrained

from cpfl.runs import records, writer

SHARED = ("evaluations.jsonl", "meetings.jsonl")
FEW = {"cohorts": 2, "max_rounds": 2, "distillation.epochs": 1, "data.public_limit": 20}
JOINT = FEW | {
    "max_rounds": 3,
    "stopping.rule": "joint",
    "stopping.eval_interval": 1,
    "stopping.min_gain": 0,
    "snapshots": "10s",
}
MEET = FEW | {"max_rounds": 5, "meetings.rule": "mean", "meetings.interval": "2 rounds", "snapshots": "10s"}
SPARSE = {"checkpoint_seconds": 1000}  # checkpoints at stops only: a resume repeats many rounds
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"max_rounds": 2},
    "snapshots by time": FEW | {"snapshots": "10s"},
    "sparse checkpoints": FEW | SPARSE,
    "written later": FEW | {"max_rounds": 8, "stopping.patience": 8, "checkpoint_seconds": 0.002},
    "joint": JOINT,
    "joint, sparse checkpoints": JOINT | SPARSE,
    "joint, limited": JOINT | {"stopping.metric": "public-agreement", "stopping.max_hours": 0.02},
    "meetings": MEET,
    "meetings at a time, sparse checkpoints": MEET | SPARSE | {"meetings.interval": "15s", "stopping.keep": "ema"},
    "meetings, outer": MEET | {"meetings.rule": "outer"},
    "meetings one by one": MEET | {
        "meetings.rule": "asynchronous", "meetings.rule_args.momentum": 0.5, "max_rounds": 3,
    },
    "joint at meetings": {key: value for key, value in JOINT.items() if key != "stopping.eval_interval"} | {
        "meetings.rule": "mean", "meetings.interval": "1 rounds", "max_rounds": 3, "snapshots": "",
    },
    "meetings, average": MEET | {"federation.server": "fedavgm", "meetings.server_state": "average"},
    "moving average": FEW | {"stopping.keep": "ema"},
    "oort": FEW | {
        "clients": 12, "federation.selection": "oort", "federation.participants": 2, "federation.over_selection": 0.5,
        "devices.crash_rate": 0.2,
    },
    "refl, stale": FEW | {
        "clients": 12, "federation.selection": "refl", "federation.participants": 1, "federation.over_selection": 1,
        "federation.straggler_policy": "stale", "devices.availability": "synthetic",
    },
    "fedbuff": FEW | {"clients": 12, "federation.buffer_size": 2, "federation.concurrency": 3},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_from_every_operation(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAUSE", 0.0005)
    task = untrained.task(KINDS[kind])
    whole = untrained.run(task, tmp_path / "whole")
    states = untrained.states(task, tmp_path / "killed")
    assert len(states) > 15
    assert small_runs.differing(tmp_path / "killed/run", whole) == []
    wrong, together = {}, set()
    for state in states:
        together.add(tuple(len(records.read(state / name)) for name in SHARED))
        untrained.run(task, state)
        if found := small_runs.differing(state, whole):
            wrong[state.name] = found
        if left := [str(path.relative_to(state)) for path in state.rglob(".*.part")]:
            wrong[state.name] = left
        records.read(state / "log.jsonl")
        shutil.rmtree(state)
    assert wrong == {}
    each = [range(len(records.read(whole / name)) + 1) for name in SHARED]
    both = min(map(len, each)) > 1  # an evaluation, then a meeting; otherwise one of the two is empty
    assert together == {pair for pair in itertools.product(*each) if not both or pair[0] - pair[1] in (0, 1)}
