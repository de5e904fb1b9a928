"""Server optimizers against their papers' updates written out in numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cpfl.engines.aggregation import RoundAggregator
from cpfl.errors import CpflError
from cpfl.federation import optimizers
from cpfl.federation.messages import AlgorithmState, RoundRequest
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.models.layout import Layout
from cpfl.settings import Federation, experiment_file

Row = NDArray[np.float64]
SIZE = 6


def drawn(count: int, seed: int) -> Row:
    return np.random.default_rng(seed).normal(size=(count, SIZE))


def opened(part: ServerOptimizer, model: torch.Tensor, memory: AlgorithmState) -> RoundAggregator:
    """A round of a model that is one row."""
    layout = Layout({"model": model.shape}, len(model), {}, {}, {})
    request = RoundRequest(0, 1, [], {"model": model}, algorithm_state=memory)
    return RoundAggregator(layout, part, request, torch.device("cpu"))


def served(start: Row, rounds: list[list[tuple[Row, int, int]]], **settings: Any) -> Row:
    """The model after rounds of (model − start of the round, samples, steps)."""
    part = optimizers.server_optimizer(Federation(**settings))
    model, memory = torch.tensor(start), AlgorithmState()
    for clients in rounds:
        aggregator = opened(part, model, memory)
        live = torch.empty(SIZE, dtype=torch.float64)
        for change, samples, steps in clients:
            live.copy_(model + torch.tensor(change))  # engines train the next client in the same tensor
            aggregator.add({"model": live}, samples, steps, row_P=live)
        found, memory = aggregator.result()
        model = found["model"]
    return model.numpy()


def some_rounds(count: int = 5, seed: int = 0) -> tuple[Row, list[list[tuple[Row, int, int]]]]:
    rng = np.random.default_rng(seed)
    rounds = [
        [(change, int(rng.integers(1, 50)), int(rng.integers(1, 9))) for change in drawn(4, 100 * seed + k)]
        for k in range(count)
    ]
    return rng.normal(size=SIZE), rounds


def mean_change(clients: list[tuple[Row, int, int]], weights: str) -> Row:
    shares = [samples if weights == "samples" else 1 for _, samples, _ in clients]
    return sum(s * change for s, (change, _, _) in zip(shares, clients, strict=True)) / sum(shares)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_fedavgm(weights: str) -> None:
    start, rounds = some_rounds()
    x, v = start, np.zeros(SIZE)
    for clients in rounds:
        v = 0.8 * v + mean_change(clients, weights)
        x = x + 0.5 * v
    got = served(start, rounds, server="fedavgm", server_args={"momentum": 0.8, "lr": 0.5}, weights=weights)
    np.testing.assert_allclose(got, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive(name: str) -> None:
    """Reddi et al. 2021, Algorithm 2, line by line."""
    start, rounds = some_rounds(8, 1)
    eta, beta1, beta2, tau = 0.1, 0.6, 0.95, 0.05
    x, m, v = start, np.zeros(SIZE), np.full(SIZE, tau**2)
    for clients in rounds:
        delta = mean_change(clients, "equal")
        m = beta1 * m + (1 - beta1) * delta
        if name == "fedadagrad":
            v = v + delta**2
        elif name == "fedyogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + eta * m / (np.sqrt(v) + tau)
    args = {"lr": eta, "beta1": beta1, "tau": tau} | ({} if name == "fedadagrad" else {"beta2": beta2})
    got = served(start, rounds, server=name, server_args=args)
    np.testing.assert_allclose(got, x, rtol=0, atol=1e-12)


def test_fedadagrad_has_no_momentum_unless_it_is_given() -> None:
    """As Reddi et al. 2021 run it: a step is Δ / (√v + τ), whatever came before."""
    start, rounds = some_rounds(4, 3)
    x, v = start, np.full(SIZE, 1e-6)
    for clients in rounds:
        delta = mean_change(clients, "equal")
        v = v + delta**2
        x = x + 10**-1.5 * delta / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(served(start, rounds, server="fedadagrad"), x, rtol=0, atol=1e-12)


def test_arguments_go_with_their_server(tmp_path: Path) -> None:
    """From a file, from the command line over one, and read back from a run folder."""

    def args(*words: str, text: str = "") -> dict[str, Any]:
        here, stored = tmp_path / "here.toml", tmp_path / "stored.toml"
        here.write_text(text)
        made = experiment_file.load(here, words)
        stored.write_text(experiment_file.to_toml(made))
        assert experiment_file.read_stored(stored) == made
        return made.federation.server_args

    momentum = 'federation = {server = "fedavgm", server_args = {momentum = 0.7}}'
    assert args() == args("federation.server=fedyogi") == {}
    assert args("federation.lr=0.1", text=momentum) == {"momentum": 0.7}
    assert args("federation.server=fedavgm", text=momentum) == {"momentum": 0.7}
    assert args("federation.server=fedadam", text=momentum) == {}  # they were for the other one
    assert args("federation.server=fedadam", "federation.server_args.beta1=0.9", text=momentum) == {"beta1": 0.9}
    assert args("federation.server_args.beta1=0.9", "federation.server=fedadam", text=momentum) == {"beta1": 0.9}
    assert args("federation.server_args.lr=0.5", text=momentum) == {"momentum": 0.7, "lr": 0.5}


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_fednova(weights: str, momentum: float) -> None:
    """Wang et al. 2020, equation 6, with the vector a_i added up term by term."""
    start, rounds = some_rounds(3, 2)
    x = start
    for clients in rounds:
        shares = np.array([samples if weights == "samples" else 1 for _, samples, _ in clients], float)
        p = shares / shares.sum()
        a = [sum(sum(momentum**j for j in range(k + 1)) for k in range(steps)) for _, _, steps in clients]
        tau = sum(p * a)
        x = x + tau * sum(p_i * change / a_i for p_i, a_i, (change, _, _) in zip(p, a, clients, strict=True))
    got = served(start, rounds, server="fednova", weights=weights, momentum=momentum)
    np.testing.assert_allclose(got, x, rtol=0, atol=1e-12)


def test_fednova_finds_what_fedavg_misses() -> None:
    """Two clients, f_i = ½ (w − b_i)², one with many more steps: FedAvg leans to it, FedNova hardly."""
    b, steps, lr = np.array([1.0, -1.0]), (1, 12), 0.02
    ends = {}
    for server in ("mean", "fednova"):
        w = np.zeros(SIZE)
        for _ in range(600):
            clients = [((1 - (1 - lr) ** k) * (b_i - w), 1, k) for b_i, k in zip(b, steps, strict=True)]
            w = served(w, [clients], server=server)
        ends[server] = abs(w[0])
    assert ends["mean"] > 0.8
    assert ends["fednova"] < 0.1


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median(count: int) -> None:
    start, changes = drawn(1, 3)[0], drawn(count, 4)
    got = served(start, [[(change, 1, 1) for change in changes]], server="median")
    np.testing.assert_allclose(got, start + np.median(changes, axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("count", "trim", "out"),
    [
        (1, 0.4, 0),
        (2, 0.49, 0),
        (3, 0.1, 1),
        (5, 0.2, 1),
        (9, 0.1, 1),
        (19, 0.1, 1),
        (20, 0.1, 2),
        (10, 0.49, 4),
        (4, 0.0, 0),
        (100, 0.29, 29),
    ],
)
def test_trimmed_mean(count: int, trim: float, out: int) -> None:
    """Yin et al. 2018, Definition 2; of three or more clients one is left out at each end if any is to be."""
    start, changes = drawn(1, 5)[0], drawn(count, 6)
    expected = [np.mean(sorted(column)[out : count - out]) for column in changes.T]
    got = served(start, [[(change, 1, 1) for change in changes]], server="trimmed-mean", server_args={"trim": trim})
    np.testing.assert_allclose(got, start + expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("count", "byzantine", "chosen"), [(7, 2, 1), (9, 1, 3), (5, 1, 4), (9, 2, 7), (3, 0, 1), (6, 0, 6)]
)
def test_krum(count: int, byzantine: int, chosen: int) -> None:
    """Blanchard et al. 2017, section 4: scores over n − f − 2 neighbours, by trying all sets of them."""
    start, changes = drawn(1, 7)[0], drawn(count, 8)
    scores = []
    for i in range(count):
        others = [((changes[i] - changes[j]) ** 2).sum() for j in range(count) if j != i]
        scores.append(min(sum(group) for group in itertools.combinations(others, count - byzantine - 2)))
    best = sorted(range(count), key=lambda i: (round(scores[i], 9), i))[:chosen]
    args = {"num_byzantine": byzantine, "num_selected": chosen}
    got = served(start, [[(c, 1, 1) for c in changes]], server="krum", server_args=args)
    np.testing.assert_allclose(got, start + changes[best].mean(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (2, 1), (2, 2)])
def test_krum_of_one_or_two_has_no_neighbours_to_go_by(count: int, chosen: int) -> None:
    changes = drawn(count, 8)
    got = served(np.zeros(SIZE), [[(c, 1, 1) for c in changes]], server="krum", server_args={"num_selected": chosen})
    np.testing.assert_allclose(got, changes[:chosen].mean(axis=0), rtol=0, atol=1e-12)


ALLOWED = [(n, f, m) for n in range(5, 11) for f in range(1, n) if n > 2 * f + 2 for m in range(1, n - f + 1)]


@pytest.mark.parametrize("apart", [False, True], ids=["all alike", "each elsewhere"])
def test_krum_chooses_no_attacker_where_it_answers_at_all(apart: bool) -> None:
    """f far away, in one place or in many: of the honest ones alone is the model, for every n, f and m allowed."""
    for count, bad, chosen in ALLOWED:
        changes = drawn(count, count)
        changes[1 : bad + 1] = 1e3 * (drawn(bad, 1) if apart else 1)
        clients = [(change, 1, 1) for change in changes]
        got = served(
            np.zeros(SIZE), [clients], server="krum", server_args={"num_byzantine": bad, "num_selected": chosen}
        )
        honest = np.delete(changes, range(1, bad + 1), axis=0)
        assert (got >= honest.min(axis=0)).all()
        assert (got <= honest.max(axis=0)).all()


@pytest.mark.parametrize(
    ("count", "byzantine", "chosen", "least"), [(4, 1, 1, 5), (5, 1, 5, 6), (3, 2, 1, 7), (8, 2, 7, 9), (2, 0, 3, 3)]
)
def test_krum_does_not_answer_with_too_few(count: int, byzantine: int, chosen: int, least: int) -> None:
    clients = [(change, 1, 1) for change in drawn(count, 8)]
    words = f"num_byzantine = {byzantine}.*selected = {chosen}.*needs {least} results, and a round returned {count}"
    args = {"num_byzantine": byzantine, "num_selected": chosen}
    with pytest.raises(CpflError, match=words):
        served(np.zeros(SIZE), [clients], server="krum", server_args=args)


@pytest.mark.parametrize(
    "settings",
    [
        {"server": "median"},
        {"server": "trimmed-mean", "server_args": {"trim": 0.3}},
        {"server": "krum", "server_args": {"num_byzantine": 2}},
        {"server": "krum", "server_args": {"num_byzantine": 2, "num_selected": 3}},
        {"max_update_norm": 3.0},
    ],
)
def test_bad_clients_move_little(settings: dict[str, Any]) -> None:
    """Two of nine send something huge: the model stays within what the honest ones sent; the plain mean does not."""
    start, changes = np.zeros(SIZE), drawn(9, 9)
    changes[[2, 6]] = 1e6
    clients = [(change, 1, 1) for change in changes]
    assert np.abs(served(start, [clients])).max() > 1e5
    assert np.abs(served(start, [clients], **settings)).max() < 3


@pytest.mark.parametrize("count", range(3, 12))
def test_one_bad_client_does_not_get_past_the_default_trim(count: int) -> None:
    changes = drawn(count, 12)
    changes[1] = 1e6
    assert np.abs(served(np.zeros(SIZE), [[(c, 1, 1) for c in changes]], server="trimmed-mean")).max() < 4


def test_update_norm() -> None:
    start, changes = drawn(1, 10)[0], drawn(5, 11)
    lengths = np.linalg.norm(changes, axis=1, keepdims=True)
    expected = start + (changes * np.minimum(1, 1.5 / lengths)).mean(axis=0)
    got = served(start, [[(change, 1, 1) for change in changes]], max_update_norm=1.5)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["mean", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fednova"])
def test_streamed_optimizers_keep_no_update(name: str) -> None:
    """Memory must not grow with the participants."""
    part = optimizers.server_optimizer(Federation(server=name))
    aggregator = opened(part, torch.zeros(SIZE), AlgorithmState())
    for _ in range(50):
        aggregator.add({"model": torch.ones(SIZE)}, 1, 1)
    kept = [*vars(aggregator).values(), *aggregator._mean._sum.values()]
    held = [value for value in kept if isinstance(value, torch.Tensor)]
    assert not part.needs_all_models
    assert not aggregator._models
    assert sum(value.numel() for value in held) == 3 * SIZE  # start, sum, and the change of clients' states
