"""BatchNorm: every engine has the same running statistics, counters and models, and says the same of a batch of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.engines.test_algorithms import CPU, assert_alike, federate
from tests.zoo import Steps
from torch import Tensor, nn

import cpfl
from cpfl.data.given import Given
from cpfl.engines import create
from cpfl.engines.lanes import LaneEngine, scheduler, why_not_lanes
from cpfl.engines.lanes.model import LaneModel
from cpfl.engines.lanes.probe import masks
from cpfl.errors import ModelError, SettingError
from cpfl.federation import local_training
from cpfl.kernels import batch_norm
from cpfl.method import open_sessions
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

SETTINGS: dict[str, Any] = {
    "precision": "float64", "clients": 9, "cohorts": 3, "max_rounds": 3, "data.train_limit": 300, "data.alpha": 1,
    "federation.batch_size": 8, "federation.lr": 0.05,
}  # fmt: skip
LOCAL = {"federation.batch_stats": "local"}
ELEVEN = {"data.split": "iid", "data.train_limit": 99, "data.validation": 0, "federation.batch_size": 10}  # a client
CASES: dict[str, dict[str, Any]] = {
    "momentum, two epochs": {"local_epochs": 2, "momentum": 0.9},
    "by samples": {"weights": "samples", "participation": 0.7},
    "partial work": {"deadline": 4, "straggler_policy": "partial", "local_epochs": 2},
    "of other weights": {"server": "fednova", "local_epochs": 2},
    "per-client state": {"client": "scaffold", "server": "fedadam"},
    "all models": {"server": "median", "max_update_norm": 0.1},
}


class Normed(nn.Module):
    """Layers before and after a convolution; one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.before, self.after = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.conv(self.before(x))).relu()
        return self.last(self.after(x).flatten(1))  # type: ignore[no-any-return]


def vectors() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def task_of(model: Any = Normed, **settings: Any) -> Task:
    return build_task(
        experiment_file.with_settings(cpfl.Experiment(), SETTINGS | settings, strict=False), [], Given(), model
    )


@pytest.mark.parametrize("case", CASES)
def test_engines_are_equal(case: str) -> None:
    task = task_of(**{f"federation.{key}": value for key, value in CASES[case].items()})
    sizes = task.data.clients.training_sizes
    assert sizes.max() > 2 * sizes.min()
    assert (sizes % 8 > 0).any()  # shorter batches
    assert why_not_lanes(task, CPU) == ""
    plain = federate(task, "reference")
    for engine in ("workers", "lanes"):
        for ours, theirs in zip(federate(task, engine), plain, strict=True):
            assert_alike(ours, theirs)
    for session in plain:
        model = session.model
        assert model["after.num_batches_tracked"] == 2 * model["before.num_batches_tracked"] > 0
        assert float((model["after.running_var"] - 1).abs().min()) > 0


def test_cohorts_of_one_size_are_added_up_alike() -> None:
    """Clients of a cohort that end together are collected at once, with entries that stay empty."""
    task = task_of(**{"data.split": "iid", "cohorts": 2, "clients": 10})
    plain, sessions = federate(task, "reference"), open_sessions(task)
    LaneEngine(task, CPU, 9).train_cohorts(
        sessions, lambda session, closed: vars(session).setdefault("lines", []).append(vars(closed.record))
    )
    for ours, theirs in zip(sessions, plain, strict=True):
        assert_alike(ours, theirs)


