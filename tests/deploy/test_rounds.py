"""Rounds over a grid: invalid answers, missing nodes, strategies, masked sums; nodes run in this process."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Krum, Strategy
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import cpfl
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve
from cpfl.engines.flower import messages
from cpfl.errors import CpflError, SettingError, StalledError
from cpfl.runs import records

from .grid import Nodes, VirtualClock

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 2, (4, 6))


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    return (CENTRES[y] + rng.normal(0, 1, (count, 6))).astype(np.float32), y


TRAIN, TEST, PUBLIC = drawn(240, 1), drawn(100, 2), drawn(100, 3)[0]
BASE = {"clients": 6, "cohorts": 2, "max_rounds": 3, "seed": 3}
SETTINGS = {
    **BASE,
    "federation": {"lr": 0.1, "weights": "samples"},
    "distillation": {"epochs": 2, "batch_size": 32},
    "data": {"split": "iid"},
}


def model() -> torch.nn.Module:
    return torch.nn.Linear(6, 4)


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    mine = cpfl.data.split.split(cpfl.Experiment(**SETTINGS), cpfl.data.given.as_samples(*TRAIN))
    rows = np.sort(
        np.concatenate(
            [mine[int(context.node_config["client"])].training, mine[int(context.node_config["client"])].validation]
        )
    )
    return TRAIN[0][rows], TRAIN[1][rows]


def fault(change: Callable[[str, RecordDict], None]) -> Any:
    """A mod that changes a node's answers."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        change(message.metadata.message_type, reply.content)
        return Message(reply.content, reply_to=message)

    return mod


@pytest.fixture
def nodes() -> Nodes:
    """Six sound nodes, numbers 100 to 105 for clients 0 to 5."""
    grid = Nodes()
    for client in range(6):
        grid.add(100 + client, client_app(model, data), client=client, min_clients=2)
    return grid


def deploy(
    grid: Nodes,
    path: Path,
    strategy: Callable[[int], Strategy] | None = None,
    clock: VirtualClock | None = None,
    **config: Any,
) -> cpfl.Run:
    """One run into a folder."""
    run_config = {"out": str(path), "wait-seconds": 60, "round-seconds": 60, "tries": 2, "device": "cpu", **config}
    context = Context(1, 0, {}, RecordDict(), run_config, 0)
    serve(grid, context, model, TEST, PUBLIC, cpfl.Experiment(**SETTINGS), strategy, clock or VirtualClock())
    return cpfl.load_run(path)


def simulated(path: Path, **settings: Any) -> cpfl.Run:
    return cpfl.run(
        cpfl.Experiment(**SETTINGS), model=model, train=TRAIN, test=TEST, public=PUBLIC, out=path,
        engine="reference", device="cpu", settings=settings,
    )  # fmt: skip


def teachers(run: cpfl.Run) -> list[dict[str, torch.Tensor]]:
    return [load_file(run.path / "models" / f"cohort-{cohort:04d}.safetensors") for cohort in (0, 1)]


def close(one: cpfl.Run, other: cpfl.Run) -> bool:
    pairs = zip(teachers(one), teachers(other), strict=True)
    return all((a[key] - b[key]).abs().max() < 1e-5 for a, b in pairs for key in a)


def test_a_run_is_its_simulation(nodes: Nodes, tmp_path: Path) -> None:
    assert close(deploy(nodes, tmp_path / "real"), simulated(tmp_path / "simulated"))


