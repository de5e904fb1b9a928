"""Algorithms in rounds with stragglers: equal on all engines, and combinations without meaning are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Command
from tests.engines.test_algorithms import ALGORITHMS, assert_alike, federate, task_of

import cpfl
from cpfl.engines import create
from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.lanes import LaneEngine
from cpfl.errors import SettingError
from cpfl.federation import optimizers
from cpfl.federation.messages import AlgorithmState, Origin, RoundRequest
from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
from cpfl.models.layout import Layout
from cpfl.settings import Experiment, Federation

PARTIAL = {"deadline": 3, "straggler_policy": "partial", "local_epochs": 2}
SELECTED = {"participation": 0.5, "selection": "oort"}
STALE = {"participation": 0.4, "over_selection": 1.0, "straggler_policy": "stale"}
BUFFER = {"buffer_size": 2, "concurrency": 3}
CASES: dict[str, dict[str, Any]] = {
    **{f"{name}, partial work": ALGORITHMS[name] | PARTIAL for name in ("scaffold", "feddyn", "fednova", "cosine")},
    **{f"{name}, partial work": ALGORITHMS[name] | PARTIAL for name in ("adam", "median", "fedyogi")},
    **{f"{name}, oort": ALGORITHMS[name] | SELECTED for name in ("scaffold", "fedprox", "fedyogi", "krum")},
    **{f"{name}, stale": ALGORITHMS[name] | STALE for name in ("fedprox", "fedavgm", "fedyogi", "bounded updates")},
    **{f"{name}, buffer": ALGORITHMS[name] | BUFFER for name in ("adamw", "fedadagrad", "step", "clipped")},
}


@pytest.mark.parametrize("case", CASES)
def test_engines_are_equal(case: str) -> None:
    task = task_of(2, **CASES[case])
    plain = federate(task, "reference")
    for engine in ("workers", "lanes"):
        for ours, theirs in zip(federate(task, engine), plain, strict=True):
            assert_alike(ours, theirs)
    lines = [line for session in plain for line in vars(session)["lines"]]
    if case.endswith(("stale", "buffer")):
        assert sum(line["stale"] for line in lines) > 0
    if "partial" in case:  # some clients did only a part of their steps, not all
        whole = federate(task_of(2, **(CASES[case] | {"deadline": 1e6})), "reference")
        assert sum(line["samples"] for line in lines) < sum(s.samples for s in whole)


def test_updates_that_are_aggregated_at_once_take_the_memory_of_a_round_s_clients() -> None:
    """Not that of all clients, of whom there may be millions."""
    for case, slots in (({"server": "median", "participants": 2}, 4), ({"buffer_size": 3}, 6), (STALE, 12)):
        task = task_of(2, **case)
        assert task.experiment.clients == 12
        engine = LaneEngine(task, torch.device("cpu"), 4)
        assert len(engine.buffers.algorithm.models_SP) == slots + 1


@pytest.mark.parametrize("engine", ["workers", "lanes"])
def test_client_states_that_do_not_fit_are_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "memory", lambda device: 50_000)  # bytes
    notes: list[str] = []
    create.create_engine(engine, task_of(2), torch.device("cpu"), notes.append, 1)
    with pytest.raises(
        SettingError, match=r"federation\.client = .scaffold. needs memory for a model of each of 12 clients"
    ):
        create.create_engine(engine, task_of(2, client="scaffold"), torch.device("cpu"), notes.append, 1)


def test_fednova_counts_the_steps_that_were_done() -> None:
    """Wang et al. 2020, equation 6, in numpy, with two steps instead of five for one of the clients."""
    part = optimizers.server_optimizer(Federation(server="fednova", momentum=0.5, weights="samples"))
    rng = np.random.default_rng(0)
    module = torch.nn.Linear(3, 2).double()
    layout = Layout.from_module(module)
    start = {name: value.detach().clone() for name, value in module.state_dict().items()}
    aggregator = RoundAggregator(layout, part, RoundRequest(0, 1, [0, 1, 2], start), torch.device("cpu"))
    samples, steps = np.array([30, 50, 20]), np.array([5, 2, 5])
    deltas = rng.normal(size=(3, layout.size))
    x = aggregator.start_P.numpy()
    for n, tau, delta in zip(samples, steps, deltas, strict=True):
        state = layout.state(torch.from_numpy(x + delta))
        aggregator.add(state, int(n), int(tau))
    rho, p = 0.5, samples / samples.sum()
    a = np.array([sum((1 - rho ** (tau - k)) / (1 - rho) for k in range(tau)) for tau in steps])  # ‖a_i‖₁, term by term
    tau_eff = (p * a).sum()
    found = layout.row(aggregator.result()[0], torch.device("cpu")).numpy()
    assert found == pytest.approx(x + tau_eff * (p / a) @ deltas, abs=1e-12)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_a_server_s_momentum_sees_damped_updates(weights: str) -> None:
    """FedBuff's mean update, Nguyen et al. 2022, then Hsu et al. 2019: both by hand, with memory from before."""
    part = optimizers.server_optimizer(
        Federation(server="fedavgm", server_args={"momentum": 0.9}, weights=weights, buffer_size=2)
    )
    module = torch.nn.Linear(3, 2).double()
    layout = Layout.from_module(module)
    state = lambda row: {n: v.clone() for n, v in layout.state(torch.from_numpy(row)).items()}  # noqa: E731
    rng = np.random.default_rng(1)
    now, old, before = (rng.normal(size=layout.size) for _ in range(3))
    ends, sizes = rng.normal(size=(2, layout.size)), np.array([10, 30])
    work = RoundRequest(
        0, 7, [0, 1], state(now), AlgorithmState({"momentum": state(before)}), origins={1: Origin(4, state(old))}
    )
    aggregator = RoundAggregator(
        layout, part, RoundRequest(**{**vars(work), "aggregation": "fedbuff"}), torch.device("cpu")
    )
    aggregator.add(state(ends[0]), 10, 1)
    aggregator.add(state(ends[1]), 30, 1, work.origins[1])
    share = sizes / sizes.sum() if weights == "samples" else np.full(2, 0.5)
    delta = share[0] * (ends[0] - now) + share[1] * (ends[1] - old) / math.sqrt(1 + 3)
    momentum = 0.9 * before + delta
    model, algorithm_state = aggregator.result()
    for found, wanted in ((model, now + momentum), (algorithm_state.cohort["momentum"], momentum)):
        assert layout.row(found, torch.device("cpu")).numpy() == pytest.approx(wanted, abs=1e-12)


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "scaffold, stale": ({"client": "scaffold", **STALE}, ("scaffold", 'straggler_policy = "stale"')),
    "feddyn, buffer": ({"client": "feddyn", "buffer_size": 2}, ("feddyn", "buffer")),
    "krum, buffer": ({"server": "krum", "buffer_size": 2}, ("krum", "buffer")),
    "median, stale": ({"server": "median", **STALE}, ("median", 'straggler_policy = "stale"')),
    "fednova, stale": ({"server": "fednova", **STALE}, ("fednova", 'straggler_policy = "stale"')),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str, cpfl_command: Command, tmp_path: Path) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(SettingError) as error:
        Experiment(federation=settings)
    flat = [word for k, v in settings.items() for word in ("--set", f"federation.{k}={v}")]
    answer = cpfl_command("run", "digits", "--set", "federation.momentum=0", *flat, "--out", "run")
    assert answer.code == 2, answer
    assert len(answer.err.splitlines()) == 1
    for word in words:
        assert word in str(error.value)
        assert word in answer.err
    assert not (tmp_path / "run").exists()


