"""Every algorithm is the same on every engine: whole federations on float64, to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cpfl
from cpfl.data.given import Given
from cpfl.engines.lanes import LaneEngine, scheduler
from cpfl.engines.lanes.step import Lanes
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.errors import SettingError
from cpfl.federation.session import ClosedRound, Session
from cpfl.method import open_sessions
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CPU = torch.device("cpu")
BASE: dict[str, Any] = {
    "precision": "float64",
    "clients": 12,
    "max_rounds": 3,
    "data.train_limit": 300,
    "model.args.hidden": 8,
    "federation.batch_size": 8,
    "federation.participation": 0.7,
    "federation.lr": 0.05,
    "federation.momentum": 0.0,
}
COSINE: dict[str, Any] = {"lr_schedule": "cosine", "lr_schedule_args": {"rounds": 2}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "client_args": {"nesterov": True, "weight_decay": 0.01}},
    "clipped": {"momentum": 0.9, "max_grad_norm": 0.5},
    "adam": {"client": "adam", "lr": 0.01, "client_args": {"weight_decay": 0.01}},
    "adamw": {"client": "adamw", "lr": 0.01, "client_args": {"weight_decay": 0.1}, "max_grad_norm": 1.0},
    "fedprox": {"client": "fedprox", "client_args": {"mu": 0.5}, "momentum": 0.9},
    "scaffold": {"client": "scaffold"},
    "feddyn": {"client": "feddyn", "client_args": {"alpha": 0.1}},
    "step": {"lr_schedule": "step", "lr_schedule_args": {"rounds": 2}},
    "cosine": COSINE | {"warmup_rounds": 2, "client": "scaffold"},
    "cosine adamw": COSINE | {"client": "adamw", "client_args": {"weight_decay": 0.1}},
    "fedavgm": {"server": "fedavgm", "weights": "samples"},
    "fedadagrad": {"server": "fedadagrad"},
    "fedadam": {"server": "fedadam", "client": "scaffold"},
    "fedyogi": {"server": "fedyogi"},
    "fednova": {"server": "fednova", "momentum": 0.9, "weights": "samples"},
    "median": {"server": "median"},
    "trimmed mean": {"server": "trimmed-mean", "server_args": {"trim": 0.3}},
    "krum": {"server": "krum"},
    "multi-krum": {"server": "krum", "server_args": {"num_selected": 2}, "max_update_norm": 0.5},
    "krum, an attacker": {"server": "krum", "server_args": {"num_byzantine": 1, "num_selected": 3}},
    "bounded updates": {"max_update_norm": 0.1, "server": "fedadam"},
}


def task_of(cohorts: int = 3, **federation: Any) -> Task:
    settings = BASE | {"cohorts": cohorts} | {f"federation.{key}": value for key, value in federation.items()}
    return build_task(experiment_file.with_settings(cpfl.Experiment(), settings, strict=False), [], Given())


def federate(task: Task, engine: str, sessions: list[Session] | None = None) -> list[Session]:
    """Sessions at their end, with the records they had on the way."""
    made = {
        "reference": lambda: ReferenceEngine(task, CPU),
        "workers": lambda: WorkerEngine(task, 1),
        "lanes": lambda: LaneEngine(task, CPU, 3),  # fewer lanes than clients: lanes are used again
    }[engine]()
    sessions = sessions or open_sessions(task)

    def on_round(session: Session, closed: ClosedRound) -> None:
        vars(session).setdefault("lines", []).append(vars(closed.record))

    made.train_cohorts(sessions, on_round)
    return sessions


def assert_alike(ours: Session, theirs: Session) -> None:
    for line, other in zip(vars(ours)["lines"], vars(theirs)["lines"], strict=True):
        assert line == {k: pytest.approx(v, rel=0, abs=1e-9) if isinstance(v, float) else v for k, v in other.items()}
    states, others = ours.state()[0], theirs.state()[0]
    assert states.keys() == others.keys()
    for kind, state in others.items():
        assert states[kind].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(states[kind][name], value, rtol=0, atol=1e-9, msg=f"{kind} {name}")


SMALLEST = {"multi-krum": 3, "krum, an attacker": 8}  # clients of a cohort


# At the ends those with memory of clients, with memory of the server, with other learning rates and plain ones; at
# n = 1 also those that need more clients than a cohort of n = 3 has.
ENDS = ("nesterov", "scaffold", "cosine adamw", "fedadam")
AT = [(name, 3) for name in ALGORITHMS if SMALLEST.get(name, 1) <= 4]
AT += [(name, cohorts) for name in ENDS for cohorts in (1, 12)]
AT += [(name, 1) for name, size in SMALLEST.items() if size > 4]


def test_every_algorithm_is_compared() -> None:
    assert {name for name, _ in AT} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("name", "cohorts"), [(name, n) for name, size in SMALLEST.items() for n in (3, 12) if 12 // n < size]
)
def test_too_few_clients_are_refused(name: str, cohorts: int) -> None:
    with pytest.raises(SettingError, match="participants"):
        open_sessions(task_of(cohorts, **ALGORITHMS[name]))


@pytest.mark.parametrize(("name", "cohorts"), AT)
def test_engines_are_equal(name: str, cohorts: int) -> None:
    task = task_of(cohorts, **ALGORITHMS[name])
    sizes = task.data.clients.training_sizes
    assert sizes.max() > 3 * sizes.min()  # ragged
    plain = federate(task, "reference")
    for engine in ("workers", "lanes"):
        for ours, theirs in zip(federate(task, engine), plain, strict=True):
            assert_alike(ours, theirs)


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "bounded updates", "krum"])
@pytest.mark.parametrize("cohorts", [1, 2])
def test_many_of_a_cohort_end_at_once(name: str, cohorts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one size: those of a cohort are collected at once, with entries that stay empty."""
    calls = list[int]()
    collect = Lanes._collect_cohort
    monkeypatch.setattr(Lanes, "_collect_cohort", lambda lanes: (calls.append(1), collect(lanes))[1])
    settings = BASE | {f"federation.{k}": v for k, v in ALGORITHMS[name].items()}
    settings |= {"cohorts": cohorts, "data.split": "iid", "max_rounds": 4}
    task = build_task(experiment_file.with_settings(cpfl.Experiment(), settings), [], Given())
    plain, sessions = federate(task, "reference"), open_sessions(task)
    LaneEngine(task, CPU, 9).train_cohorts(
        sessions, lambda session, closed: vars(session).setdefault("lines", []).append(vars(closed.record))
    )
    assert bool(calls) == (name != "krum")  # which must see every model
    for ours, theirs in zip(sessions, plain, strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "krum"])