def test_nodes_with_datasets_and_tables(tmp_path: Path) -> None:
    """A node's torch Dataset or table counts as its arrays do; one with something else takes no part."""

    def dataset(context: Context) -> Any:
        return TensorDataset(*map(torch.as_tensor, data(context)))

    def table(context: Context) -> Any:
        x, y = data(context)
        return pa.table({**{f"x{place}": x[:, place] for place in range(6)}, "label": y})

    def inputs(context: Context) -> Any:
        return data(context)[0]

    grid = Nodes()
    for client in range(6):
        grid.add(100 + client, client_app(model, (dataset, table)[client % 2]), client=client, min_clients=2)
    assert close(deploy(grid, tmp_path / "real"), simulated(tmp_path / "simulated"))
    grid.add(104, client_app(model, inputs), client=4, min_clients=2)
    assert all(4 not in record["participants"] for record in deploy(grid, tmp_path / "other").rounds)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedyogi": {"server": "fedyogi"},
    "fedavgm, adam": {"server": "fedavgm", "client": "adam", "lr": 0.01},
    "fednova": {"server": "fednova"},
    "median": {"server": "median", "weights": "equal"},
    "fedprox, falling rate": {
        "client": "fedprox",
        "client_args.mu": 0.5,
        "lr_schedule": "step",
        "lr_schedule_args.rounds": 1,
        "max_grad_norm": 0.5,
    },
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_their_simulations(nodes: Nodes, tmp_path: Path, name: str) -> None:
    settings = {f"federation.{key}": value for key, value in ALGORITHMS[name].items()}
    real, plain = deploy(nodes, tmp_path / "real", **settings), simulated(tmp_path / "simulated", **settings)
    assert close(real, plain)
    same = close(real, simulated(tmp_path / "fedavg"))
    assert same == (name == "fednova")  # all do as many steps here


