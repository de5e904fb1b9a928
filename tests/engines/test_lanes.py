"""Lanes train what the reference engine trains: whole runs on float64, to rounding."""

from __future__ import annotations

import copy
import functools
import weakref
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import cpfl
from cpfl import models
from cpfl.callbacks import Callback
from cpfl.data.given import Given
from cpfl.engines import create
from cpfl.engines.lanes import LaneEngine, evaluation, graphs, scheduler
from cpfl.engines.lanes.buffers import DeviceBuffers
from cpfl.engines.lanes.engine import alone, steps_of_all
from cpfl.engines.lanes.step import Lanes
from cpfl.federation.session import ClosedRound, Session
from cpfl.method import open_sessions
from cpfl.models.layout import Layout
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

BASE: dict[str, Any] = {
    "precision": "float64", "max_rounds": 4, "data.train_limit": 900, "data.public_limit": 200, "distillation.epochs": 1
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "momentum, ragged": {},
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 40},
    "no momentum": {"federation.momentum": 0.0},
    "partial, by samples": {"federation.participation": 0.4, "federation.weights": "samples"},
    "local steps": {"federation.local_steps": 3},
    "two epochs": {"federation.local_epochs": 2, "max_rounds": 3},
    "batch larger than most clients": {"federation.batch_size": 64},
    "cohorts that stop": {"stopping.patience": 2, "stopping.window": 2, "max_rounds": 40, "federation.lr": 0.3},
    "convolutions": {
        "model.name": "femnist-cnn",
        "max_rounds": 2,
        "clients": 6,
        "cohorts": 2,
        "data.train_limit": 60,
        "data.public_limit": 20,
    },
}


