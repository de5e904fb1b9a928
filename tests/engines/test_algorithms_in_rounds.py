"""Algorithms in rounds that do not go to plan: equal on all engines, and what goes with nothing is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Command
from tests.engines.test_algorithms import ALGORITHMS, assert_alike, federate, problem_of

import cpfl
from cpfl.engines import choice, room
from cpfl.engines.gathering import Gathering
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.stack import Layout
from cpfl.errors import SettingError
from cpfl.experiment import Experiment, Federation
from cpfl.federation import parts
from cpfl.federation.local_part import LocalPart
from cpfl.federation.memory import Memory
from cpfl.federation.reports import Origin, Work
from cpfl.federation.server_part import ServerPart

PARTIAL = {"deadline": 3, "late": "partial", "local_epochs": 2}
CHOSEN = {"participation": 0.5, "selection": "oort"}
STALE = {"participation": 0.4, "over_selection": 1.0, "late": "stale"}
BUFFER = {"buffer": 2, "concurrency": 3}
CASES: dict[str, dict[str, Any]] = {
    **{f"{name}, partial work": ALGORITHMS[name] | PARTIAL for name in ("scaffold", "feddyn", "fednova", "cosine")},
    **{f"{name}, partial work": ALGORITHMS[name] | PARTIAL for name in ("adam", "median", "fedyogi")},
    **{f"{name}, chosen": ALGORITHMS[name] | CHOSEN for name in ("scaffold", "fedprox", "fedyogi", "krum")},
    **{f"{name}, stale": ALGORITHMS[name] | STALE for name in ("fedprox", "fedavgm", "fedyogi", "bounded updates")},
    **{f"{name}, buffer": ALGORITHMS[name] | BUFFER for name in ("adamw", "fedadagrad", "step", "clipped")},
}


@pytest.mark.parametrize("case", CASES)
def test_engines_are_equal(case: str) -> None:
    problem = problem_of(2, **CASES[case])
    plain = federate(problem, "reference")
    for engine in ("workers", "lanes"):
        for ours, theirs in zip(federate(problem, engine), plain, strict=True):
            assert_alike(ours, theirs)
    lines = [line for session in plain for line in vars(session)["lines"]]
    if case.endswith(("stale", "buffer")):
        assert sum(line["stale"] for line in lines) > 0
    if "partial" in case:  # somebody was cut, and not everybody
        whole = federate(problem_of(2, **(CASES[case] | {"deadline": 1e6})), "reference")
        assert sum(line["samples"] for line in lines) < sum(s.samples for s in whole)


def test_updates_that_are_joined_at_once_take_the_room_of_a_round_s_clients() -> None:
    """Not that of all clients, of whom there may be millions."""
    for case, seats in (({"server": "median", "participants": 2}, 4), ({"buffer": 3}, 6), (STALE, 12)):
        problem = problem_of(2, **case)
        assert problem.experiment.clients == 12
        engine = LaneEngine(problem, torch.device("cpu"), 4)
        assert len(engine._bench.keeping.models_SP) == seats + 1


@pytest.mark.parametrize("engine", ["workers", "lanes"])
def test_rows_of_clients_that_have_no_room_are_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory", lambda device: 50_000)  # bytes
    notes: list[str] = []
    choice.engine(engine, problem_of(2), torch.device("cpu"), notes.append, 1)
    with pytest.raises(
        SettingError, match=r"federation\.local = .scaffold. needs room for a model of each of 12 clients"
    ):
        choice.engine(engine, problem_of(2, local="scaffold"), torch.device("cpu"), notes.append, 1)


def test_fednova_counts_the_steps_that_were_done() -> None:
    """Wang et al. 2020, equation 6, in numpy, with two steps instead of five for one of the clients."""
    part = parts.server_part(Federation(server="fednova", momentum=0.5, weights="samples"))
    rng = np.random.default_rng(0)
    module = torch.nn.Linear(3, 2).double()
    layout = Layout.of(module)
    start = {name: value.detach().clone() for name, value in module.state_dict().items()}
    gathering = Gathering(layout, part, Work(0, 1, [0, 1, 2], start), torch.device("cpu"))
    samples, steps = np.array([30, 50, 20]), np.array([5, 2, 5])
    deltas = rng.normal(size=(3, layout.size))
    x = gathering.start_P.numpy()
    for n, tau, delta in zip(samples, steps, deltas, strict=True):
        state = layout.state(torch.from_numpy(x + delta))
        gathering.add(state, int(n), int(tau))
    rho, p = 0.5, samples / samples.sum()
    a = np.array([sum((1 - rho ** (tau - k)) / (1 - rho) for k in range(tau)) for tau in steps])  # ‖a_i‖₁, term by term
    tau_eff = (p * a).sum()
    assert gathering.result().numpy() == pytest.approx(x + tau_eff * (p / a) @ deltas, abs=1e-12)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_a_server_s_momentum_sees_damped_updates(weights: str) -> None:
    """FedBuff's mean update, Nguyen et al. 2022, then Hsu et al. 2019: both by hand, with memory from before."""
    part = parts.server_part(Federation(server="fedavgm", server_momentum=0.9, weights=weights, buffer=2))
    module = torch.nn.Linear(3, 2).double()
    layout = Layout.of(module)
    state = lambda row: {n: v.clone() for n, v in layout.state(torch.from_numpy(row)).items()}  # noqa: E731
    rng = np.random.default_rng(1)
    now, old, before = (rng.normal(size=layout.size) for _ in range(3))
    ends, sizes = rng.normal(size=(2, layout.size)), np.array([10, 30])
    work = Work(0, 7, [0, 1], state(now), Memory({"momentum": state(before)}), origins={1: Origin(4, state(old))})
    gathering = Gathering(layout, part, Work(**{**vars(work), "rule": "fedbuff"}), torch.device("cpu"))
    gathering.add(state(ends[0]), 10, 1)
    gathering.add(state(ends[1]), 30, 1, work.origins[1])
    share = sizes / sizes.sum() if weights == "samples" else np.full(2, 0.5)
    delta = share[0] * (ends[0] - now) + share[1] * (ends[1] - old) / math.sqrt(1 + 3)
    momentum = 0.9 * before + delta
    assert gathering.result().numpy() == pytest.approx(now + momentum, abs=1e-12)
    assert gathering.memory["momentum"].numpy() == pytest.approx(momentum, abs=1e-12)


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "scaffold, stale": ({"local": "scaffold", **STALE}, ("scaffold", 'late = "stale"')),
    "feddyn, buffer": ({"local": "feddyn", "buffer": 2}, ("feddyn", "buffer")),
    "krum, buffer": ({"server": "krum", "buffer": 2}, ("krum", "buffer")),
    "median, stale": ({"server": "median", **STALE}, ("median", 'late = "stale"')),
    "fednova, stale": ({"server": "fednova", **STALE}, ("fednova", 'late = "stale"')),
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