class Keeps(ClientOptimizer):
    """A user's optimizer with per-client state."""

    has_client_state = True


class Needs(ServerOptimizer):
    """A user's optimizer that needs every update."""

    needs_all_models = True


@pytest.mark.parametrize(("key", "name"), [("client", "Keeps"), ("server", "Needs")])
def test_a_user_s_optimizers_are_checked_too(key: str, name: str) -> None:
    named = {key: f"{__name__}:{name}"}
    optimizers.check(Federation(**named))
    with pytest.raises(SettingError, match=f"federation.{key} = .*{name}.* does not go with buffer"):
        optimizers.check(Federation(buffer_size=2, **named))


class Weighs(ServerOptimizer):
    """A user's optimizer with its own weight for each client."""

    def weight(self, samples: int, steps: int) -> float:
        return 1 / steps


class Scales(ServerOptimizer):
    """One that scales its updates."""

    def update_scale(self, clients: Any) -> float:
        return 0.5


@pytest.mark.parametrize(("name", "what"), [("Weighs", "weight"), ("Scales", "update_scale")])
def test_what_staleness_would_ignore_is_refused(name: str, what: str, tmp_path: Path) -> None:
    """A weight or a scale that is never used would have no meaning."""
    named: dict[str, Any] = {"server": f"{__name__}:{name}"}
    optimizers.check(Federation(**named))
    for changes, kind in ((BUFFER, "buffer"), (STALE, 'straggler_policy = "stale"')):
        with pytest.raises(SettingError, match=f"federation.server = .*{name}' has its own {what}.* with {kind}"):
            cpfl.run(Experiment(federation=named | changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_traffic_of_scaffold_is_counted_where_clients_fail(tmp_path: Path) -> None:
    """Both ways twice the model, for those who count and for those who do not."""
    settings = {
        "max_rounds": 4, "federation.momentum": 0.0, "distillation.epochs": 1, "federation.participation": 0.4,
        "federation.over_selection": 0.5, "devices.crash_rate": 0.3,
    }  # fmt: skip
    run = cpfl.run(
        "digits", out=tmp_path / "run", engine="workers", device="cpu",
        settings=settings | {"federation.client": "scaffold"},
    )  # fmt: skip
    size = json.loads((run.path / "run.json").read_text())["model_bytes"]
    lost = 0
    for record in run.rounds:
        lost += record.get("wasted_bytes", 0)
        useful = record["bytes"] - record.get("wasted_bytes", 0)
        assert useful == 2 * 2 * size * len(record["participants"])
        assert record.get("wasted_bytes", 0) % (2 * size) == 0
    assert lost > 0