def test_any_number_of_workers_gives_the_same_bits(name: str) -> None:
    task = task_of(3, **ALGORITHMS[name])
    one = federate(task, "workers")
    sessions = open_sessions(task)
    WorkerEngine(task, 3).train_cohorts(sessions, lambda session, closed: None)
    for ours, theirs in zip(sessions, one, strict=True):
        states, others = ours.state()[0], theirs.state()[0]
        assert states.keys() == others.keys()
        assert all(torch.equal(states[k][n], value) for k, state in others.items() for n, value in state.items())


class Tied(nn.Module):
    """Statistics of batches beside the parameters, and two names for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.flatten(1))
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedadam", "median", "bounded updates"])
def test_models_with_buffers_and_tied_parameters(name: str) -> None:
    settings = BASE | {"federation.local_steps": 2} | {f"federation.{k}": v for k, v in ALGORITHMS[name].items()}
    task = build_task(
        experiment_file.with_settings(cpfl.Experiment(), settings | {"data.train_limit": 600, "data.split": "iid"}),
        [],
        Given(),
        Tied,
    )
    plain, workers = (federate(task, engine) for engine in ("reference", "workers"))
    for ours, theirs in zip(workers, plain, strict=True):
        assert_alike(ours, theirs)
        assert torch.equal(ours.model["first.weight"], ours.model["second.weight"])
        assert float(ours.model["norm.running_var"].min()) > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_is_another(name: str) -> None:
    """Each setting changes the trained model, or it would have no meaning."""
    rate = {"lr": ALGORITHMS[name].get("lr", 0.05), "client": ALGORITHMS[name].get("client", "sgd")}
    if name in ("scaffold", "feddyn"):
        rate["client"] = "sgd"
    plain, other = (federate(task_of(1, **s), "reference")[0] for s in (rate, ALGORITHMS[name]))
    assert any((value - other.model[key]).abs().max() > 1e-4 for key, value in plain.model.items())


@pytest.mark.parametrize("name", ["scaffold", "cosine adamw", "fednova"])
def test_a_move_to_the_small_lanes_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small lanes are made in the middle of rounds, when some clients have ended and others are in training."""
    monkeypatch.setattr(scheduler, "QUIET_STEPS", 1)
    task = task_of(2, **ALGORITHMS[name])
    plain = federate(task, "reference")
    engine = LaneEngine(task, CPU, 6)
    engine.small_count = 2
    sessions = open_sessions(task)
    engine.train_cohorts(
        sessions, lambda session, closed: vars(session).setdefault("lines", []).append(vars(closed.record))
    )
    assert "_small" in vars(engine)  # they were made
    for ours, theirs in zip(sessions, plain, strict=True):
        assert_alike(ours, theirs)