class Keeps(LocalPart):
    """A part of one's own that keeps rows."""

    keeps_rows = True


class Needs(ServerPart):
    """A part of one's own that needs every update."""

    needs_all = True


@pytest.mark.parametrize(("key", "name"), [("local", "Keeps"), ("server", "Needs")])
def test_parts_of_one_s_own_are_asked_too(key: str, name: str) -> None:
    named = {key: f"{__name__}:{name}"}
    parts.check(Federation(**named))
    with pytest.raises(SettingError, match=f"federation.{key} = .*{name}.* does not go with buffer"):
        parts.check(Federation(buffer=2, **named))


class Weighs(ServerPart):
    """A part of one's own with a say of its own for each client."""

    def weight(self, samples: int, steps: int) -> float:
        return 1 / steps


class Paces(ServerPart):
    """One whose step is of its own length."""

    def pace(self, clients: Any) -> float:
        return 0.5


@pytest.mark.parametrize(("name", "what"), [("Weighs", "weight"), ("Paces", "pace")])
def test_what_age_would_leave_out_is_refused(name: str, what: str, tmp_path: Path) -> None:
    """A weight or a pace that nobody asks for would be a word without meaning."""
    named: dict[str, Any] = {"server": f"{__name__}:{name}"}
    parts.check(Federation(**named))
    for changes, kind in ((BUFFER, "buffer"), (STALE, 'late = "stale"')):
        with pytest.raises(SettingError, match=f"federation.server = .*{name}' has its own {what}.* with {kind}"):
            cpfl.run(Experiment(federation=named | changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_traffic_of_scaffold_is_counted_where_rounds_go_wrong(tmp_path: Path) -> None:
    """Both ways twice the model, for those who count and for those who do not."""
    settings = {
        "max_rounds": 4, "federation.momentum": 0.0, "distillation.epochs": 1, "federation.participation": 0.4,
        "federation.over_selection": 0.5, "devices.crash_rate": 0.3,
    }  # fmt: skip
    run = cpfl.run(
        "digits", out=tmp_path / "run", engine="workers", device="cpu",
        settings=settings | {"federation.local": "scaffold"},
    )  # fmt: skip
    size = json.loads((run.path / "run.json").read_text())["model_bytes"]
    lost = 0
    for record in run.rounds:
        lost += record.get("wasted_bytes", 0)
        useful = record["bytes"] - record.get("wasted_bytes", 0)
        assert useful == 2 * 2 * size * len(record["participants"])
        assert record.get("wasted_bytes", 0) % (2 * size) == 0
    assert lost > 0
