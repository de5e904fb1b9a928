"""Cohort-Parallel Federated Learning: Algorithm 1 of the paper, in its order and its words.

Plan      M clients are split at random into n cohorts.
Federate  Every cohort runs its own FL session, in parallel, until its own stopping rule fires, or the one for all.
Distil    The cohort models become the teachers of one student on public, unlabelled data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from cpfl import legs
from cpfl.distillation.distil import Distilled, distil
from cpfl.distillation.shards import Helpers
from cpfl.distillation.student import EpochRecord
from cpfl.engines.base import Engine
from cpfl.experiment import Distillation
from cpfl.federation.session import Closed, Session
from cpfl.models import threads_for
from cpfl.problem import Problem, check_views
from cpfl.runs import checkpoint, files, records, teachers
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.keeper import Keeper
from cpfl.runs.teachers import Teachers

CPU = torch.device("cpu")


class Watcher(Protocol):
    """Somebody who looks on: a terminal, a test, a tracker."""

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Training begins, or goes on from where these sessions are."""

    def on_round(self, session: Session, closed: Closed) -> None:
        """A cohort closed a round."""

    def on_epoch(self, record: EpochRecord) -> None:
        """The student went through the public set once."""

    def on_note(self, text: str) -> None:
        """Something worth a line happened."""


def cpfl(problem: Problem, folder: RunFolder, engine: Engine, device: torch.device, watcher: Watcher) -> dict[str, Any]:
    """The whole method, into a run folder; goes on from whatever the folder already holds."""
    sessions = plan(problem)
    training = federate(problem, sessions, folder, engine, watcher, device)
    began = time.perf_counter()
    helpers = engine if isinstance(engine, Helpers) else None
    outcome = distil_cohorts(problem, folder, problem.experiment.distillation, folder.path, device, watcher, helpers)
    summary = {
        **outcome,
        "wall_seconds": round(training + time.perf_counter() - began, 3),
        "samples_per_second": round(sum(session.samples for session in sessions) / training, 1),
        "engine": engine.name,
        "device": getattr(engine, "device", device.type),  # of the cohorts, where it is not the student's
    }
    files.write_json(folder.path / "summary.json", summary)  # exists only when all else does
    return summary


def plan(problem: Problem) -> list[Session]:
    """A session for every cohort, all from the same start, or the common one of those that train its model."""
    return [problem.session(cohort) for cohort in range(len(problem.plan))]


def federate(
    problem: Problem,
    sessions: list[Session],
    folder: RunFolder,
    engine: Engine,
    watcher: Watcher,
    device: torch.device = CPU,  # where judgements are made
) -> float:
    """Train every cohort until it stops; the real seconds it took, in all stretches of the run that led here."""
    spent = 0.0
    again: list[dict[str, int]] = []
    for session in sessions:
        restored = checkpoint.restore(folder, session)
        spent = max(spent, restored.wall_seconds)
        for damage in restored.damaged:
            watcher.on_note(f"{damage}; going on from round {session.round}")
        if restored.again:
            last = session.round + restored.again
            again.append({"cohort": session.cohort, "first_round": session.round + 1, "last_round": last})
    if again:
        rounds = sum(one["last_round"] - one["first_round"] + 1 for one in again)
        folder.log("run again", run_again=again)
        watcher.on_note(f"closed after the last checkpoint and run again: {rounds} rounds of {len(again)} cohorts")
    watcher.on_start(sessions)
    began = time.perf_counter()

    with Keeper(folder, problem.experiment.checkpoint_seconds, spent) as keeper:

        def on_round(session: Session, closed: Closed) -> None:
            keeper.keep(session, closed)
            watcher.on_round(session, closed)

        if problem.experiment.stopping.rule == "joint":
            legs.federate(problem, sessions, folder, engine, device, on_round, watcher.on_note)
        else:
            engine.federate(sessions, on_round)
    return spent + time.perf_counter() - began


def distil_cohorts(
    problem: Problem,
    folder: RunFolder,
    settings: Distillation,
    into: Path,
    device: torch.device,
    watcher: Watcher,
    helpers: Helpers | None = None,
) -> dict[str, Any]:
    """Distil the run's cohort models, as these settings choose and join them, into one global model."""
    check_views(problem.data, settings)
    chosen = teachers.choose(folder, settings)
    if all(path == folder.start(i) for i, path in zip(chosen.cohorts, chosen.paths, strict=True)):
        watcher.on_note(f"no cohort has a snapshot before {chosen.hours:.2f} h: these teachers are untrained")
    (into / "summary.json").unlink(missing_ok=True)  # it must never stand beside another model
    with files.explained(into):
        (into / "models").mkdir(parents=True, exist_ok=True)
    records.cut(into / "epochs.jsonl", 0)

    def on_epoch(record: EpochRecord) -> None:
        records.append(into / "epochs.jsonl", asdict(record))
        watcher.on_epoch(record)

    with threads_for(problem.start):
        teach = lambda: map(load_state, chosen.paths)  # noqa: E731
        outcome = distil(problem, teach, chosen.cohorts, settings, device, on_epoch, helpers)
    accuracy = {"accuracy": outcome.student_accuracy}
    files.save_tensors(into / "models" / "global.safetensors", outcome.student, accuracy)
    files.write_json(into / "clients.json", {"clients": outcome.client_accuracies})
    return summarize(problem, chosen, outcome)


def summarize(problem: Problem, chosen: Teachers, outcome: Distilled) -> dict[str, Any]:
    """What a run is held to: accuracy in per cent, virtual hours, CPU hours, GB of 10⁹ bytes."""
    experiment = problem.experiment
    accuracies = outcome.teacher_accuracies
    return {
        "name": experiment.name,
        "cohorts": experiment.cohorts,
        "clients": experiment.clients,
        "seed": experiment.seed,
        "student_accuracy": outcome.student_accuracy,
        "student_accuracy_best_epoch": outcome.best_epoch_accuracy,
        "student_accuracy_per_class": outcome.class_accuracies,
        "teacher_accuracy_mean": statistics.fmean(accuracies),
        "teacher_accuracy_std": statistics.pstdev(accuracies),
        "by_cohort": [{**a, "accuracy": b} for a, b in zip(chosen.accounts, accuracies, strict=True)],
        "ensemble_accuracy": outcome.ensemble_accuracy,
        "teachers": chosen.cohorts,
        "hours": chosen.hours,
        "cpu_hours": chosen.cpu_hours,
        "comm_gb": chosen.comm_gb,
        "wasted_cpu_hours": chosen.wasted_cpu_hours,
        "wasted_gb": chosen.wasted_gb,
        "repeats": chosen.repeats,
        "rounds": chosen.rounds,
        "cut_off": chosen.cut_off,
        "samples": chosen.samples,
        "distill_seconds": round(outcome.seconds, 3),
    }
