"""Whole runs without training: all is real but the engine, which computes models from numbers. One takes milliseconds,
so that a test can resume from what a kill leaves at every single operation on a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dying
import small_runs
import torch

from cpfl import api
from cpfl.callbacks import Callback
from cpfl.data.given import Given
from cpfl.engines.base import Engine, OnRound
from cpfl.federation.messages import AlgorithmState, ClientResult, RoundRequest, RoundResult
from cpfl.federation.session import Session
from cpfl.models import State
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import describe
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CPU = torch.device("cpu")


class Untrained(Engine):
    """Every result depends on all that a session must remember: models, where clients began, algorithm state."""

    name = "reference"

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        while active := [session for session in sessions if not session.idle]:
            session = min(active, key=lambda one: (one.clock, one.cohort))
            on_round(session, session.close_round(result(session.open_round())))


def result(request: RoundRequest) -> RoundResult:
    """A round that was not trained."""
    clients, before = request.participants, request.algorithm_state
    begun = [request.origin(client).model for client in clients]
    own = {client: shifted(before.clients.get(client, request.model), client + 1) for client in clients}
    model = shifted(mean([*begun, *own.values(), *before.cohort.values()]), request.round)
    news = AlgorithmState({"momentum": shifted(mean([model, *before.cohort.values()]), 3)}, own)
    size = float(sum(model[name].abs().double().mean() for name in sorted(model)))
    squared = 1.0 if request.squared_losses else None
    results = [
        ClientResult(client, 10, 1, size + client / 100, 1 / request.round + size / 100, squared_losses=squared)
        for client in clients
    ]
    return RoundResult(model, results, algorithm_state=news)


def mean(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def shifted(state: State, number: int) -> State:
    return {name: 0.9 * value + 0.01 * number for name, value in state.items()}


def task(settings: Mapping[str, Any]) -> Task:
    """The task of small runs with changed settings."""
    chosen = experiment_file.load("digits", settings=small_runs.settings_with(settings))
    return build_task(chosen, [], Given())


def run(task: Task, path: Path, callback: Callback | None = None) -> Path:
    """Run or resume, as the commands do once they have the task."""
    if (path / "run.json").exists():
        folder = RunFolder.open(path).verify()
        if folder.summary() is not None:
            return path
    else:
        folder = RunFolder.create(path, task.experiment, describe(task, None, Untrained.name))
    api.execute(task, folder, Untrained, CPU, callback or Callback(), (), "started")
    return path


def states(task: Task, folder: Path) -> list[Path]:
    """What a kill leaves of a run at any of its operations on files: different folders, in their order."""
    with dying.copied_states(folder / "run", folder / "before"):
        run(task, folder / "run")
    different = {contents(state): state for state in sorted((folder / "before").iterdir())}
    return sorted(different.values())


def contents(folder: Path) -> str:
    """Equal for folders that hold the same."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(repr((path.relative_to(folder), path.read_bytes() if path.is_file() else None)).encode())
    return digest.hexdigest()