def test_a_move_to_the_small_lanes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "QUIET_STEPS", 1)
    task = task_of(**{"cohorts": 1, "data.alpha": 0.1, "federation.batch_size": 4})
    engine, sessions, plain = LaneEngine(task, CPU, 6), open_sessions(task), federate(task, "reference")
    engine.small_count = 3
    engine.train_cohorts(
        sessions, lambda session, closed: vars(session).setdefault("lines", []).append(vars(closed.record))
    )
    assert "_small" in vars(engine)
    for ours, theirs in zip(sessions, plain, strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("how", [{}, LOCAL], ids=["average", "local"])
def test_from_a_checkpoint(how: dict[str, Any]) -> None:
    """Two rounds on lanes, and the rest in new sessions on lanes."""
    task, short = task_of(**how), task_of(max_rounds=2, **how)
    plain = federate(task, "reference")
    sessions = open_sessions(task)
    for begun, session in zip(federate(short, "lanes"), sessions, strict=True):
        states, numbers = begun.state()
        session.restore(states, numbers | {"stopped": ""})
    for ours, theirs in zip(federate(task, "lanes", sessions), plain, strict=True):
        vars(theirs)["lines"] = vars(theirs)["lines"][2:]
        assert_alike(ours, theirs)


@pytest.mark.parametrize("engine", ["reference", "workers", "lanes"])
def test_a_batch_of_one_is_told(engine: str) -> None:
    """Of one sample there is no variance: torch's sentence, with the client that has such a batch."""
    task = task_of(vectors, **ELEVEN)
    assert set(task.data.clients.training_sizes.tolist()) == {11}
    words = r"cannot take a batch of 1 \(client \d\): Expected more than 1 value per channel .*\[1, 64\]"
    with pytest.raises(ModelError, match=words):
        federate(task, engine)


def test_images_are_several_values() -> None:
    task = task_of(**ELEVEN)
    assert LaneModel(task, CPU).stats.refusal == ""
    for ours, theirs in zip(federate(task, "lanes"), federate(task, "reference"), strict=True):
        assert_alike(ours, theirs)


def test_updates_of_different_age_are_left_to_the_reference_engine() -> None:
    reason = why_not_lanes(task_of(**{"federation.buffer_size": 2}), CPU)
    assert reason == "running statistics of BatchNorm have no age there, which federation.buffer_size counts"


def test_samples_in_another_order_are_noticed() -> None:
    """Also in a new model that answers with zeros."""
    x = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        assert masks(Steps(), x)
        assert not masks(Steps(time_first=True), x)


def test_an_idle_lane_changes_no_statistics() -> None:
    layer = nn.BatchNorm1d(3)
    batch_norm.mask(layer)
    state = {"filled": torch.zeros(4), **{name: torch.rand(3) for name in ("running_mean", "running_var")}}
    before = dict(state)
    out = torch.func.functional_call(layer, state, (torch.randn(4, 3),))
    assert out.isfinite().all()
    for name, value in before.items():
        assert torch.equal(state[name], value)


def test_what_a_gpu_compiles_is_the_same() -> None:
    task = task_of()
    model = LaneModel(task, CPU)
    params_LP, stats_LQ = (
        rows.repeat(2, 1) for rows in (model.layout.row(task.start, CPU), model.stats.row(task.start, CPU))
    )
    x, y = task.data.inputs(4), torch.as_tensor(task.data.train.y)[:4]
    assert isinstance(x, Tensor)
    batch = torch.stack([x, x]), torch.stack([y, y]), torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]]).double()
    whole = torch.compile(model.losses, dynamic=False, fullgraph=True, backend="aot_eager")
    params = model.layout.views(params_LP)
    plain = model.losses(params, stats_LQ, *batch)
    for found, expected in zip(whole(params, stats_LQ, *batch), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not torch.equal(plain[1][0], plain[1][1])


LOCAL_CASES: dict[str, dict[str, Any]] = {
    "momentum, two epochs": CASES["momentum, two epochs"],
    "by samples": CASES["by samples"],
    "partial work": CASES["partial work"],
    "fedprox": {"client": "fedprox", "participation": 0.7},
}


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_engines_are_equal_where_it_stays_with_clients(case: str) -> None:
    task = task_of(**LOCAL, **{f"federation.{key}": value for key, value in LOCAL_CASES[case].items()})
    plain = federate(task, "reference")
    for engine in ("workers", "lanes"):
        for ours, theirs in zip(federate(task, engine), plain, strict=True):
            assert_alike(ours, theirs)


def test_lanes_forget_the_clients_of_other_sessions() -> None:
    task = task_of(**LOCAL)
    engine, plain = LaneEngine(task, CPU, 3), federate(task, "reference")
    for _ in range(2):
        sessions = open_sessions(task)
        engine.train_cohorts(
            sessions, lambda session, closed: vars(session).setdefault("lines", []).append(vars(closed.record))
        )
        for ours, theirs in zip(sessions, plain, strict=True):
            assert_alike(ours, theirs)


def test_fedbn_by_hand() -> None:
    """Two clients of one cohort: their own BatchNorm from round to round, the mean of everything else."""
    task = task_of(**LOCAL, **{"cohorts": 1, "clients": 2, "data.train_limit": 60, "max_rounds": 3})
    module, model, own = task.build().double(), task.start, dict[int, dict[str, Tensor]]()
    x, y = task.data.train.x, torch.as_tensor(task.data.train.y)
    for number in (1, 2, 3):
        ends = []
        for client in (0, 1):
            module.load_state_dict({**model, **own.get(client, {})})
            samples = task.data.clients[client].training
            federation, seed = task.experiment.federation, task.experiment.seed
            for batch in local_training.batches(federation, len(samples), seed, client, number):
                inputs = task.data.transform(torch.as_tensor(x[samples[batch]]))
                module.zero_grad()
                nn.functional.cross_entropy(module.train()(inputs), y[samples[batch]]).backward()
                torch.optim.SGD(module.parameters(), lr=0.05).step()
            ends.append({name: value.clone() for name, value in module.state_dict().items()})
            own[client] = {name: value for name, value in ends[-1].items() if name.startswith(("before", "after"))}
        model = {name: (value + ends[1][name]) / 2 for name, value in ends[0].items()}
        model |= {name: value for name, value in ends[0].items() if name.endswith("tracked")}
    (session,) = federate(task, "reference")
    for name, value in session.model.items():
        torch.testing.assert_close(value, model[name], rtol=0, atol=1e-12)
    for client, state in session.algorithm_state.clients.items():
        assert state.keys() == own[client].keys()
        for name, value in state.items():
            torch.testing.assert_close(value, own[client][name], rtol=0, atol=1e-12)
    assert not torch.equal(own[0]["after.weight"], own[1]["after.weight"])


def test_where_it_cannot_stay_with_clients() -> None:
    with pytest.raises(SettingError, match="has no effect here: it needs a model with BatchNorm layers"):
        task_of(nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10)), **LOCAL)
    for key, value in (("client", "scaffold"), ("server", "fedavgm"), ("max_update_norm", 1), ("buffer_size", 2)):
        with pytest.raises(SettingError, match=f"{key}.*batch_stats|batch_stats.*{key}"):
            task_of(**LOCAL, **{f"federation.{key}": value})


@pytest.mark.parametrize("engine", ["workers", "lanes"])
def test_what_stays_with_clients_must_fit(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four numbers of each of five channels, and two counters, of nine clients."""
    task, numbers = task_of(**LOCAL), 9 * (4 * 5 + 2) * 8
    monkeypatch.setattr(create, "memory", lambda device: numbers)
    create.create_engine(engine, task, CPU, print, 1)
    monkeypatch.setattr(create, "memory", lambda device: numbers - 1)
    with pytest.raises(SettingError, match=r"batch_stats.*needs memory for the BatchNorm layers of each of 9 clients"):
        create.create_engine(engine, task, CPU, print, 1)