def assert_equal(plain: cpfl.Run, lanes: cpfl.Run) -> None:
    for ours, theirs in zip(lanes.rounds, plain.rounds, strict=True):
        for key, value in theirs.items():
            assert ours[key] == (pytest.approx(value, rel=0, abs=1e-9) if isinstance(value, float) else value), key
    for name, value in plain.model.items():
        torch.testing.assert_close(lanes.model[name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_reference(case: str, tmp_path: Path) -> None:
    runs = [
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ("reference", "lanes")
    ]
    assert runs[1].summary["engine"] == "lanes"
    assert_equal(*runs)


@pytest.mark.parametrize("cohorts", [40, 13])
def test_rounds_that_are_judged_together(cohorts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: several models in one look, read some steps later, and the next round of each begun before."""
    monkeypatch.setitem(evaluation.MODELS, "cpu", 4)
    monkeypatch.setitem(scheduler.AHEAD, "cpu", 6)
    settings = BASE | CASES["cohorts that stop"] | {"cohorts": cohorts}
    runs = [
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=settings)
        for engine in ("reference", "lanes")
    ]
    assert len({len(list(rounds)) for _, rounds in groupby(runs[0].rounds, key=itemgetter("cohort"))}) > 1
    assert_equal(*runs)


def test_as_many_lanes_as_do_the_work_soonest() -> None:
    assert alone([12] * 200, 100) == 24
    assert alone([58, 3, 3, 2], 2) == 58
    assert steps_of_all([[12] * 200], 64) == 48, "a cohort by itself: four waves, the last of eight"
    assert steps_of_all([[12]] * 200, 64) == 38, "200 cohorts: one after the other, no waves"

    def lanes(**settings: Any) -> int:
        experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
        return LaneEngine.default_lanes(build_task(experiment, [], Given()), torch.device("cuda"))

    equal: dict[str, Any] = {"clients": 100, "data.split": "iid"}
    assert lanes(**equal, cohorts=1) == 100
    assert lanes(clients=3, cohorts=3) == 3


def augmented_run(engine: str, validation: bool, place: Path) -> cpfl.Run:
    """A run on small pictures with crop, flip and cutout, of validation images too if so wanted."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 80)
    x = (rng.integers(0, 80, (80, 3, 24, 24)) + 80 * y[:, None, None, None]).astype(np.uint8)
    settings = {
        **BASE, "clients": 8, "max_rounds": 2, "model.name": "gn-lenet", "federation.lr": 0.01,
        "data.augment": "crop-flip-cutout", "data.augment_validation": validation,
        "data.mean": [0.5, 0.4, 0.3], "data.std": [0.2, 0.2, 0.3],
    }  # fmt: skip
    return cpfl.run(
        "digits", train=(x, y), public=x[:20], out=place / engine, engine=engine, device="cpu", settings=settings
    )


@pytest.mark.parametrize("validation", [False, True])
def test_equal_on_augmented_images(validation: bool, tmp_path: Path) -> None:
    assert_equal(*(augmented_run(engine, validation, tmp_path) for engine in ("reference", "lanes")))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_any_number_of_lanes(count: int) -> None:
    """One lane, a few, more than clients wait: the same losses."""
    experiment = cpfl.Experiment(cohorts=3, clients=9, precision="float64", max_rounds=3)
    task = build_task(experiment, [], cpfl.data.federated.Given())
    seen: dict[int, list[tuple[int, int, float]]] = {}
    for lanes in (9, count):
        lines = seen.setdefault(lanes, [])

        def note(session: Session, closed: ClosedRound, lines: list[tuple[int, int, float]] = lines) -> None:
            lines.append((session.cohort, closed.record.round, closed.record.loss))

        LaneEngine(task, torch.device("cpu"), lanes).train_cohorts(open_sessions(task), note)
    for ours, theirs in zip(sorted(seen[count]), sorted(seen[9]), strict=True):
        assert ours == pytest.approx(theirs, rel=0, abs=1e-12)


def test_a_lane_run_repeats_bit_by_bit(tmp_path: Path) -> None:
    runs = [
        cpfl.run("digits", out=tmp_path / name, engine="lanes", device="cpu", settings={"max_rounds": 5})
        for name in ("first", "second")
    ]
    assert runs[0].rounds == runs[1].rounds
    for name, value in runs[0].model.items():
        assert torch.equal(value, runs[1].model[name])


class Noted(Callback):
    """A callback that remembers its messages."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_message(self, text: str) -> None:
        self.notes.append(text)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Wavering(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (nn.Dropout(0.2), "it draws random numbers of its own"),
        (nn.BatchNorm1d(64, momentum=None), "it changes its buffers in training"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), "it changes its buffers in training"),
        (nn.BatchNorm1d(64, track_running_stats=False), "it looks at a batch as a whole in training"),
        (Centred(), "it looks at a batch as a whole"),
        (Wavering(), "data-dependent control flow"),
    ],
    ids=["dropout", "cumulative", "spectral norm", "of this batch alone", "own statistics", "control flow"],
)
def test_models_that_cannot_train_in_lanes(layer: nn.Module, word: str, tmp_path: Path) -> None:
    """One message says so, and they run on the reference engine."""
    callback = Noted()
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(64, 10))
    run = cpfl.run(
        "digits", model=lambda: copy.deepcopy(model), out=tmp_path / "run", engine="lanes", callback=callback,
        settings={"clients": 4, "max_rounds": 2, "distillation.epochs": 1, "federation.batch_size": 500},
    )  # fmt: skip
    reported = [note for note in callback.notes if "cannot train in lanes" in note]
    assert len(reported) == 1
    assert word in reported[0]
    assert run.summary["engine"] == "reference"


def test_auto_takes_workers_without_a_gpu() -> None:
    task = build_task(cpfl.Experiment(), [], cpfl.data.federated.Given())
    assert create.create_engine("auto", task, torch.device("cpu"), print).name == "workers"


def test_layout_is_a_way_there_and_back() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Linear(4, 5))
    layout = Layout.from_module(module)
    row = layout.row(module.state_dict(), torch.device("cpu"))
    assert len(row) == layout.size
    for name, value in layout.state(row).items():
        assert torch.equal(value, module.state_dict()[name])


def test_a_move_to_few_lanes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small lanes are made in the middle of rounds, when some clients have ended and others are in training."""
    monkeypatch.setattr(scheduler, "QUIET_STEPS", 1)
    settings = {**BASE, "cohorts": 1, "max_rounds": 4, "federation.batch_size": 4}
    task = build_task(experiment_file.with_settings(experiment_file.load("digits", []), settings), [], Given())
    records: list[list[dict[str, Any]]] = []
    for few in (0, 3):
        engine = LaneEngine(task, torch.device("cpu"), 6)
        engine.small_count = few
        lines: list[dict[str, Any]] = []
        engine.train_cohorts(
            open_sessions(task), lambda session, closed, lines=lines: lines.append(vars(closed.record))
        )
        assert ("_small" in vars(engine)) == bool(few)  # they were made
        records.append(sorted(lines, key=lambda line: (line["cohort"], line["round"])))
    for ours, theirs in zip(*records, strict=True):
        for key, value in theirs.items():
            assert ours[key] == (pytest.approx(value, rel=0, abs=1e-9) if isinstance(value, float) else value), key


@pytest.mark.parametrize("late", [False, True], ids=["at once", "when half made"])
def test_no_memory_for_the_small_lanes(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried once, nothing is left of them, and the large lanes do all rounds of all calls."""
    monkeypatch.setattr(scheduler, "QUIET_STEPS", 1)
    settings = {"precision": "float64", "cohorts": 2, "max_rounds": 4, "federation.batch_size": 4}
    task = build_task(experiment_file.with_settings(experiment_file.load("digits", []), settings), [], Given())
    begun: list[weakref.ref[Lanes]] = []

    class Short(Lanes):
        def __init__(self, buffers: DeviceBuffers, count: int) -> None:
            begun.append(weakref.ref(self))
            if late:
                super().__init__(buffers, count)
            raise torch.OutOfMemoryError("CUDA out of memory")

    records: list[list[dict[str, Any]]] = []
    for short in (False, True):
        engine = LaneEngine(task, torch.device("cpu"), 6)
        engine.small_count = 3 if short else 0
        with monkeypatch.context() as patch:
            patch.setattr("cpfl.engines.lanes.engine.Lanes", Short)
            for _ in range(2):
                lines: list[dict[str, Any]] = []
                engine.train_cohorts(
                    open_sessions(task), lambda session, closed, lines=lines: lines.append(vars(closed.record))
                )
                records.append(sorted(lines, key=lambda line: (line["cohort"], line["round"])))
        assert len(begun) == short
    assert begun[0]() is None
    assert all(lines == records[0] for lines in records)


def test_other_trouble_with_the_small_lanes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "QUIET_STEPS", 1)
    experiment = cpfl.Experiment(cohorts=1, clients=9, max_rounds=3)
    task = build_task(experiment, [], Given())
    engine = LaneEngine(task, torch.device("cpu"), 6)
    engine.small_count = 3

    def broken(*_: object) -> Lanes:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("cpfl.engines.lanes.engine.Lanes", broken)
    with pytest.raises(RuntimeError, match="mat1"):
        engine.train_cohorts(open_sessions(task), lambda session, closed: None)


def test_out_of_memory_halves_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is too short for more than five lanes, felt first by the compiler and then by torch itself."""
    tried = []

    class Short(LaneEngine):
        def __init__(self, task: Task, device: torch.device, lanes: int = 0) -> None:
            tried.append(lanes or self.default_lanes(task, device))
            if tried[-1] > 5:
                full = torch.OutOfMemoryError("CUDA out of memory")
                raise BackendCompilerFailed(None, full, None) if len(tried) == 1 else full
            super().__init__(task, device, lanes)

    monkeypatch.setattr(create, "LaneEngine", Short)
    notes: list[str] = []
    settings = {"clients": 16, "cohorts": 2, "data.split": "iid"}
    task = build_task(experiment_file.with_settings(experiment_file.load("digits"), settings), [], Given())
    engine = create.create_engine("lanes", task, torch.device("cpu"), notes.append)
    assert engine.name == "lanes"
    assert tried == [16, 8, 4]
    assert notes == ["the device is out of memory for 16 lanes: continuing with 4"]


def test_out_of_memory_leaves_the_kernels_of_another_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    reset: list[int] = []

    class Short(LaneEngine):
        def __init__(self, task: Task, device: torch.device, lanes: int = 0) -> None:
            if made and lanes == self.default_lanes(task, device):
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(task, device, lanes)
            made.append(self.large.count)

    monkeypatch.setattr(create, "LaneEngine", Short)
    monkeypatch.setattr(torch.compiler, "reset", lambda: reset.append(len(made)))
    settings = {"clients": 16, "cohorts": 2, "data.split": "iid", "model.by_cohort": {"1": "femnist-cnn"}}
    task = build_task(experiment_file.with_settings(experiment_file.load("digits"), settings), [], Given())
    engine = create.create_engine("lanes", task, torch.device("cpu"), lambda note: None)
    assert len(made) == 2
    assert not reset
    del engine
    made.append(0)  # memory is short still, but nobody needs the kernels now
    create.create_engine("lanes", task, torch.device("cpu"), lambda note: None)
    assert reset[0] == 3


@pytest.mark.parametrize("device_failed", [False, True])
def test_lanes_that_cannot_be_made(device_failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the compiler fails on a user's model: that is told. A device that fails cannot train in another way."""
    error: Exception = RuntimeError("no kernel for this\nand a long story")
    if device_failed:
        error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    class Broken(LaneEngine):
        def __init__(self, *_: Any) -> None:
            raise error

    monkeypatch.setattr(create, "LaneEngine", Broken)
    notes: list[str] = []
    task = build_task(experiment_file.load("digits"), [], Given())
    if device_failed:
        with pytest.raises(type(error), match="illegal"):
            create.create_engine("lanes", task, torch.device("cpu"), notes.append)
        return
    assert create.create_engine("lanes", task, torch.device("cpu"), notes.append).name == "reference"
    assert notes == ["this model cannot train in lanes, one client at a time instead: no kernel for this"]


def test_convolutions_are_not_chosen_by_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would choose anew, and a run would not repeat."""
    for flag in ("benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, flag, flag == "benchmark")
    models.choose_arithmetic("float32")
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


def test_every_engine_of_a_process_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def backend(graph: Any, inputs: Any, options: dict[str, Any]) -> Any:
        assert options["deterministic"]
        made.append(graph)
        return graph.forward

    class Work:
        def __init__(self, count: int) -> None:
            self._count, self._numbers = count, torch.ones(count + 1)

        def sum(self) -> torch.Tensor:
            return self._numbers[: self._count].sum()

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    assert [int(graphs.faster(Work(count).sum)()) for count in range(1, 13)] == list(range(1, 13))
    assert len(made) == 12