@pytest.mark.parametrize("more", [{}, {"meetings.rule": "outer", "meetings.interval": "2 rounds"}])
def test_a_server_optimizers_state_survives_a_break(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """A run that is stopped after its second round, or a meeting, and resumed ends as its simulation does."""
    settings = {"federation.server": "fedavgm", "checkpoint_seconds": 0, "max_rounds": 5} | more

    class Enough(Exception):
        pass

    def stop(self: Any, session: Any, closed: Any) -> None:
        if closed.record.round == 3:
            raise Enough

    with monkeypatch.context() as patch:
        patch.setattr("cpfl.deploy.server.LogCallback.on_round", stop)
        with pytest.raises(Enough):
            deploy(nodes, tmp_path / "real", **settings)
    assert close(deploy(nodes, tmp_path / "real", **settings), simulated(tmp_path / "simulated", **settings))


MEETINGS: dict[str, dict[str, Any]] = {
    "mean": {"meetings.rule": "mean", "meetings.rule_args.weights": "samples"},
    "outer, momentum": {
        "meetings.rule": "outer", "federation.server": "fedavgm", "meetings.server_state": "average",
    },
    "a student": {"meetings.rule": "distill", "meetings.rule_args.epochs": 2},
}  # fmt: skip


def held(run: cpfl.Run) -> list[dict[str, Any]]:
    return records.read(run.path / "meetings.jsonl")


@pytest.mark.parametrize("name", MEETINGS)
def test_meetings_are_their_simulations(nodes: Nodes, tmp_path: Path, name: str) -> None:
    settings = MEETINGS[name] | {"meetings.interval": "2 rounds", "max_rounds": 5}
    real, plain = deploy(nodes, tmp_path / "real", **settings), simulated(tmp_path / "simulated", **settings)
    assert close(real, plain)
    assert not close(real, simulated(tmp_path / "apart", max_rounds=5))
    assert len(held(plain)) == 2
    for ours, theirs in zip(held(real), held(plain), strict=True):
        assert {key: ours[key] for key in ("cohorts", "rounds", "samples", "bytes")} == {
            key: theirs[key] for key in ("cohorts", "rounds", "samples", "bytes")
        }
    for key in ("student_accuracy", "merged_accuracy", "global_gb"):
        assert real.summary[key] == pytest.approx(plain.summary[key])


def test_meetings_at_real_times(nodes: Nodes, tmp_path: Path) -> None:
    """The next round is expected to last as long as the last one; what everybody continues from is the merged model."""

    class Ticking(VirtualClock):
        def now(self) -> float:
            self.seconds += 0.001
            return self.seconds

    settings = {"meetings.rule": "mean", "meetings.interval": "1s", "max_rounds": 60, "federation.lr": 1e-30}
    run = deploy(nodes, tmp_path / "real", clock=Ticking(), **settings)
    met = held(run)
    assert len(met) > 1
    for one in met:
        ends = [
            r["clock"]
            for r in run.rounds
            if r["round"] == dict(zip(one["cohorts"], one["rounds"], strict=True)).get(r["cohort"])
        ]
        assert max(ends) <= one["clock"] + 1e-6
    start = load_file(run.path / "models" / "start.safetensors")
    for state in teachers(run):
        assert all(torch.allclose(value, start[name]) for name, value in state.items())


def test_nobody_waits_in_a_real_fleet(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cohort meets the global model as it comes, while the others train; the same after a break."""
    settings = {"meetings.rule": "asynchronous", "meetings.interval": "2 rounds", "checkpoint_seconds": 0}
    settings |= {"max_rounds": 7, "assignment.rule": "csv", "assignment.rule_args.file": str(tmp_path / "plan.csv")}
    (tmp_path / "plan.csv").write_text("client,cohort\n0,0\n1,1\n2,1\n3,1\n4,1\n5,1\n")

    class Enough(Exception):
        pass

    def stop(self: Any, session: Any, closed: Any) -> None:
        if closed.record.round == 5:
            raise Enough

    with monkeypatch.context() as patch:
        patch.setattr("cpfl.deploy.server.LogCallback.on_round", stop)
        with pytest.raises(Enough):
            deploy(nodes, tmp_path / "real", **settings)
    run = deploy(nodes, tmp_path / "real", **settings)
    met = held(run)
    assert sorted((one["cohorts"][0], one["rounds"][0]) for one in met) == [(i, k) for i in (0, 1) for k in (2, 4, 6)]
    for one in met:
        records_of = [r for r in run.rounds if r["cohort"] == one["cohorts"][0]]
        assert records_of[one["rounds"][0] - 1]["clock"] == one["clock"]
    assert not close(run, simulated(tmp_path / "apart", max_rounds=7))


def test_a_strategy_remembers_across_meetings(nodes: Nodes, tmp_path: Path) -> None:
    few = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    settings = {"meetings.rule": "mean", "meetings.interval": "2 rounds", "max_rounds": 5}
    made = []

    def strategy(cohort: int) -> Strategy:
        made.append(cohort)
        return FedAvg(**few)

    real = deploy(nodes, tmp_path / "real", strategy=strategy, **settings)
    assert sorted(made) == [0, 1]
    assert close(real, simulated(tmp_path / "simulated", **settings))


def test_cohorts_from_a_file(nodes: Nodes, tmp_path: Path) -> None:
    """Cohorts may be given."""
    path = tmp_path / "plan.csv"
    path.write_text("client,cohort\n0,0\n1,0\n2,1\n3,1\n4,1\n5,0\n")
    settings = {"assignment.rule": "csv", "assignment.rule_args.file": str(path)}
    real = deploy(nodes, tmp_path / "real", **settings)
    assert json.loads((real.path / "run.json").read_text())["cohorts"] == [[0, 1, 5], [2, 3, 4]]
    assert close(real, simulated(tmp_path / "simulated", **settings))


@pytest.mark.parametrize("participation", [0.4, 0.7])
def test_with_a_part_of_the_clients_in_every_round(nodes: Nodes, tmp_path: Path, participation: float) -> None:
    """The participants of a round evaluate its model, though others train in the next."""
    words = f"federation.participation={participation}"
    real = deploy(nodes, tmp_path / "real", set=words)
    same = simulated(tmp_path / "simulated", **{"federation.participation": participation})
    assert close(real, same)
    for one, other in zip(real.rounds, same.rounds, strict=True):
        assert one["participants"] == other["participants"]
        assert one["validation"] == pytest.approx(other["validation"], abs=1e-5)


def corrupt(kind: str, content: RecordDict, how: str) -> None:
    if kind != "train" or "arrays" not in content:
        return
    state = messages.state(content["arrays"])
    metrics = dict(content["metrics"])
    match how:
        case "nan":
            state["weight"][0, 0] = math.nan
        case "infinite":
            state["bias"][0] = math.inf
        case "shape":
            state["weight"] = state["weight"].T.contiguous()
        case "type":
            state["weight"] = state["weight"].double()
        case "names":
            state["extra"] = torch.zeros(1)
        case "forged":
            metrics["num-examples"] += 1
        case "huge":
            metrics["num-examples"] = 2**62
        case "negative":
            metrics["num-examples"] = -5
        case "loss":
            metrics["loss"] = math.nan
        case "empty":
            del content["arrays"]
            return
    content["arrays"] = messages.packed(state)
    content["metrics"] = MetricRecord(metrics)


FAULTS = ["nan", "infinite", "shape", "type", "names", "forged", "huge", "negative", "loss", "empty"]


@pytest.mark.parametrize("how", FAULTS)
def test_no_invalid_answer_enters_the_model(nodes: Nodes, tmp_path: Path, how: str) -> None:
    """The round continues without the client, its record names it, and the model is that of the others."""
    bad = 2
    mod = fault(lambda kind, content: corrupt(kind, content, how))
    nodes.add(100 + bad, client_app(model, data, mods=[mod]), client=bad, min_clients=2)
    run = deploy(nodes, tmp_path / "bad")
    sound = Nodes()
    for client in range(6):
        sound.add(100 + client, client_app(model, data), client=client, min_clients=2)
    sound.silent[100 + bad] = "train"
    without = deploy(sound, tmp_path / "without")
    assert close(run, without)
    mine = next(i for i, group in enumerate(json.loads((run.path / "run.json").read_text())["cohorts"]) if bad in group)
    for record in run.rounds:
        named = {int(client) for client in record.get("excluded", {})}
        assert named == ({bad} if record["cohort"] == mine else set())
        assert bad not in record["participants"]


def test_an_invalid_evaluation_does_not_count(nodes: Nodes, tmp_path: Path) -> None:
    def change(kind: str, content: RecordDict) -> None:
        if kind == "train" and "validation" in content["report"]:
            content["report"]["validation"] = -math.inf

    nodes.add(101, client_app(model, data, mods=[fault(change)]), client=1, min_clients=2)
    run = deploy(nodes, tmp_path / "run")
    assert all(math.isfinite(record["validation"]) for record in run.rounds)
    assert any("evaluation" in record.get("excluded", {}).get("1", "") for record in run.rounds)


def test_a_silent_node_is_waited_for_once(nodes: Nodes, tmp_path: Path) -> None:
    """After that it is excluded at once until it answers."""
    nodes.silent[103] = "train"
    run = deploy(nodes, tmp_path / "run")
    reasons = [record["excluded"]["3"] for record in run.rounds if "3" in record.get("excluded", {})]
    assert reasons[0] == "no answer in time"
    assert set(reasons[1:]) == {"still busy with an earlier call"}
    assert (
        sum(message.metadata.dst_node_id == 103 and message.metadata.message_type == "train" for message in nodes.sent)
        == 1
    )


def test_a_node_that_is_lost_in_the_middle_of_a_round(nodes: Nodes, tmp_path: Path) -> None:
    """It is not waited for until the time limit: the SuperLink no longer lists it."""
    count = 0

    def change(kind: str, content: RecordDict) -> None:
        nonlocal count
        count += kind == "train"
        if count > 6:  # after the first round
            nodes.gone.add(104)

    nodes.silent.clear()
    nodes.add(100, client_app(model, data, mods=[fault(change)]), client=0, min_clients=2)
    nodes.add(102, client_app(model, data, mods=[fault(change)]), client=2, min_clients=2)
    nodes.add(105, client_app(model, data, mods=[fault(change)]), client=5, min_clients=2)
    clock = VirtualClock()
    run = deploy(nodes, tmp_path / "run", clock=clock, **{"round-seconds": 10**6})
    assert run.summary["rounds"] == 6
    assert {record["excluded"]["4"] for record in run.rounds if "4" in record.get("excluded", {})}
    assert clock.now() < 10**3


def test_a_late_node_takes_part(nodes: Nodes, tmp_path: Path) -> None:
    """Earlier rounds name it; it takes part from the next round on."""
    late, seen, clock = nodes.apps.pop(105), 0, VirtualClock()

    def arrive(kind: str, content: RecordDict) -> None:
        nonlocal seen
        seen += kind == "train"
        clock.seconds += 2.0 * (kind == "train")  # the server searches for new nodes every few seconds
        if seen == 2:
            nodes.apps[105] = late

    nodes.add(100, client_app(model, data, mods=[fault(arrive)]), client=0, min_clients=2)
    run = deploy(nodes, tmp_path / "run", clock=clock, set="max_rounds=12")
    mine = [record for record in run.rounds if record["cohort"] == cohort_of(run, 5)]
    assert mine[0]["excluded"] == {"5": "not enrolled yet"}
    assert 5 in mine[-1]["participants"]


def test_a_node_that_is_slow_to_enrol_takes_part(nodes: Nodes, tmp_path: Path) -> None:
    """It has not answered when the others begin; once it has, it is asked again."""
    seen, clock = 0, VirtualClock()
    nodes.silent[105] = "query.enrol"

    def wake(kind: str, content: RecordDict) -> None:
        nonlocal seen
        seen += kind == "train"
        clock.seconds += 2.0 * (kind == "train")
        if kind == "train" and seen == 2:
            nodes.wake(105)

    nodes.add(100, client_app(model, data, mods=[fault(wake)]), client=0, min_clients=2)
    run = deploy(nodes, tmp_path / "run", clock=clock, set="max_rounds=12")
    mine = [record for record in run.rounds if record["cohort"] == cohort_of(run, 5)]
    assert mine[0]["excluded"] == {"5": "not enrolled yet"}
    assert 5 in mine[-1]["participants"]


def cohort_of(run: cpfl.Run, client: int) -> int:
    plan = json.loads((run.path / "run.json").read_text())["cohorts"]
    return next(i for i, group in enumerate(plan) if client in group)


def test_nodes_without_numbers_get_free_ones(tmp_path: Path) -> None:
    grid = Nodes()
    for node in range(6):
        grid.add(200 + node, client_app(model, lambda context: (TRAIN[0][:30], TRAIN[1][:30])), min_clients=2)
    run = deploy(grid, tmp_path / "run")
    assert sorted({client for record in run.rounds for client in record["participants"]}) == [0, 1, 2, 3, 4, 5]


def test_no_node_replaces_a_connected_one(nodes: Nodes, tmp_path: Path) -> None:
    """While a client's node is connected, another node that claims its number is refused."""
    nodes.add(300, client_app(model, data), client=4, min_clients=2)
    run = deploy(nodes, tmp_path / "run")
    trained = {message.metadata.dst_node_id for message in nodes.sent if message.metadata.message_type == "train"}
    assert 300 not in trained
    assert 104 in trained
    sizes = json.loads((run.path / "clients.json").read_text())["clients"]
    assert [row["samples"] for row in sizes] == [36] * 6


def test_a_node_that_claims_too_many_samples_is_refused(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def boast(kind: str, content: RecordDict) -> None:
        if kind == "query.enrol":
            content["report"]["samples"] = 2**40

    nodes.add(104, client_app(model, data, mods=[fault(boast)]), client=4, min_clients=2)
    run = deploy(nodes, tmp_path / "run")
    assert all(4 not in record["participants"] for record in run.rounds)


def test_nobody_answers(nodes: Nodes, tmp_path: Path) -> None:
    """A cohort that stalls ends the run with one sentence; the run can be resumed."""
    cohort = deploy(nodes, tmp_path / "probe")
    plan = json.loads((cohort.path / "run.json").read_text())["cohorts"]
    for client in plan[1]:
        nodes.silent[100 + client] = "train"
    with pytest.raises(StalledError, match=r"cohort 1 stalled: nobody answered in 2 tries of round 1"):
        deploy(nodes, tmp_path / "run", set="checkpoint_seconds=0")
    nodes.silent.clear()
    assert deploy(nodes, tmp_path / "run", set="checkpoint_seconds=0").summary["rounds"] == 6


def test_krum_s_round_is_tried_again_until_enough_answer(nodes: Nodes, tmp_path: Path) -> None:
    """One of six may be byzantine, so five answers are needed: four make no round."""
    words = "cohorts=1 federation.server=krum federation.server_args.num_byzantine=1 federation.weights=equal"
    words += " checkpoint_seconds=0"
    nodes.silent |= {101: "train", 104: "train"}
    with pytest.raises(StalledError, match=r"fewer than 5 answered in 2 tries of round 1"):
        deploy(nodes, tmp_path / "run", set=words)
    del nodes.silent[104]
    run = deploy(nodes, tmp_path / "run", set=words)
    assert [record["participants"] for record in run.rounds] == [[0, 2, 3, 4, 5]] * 3
    (tmp_path / "plan.csv").write_text("client,cohort\n0,0\n1,0\n2,0\n3,0\n4,0\n5,1\n")
    csv = f"federation.server_args.num_selected=2 assignment.rule=csv assignment.rule_args.file={tmp_path / 'plan.csv'}"
    with pytest.raises(SettingError, match=r"num_selected = 2 .* cohort 1 has 1"):
        deploy(nodes, tmp_path / "none", set=f"federation.server=krum federation.weights=equal {csv}")
    assert not (tmp_path / "none").exists()


def test_an_interrupted_run_is_resumed(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again with the same folder, it ends with the same models as an uninterrupted run."""
    whole = deploy(nodes, tmp_path / "whole", set="max_rounds=5 checkpoint_seconds=0")
    rounds = 0
    from cpfl.deploy.server import LogCallback

    def stop(self: LogCallback, session: Any, closed: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogCallback, "on_round", stop)
        with pytest.raises(KeyboardInterrupt):
            deploy(nodes, tmp_path / "broken", set="max_rounds=5 checkpoint_seconds=0")
    assert (tmp_path / "broken" / "run.json").exists()
    with pytest.raises(CpflError, match="other settings"):
        deploy(nodes, tmp_path / "broken", set="max_rounds=6 checkpoint_seconds=0")
    again = deploy(nodes, tmp_path / "broken", set="max_rounds=5 checkpoint_seconds=0")
    assert close(whole, again)
    assert [r["round"] for r in again.rounds] == [r["round"] for r in whole.rounds]


@pytest.mark.parametrize(
    "make",
    [
        lambda few: FedAvg(**few),
        lambda few: FedAdam(**few, eta=0.01),
        lambda few: FedProx(**few, proximal_mu=0.5),
        lambda few: Krum(**few, num_malicious_nodes=0),
    ],
    ids=["FedAvg", "FedAdam", "FedProx", "Krum"],
)
def test_any_strategy_inside_a_cohort(nodes: Nodes, tmp_path: Path, make: Callable[[Any], Strategy]) -> None:
    """It trains the cohort's nodes only, and the session's rule stops it."""
    random.seed(0)
    few = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    run = deploy(nodes, tmp_path / "run", strategy=lambda cohort: make(few), set="max_rounds=8 stopping.patience=3")
    plan = json.loads((run.path / "run.json").read_text())["cohorts"]
    for record in run.rounds:
        assert set(record["participants"]) <= set(plan[record["cohort"]])
    assert run.summary["teacher_accuracy_mean"] > 50
    if make.__code__.co_names[0] == "FedAvg":
        assert close(run, simulated(tmp_path / "same", max_rounds=8, **{"stopping.patience": 3}))


def test_fedprox_limits_the_update(nodes: Nodes, tmp_path: Path) -> None:
    """With a large μ clients stay close to the cohort's model."""
    few = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

    def moved(mu: float) -> float:
        name = f"mu{mu}"
        words = "max_rounds=1 federation.local_epochs=10"
        run = deploy(nodes, tmp_path / name, strategy=lambda cohort: FedProx(**few, proximal_mu=mu), set=words)
        start = load_file(run.path / "models" / "start.safetensors")
        return float((teachers(run)[0]["weight"] - start["weight"]).norm())

    assert moved(5.0) < 0.5 * moved(0.01)


def test_a_strategy_that_needs_more_nodes_than_available(nodes: Nodes, tmp_path: Path) -> None:
    """Flower's own loop would wait without limit."""
    with pytest.raises(StalledError, match="nobody answered"):
        deploy(nodes, tmp_path / "run", strategy=lambda cohort: FedAvg(min_available_nodes=50))


def counts(run: cpfl.Run) -> Any:
    return json.loads((run.path / "run.json").read_text())["label_counts"]


@pytest.mark.parametrize("step", ["query.shares", "query.masked", "query.reveal"])
def test_label_counts_survive_a_drop_out(nodes: Nodes, tmp_path: Path, step: str) -> None:
    """At any step, while more than half remain; the sum is over the clients that sent their counts."""
    nodes.silent[102] = step
    run = deploy(nodes, tmp_path / "run")
    whole = counts(simulated(tmp_path / "simulated"))
    mine = cohort_of(run, 2)
    held = np.bincount(np.array(label_rows(2)), minlength=4)
    found = counts(run)
    assert found[1 - mine] == whole[1 - mine]
    expected = np.array(whole[mine]) if step == "query.reveal" else np.array(whole[mine]) - held
    assert found[mine] == expected.tolist()


def label_rows(client: int) -> list[int]:
    clients = cpfl.data.split.split(cpfl.Experiment(**SETTINGS), cpfl.data.given.as_samples(*TRAIN))
    return TRAIN[1][clients[client].training].tolist()


def test_false_counts(nodes: Nodes, tmp_path: Path) -> None:
    """A sum that differs from the clients' sample counts is not used: the cohort gets uniform weights."""

    def lie(kind: str, content: RecordDict) -> None:
        if kind == "query.masked":
            values = np.frombuffer(content["report"]["values"], "<u4") + np.uint32(1000)
            content["report"] = ConfigRecord({"values": values.tobytes()})

    nodes.add(102, client_app(model, data, mods=[fault(lie)]), client=2, min_clients=2)
    run = deploy(nodes, tmp_path / "run")
    assert counts(run)[cohort_of(run, 2)] is None
    assert counts(run)[1 - cohort_of(run, 2)] is not None


def test_a_node_hides_its_counts_unless_it_agrees(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The largest min_clients of a cohort counts; a single node reveals its counts only if it agrees."""
    nodes.add(102, client_app(model, data), client=2, min_clients=4)
    run = deploy(nodes, tmp_path / "run")
    assert counts(run)[cohort_of(run, 2)] is None
    assert not [m for m in nodes.sent if m.metadata.dst_node_id == 102 and m.metadata.message_type == "query.masked"]
    for client in range(6):
        nodes.add(100 + client, client_app(model, data), client=client, min_clients=1 if client < 3 else 3)
    alone = deploy(nodes, tmp_path / "alone", set="cohorts=6")
    known = [row is not None for row in counts(alone)]
    plan = json.loads((alone.path / "run.json").read_text())["cohorts"]
    assert known == [group[0] < 3 for group in plan]
    assert not [m for m in nodes.sent if m.metadata.message_type == "query.counts" and m.metadata.dst_node_id >= 103]


def test_noise_on_the_counts(nodes: Nodes, tmp_path: Path) -> None:
    run = deploy(nodes, tmp_path / "run", set="privacy.epsilon=0.5")
    exact = counts(simulated(tmp_path / "simulated"))
    assert counts(run) != exact
    assert all(count >= 0 for row in counts(run) for count in row)


def test_the_server_sees_no_label_counts(nodes: Nodes, tmp_path: Path) -> None:
    """No message to the server contains a client's histogram in a readable form."""
    deploy(nodes, tmp_path / "run")
    for client in range(6):
        histogram = np.bincount(label_rows(client), minlength=4)
        forms = [histogram.astype(kind).tobytes() for kind in ("<u4", "<i8", "<f4", "<f8")]
        for reply in nodes.replies:
            for record in reply.content.config_records.values():
                for value in record.values():
                    texts = value if isinstance(value, list) else [value]
                    assert not any(isinstance(text, bytes) and form in text for text in texts for form in forms)
                    assert texts != histogram.tolist()


@pytest.mark.parametrize(
    ("key", "value"), [("round-seconds", "soon"), ("tries", True), ("federation.rate", 1), ("set", "lr=1")]
)
def test_settings_that_are_refused(nodes: Nodes, tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(SettingError, match=key if key != "set" else "lr"):
        deploy(nodes, tmp_path / "run", **{key: value})
    assert not (tmp_path / "run").exists()
