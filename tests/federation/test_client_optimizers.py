"""Client optimizers against torch's own optimisers, the papers' updates written out in numpy, and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.engines.test_algorithms import federate

from cpfl.federation import local_training, optimizers
from cpfl.federation.messages import CLIENT_STATE_MEAN
from cpfl.federation.optimizers.base import ClientState
from cpfl.settings import Experiment, Federation
from cpfl.task.loading import given_arrays
from cpfl.task.task import build_task

Row = NDArray[np.float64]
Gradients = dict[int, Callable[[Row], Row]]
SIZE, STEPS = 7, 9


def gradient_of(curves: Row, centre: Row, w: Row) -> Row:
    """Of the quadratic problem ½ (w − b)ᵀ diag(a) (w − b)."""
    return curves * (w - centre)


def task(seed: int = 0) -> tuple[Row, Row, Row]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 2, SIZE), rng.normal(size=SIZE), rng.normal(size=SIZE)


def trained(
    start: Row, curves: Row, centre: Row, own: Row | None = None, mean: Row | None = None, **settings: Any
) -> tuple[Row, Row | None]:
    """A client's parameters after its steps, and its next state."""
    part = optimizers.client_optimizer(Federation(**settings))
    params = torch.tensor(start)
    rows = [torch.zeros(SIZE, dtype=torch.float64) if row is None else torch.tensor(row) for row in (own, mean)]
    memory = {name: torch.zeros_like(params) for name in part.buffers}
    at = ClientState(part.settings.lr, torch.zeros(1, dtype=torch.float64), memory, torch.tensor(start), *rows)
    for _ in range(STEPS):
        at.steps += 1
        part.clip_and_step(params, torch.tensor(gradient_of(curves, centre, params.numpy())), at)
    return params.numpy(), part.update_client_state(params, at).numpy() if part.has_client_state else None


TORCH = {
    "sgd": ({}, torch.optim.SGD, {}),
    "momentum": ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        {"momentum": 0.8, "client_args": {"nesterov": True, "weight_decay": 0.1}},
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": ({"client": "adam"}, torch.optim.Adam, {}),
    "adam, decay": (
        {"client": "adam", "client_args": {"weight_decay": 0.1, "beta1": 0.7, "beta2": 0.9, "epsilon": 0.01}},
        torch.optim.Adam,
        {"weight_decay": 0.1, "betas": (0.7, 0.9), "eps": 0.01},
    ),
    "adamw": ({"client": "adamw", "client_args": {"weight_decay": 0.3}}, torch.optim.AdamW, {"weight_decay": 0.3}),
}


@pytest.mark.parametrize("clip", [0.0, 0.4])
@pytest.mark.parametrize("name", TORCH)
def test_as_torch_does(name: str, clip: float) -> None:
    ours, kind, theirs = TORCH[name]
    curves, centre, start = task()
    weights = torch.tensor(start, requires_grad=True)
    optimizer = kind([weights], lr=0.05, **theirs)
    for _ in range(STEPS):
        weights.grad = torch.tensor(gradient_of(curves, centre, weights.detach().numpy()))
        if clip:
            length = float(weights.grad.norm())
            weights.grad *= min(1.0, clip / length)
        optimizer.step()
    got, _ = trained(start, curves, centre, lr=0.05, max_grad_norm=clip, **ours)
    np.testing.assert_allclose(got, weights.detach().numpy(), rtol=0, atol=1e-12)


def test_clipping_leaves_short_gradients_and_zeros_alone() -> None:
    part = optimizers.client_optimizer(Federation(lr=1.0, max_grad_norm=5.0))
    params, gradients = torch.zeros(3, 2), torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]])
    part.clip_and_step(params, gradients, ClientState(1.0, torch.ones(3, 1)))
    torch.testing.assert_close(params, torch.tensor([[-3.0, -4.0], [-3.0, -4.0], [0.0, 0.0]]))


def test_fedprox_in_closed_form() -> None:
    """Gradient descent on a quadratic: w_K − w* = (1 − η (a + μ))^K (w⁰ − w*), w* = (a b + μ w⁰) / (a + μ)."""
    curves, centre, start = task(1)
    mu, lr = 0.7, 0.1
    best = (curves * centre + mu * start) / (curves + mu)
    expected = best + (1 - lr * (curves + mu)) ** STEPS * (start - best)
    got, _ = trained(start, curves, centre, client="fedprox", client_args={"mu": mu}, lr=lr)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_fedprox_without_its_term_is_sgd() -> None:
    curves, centre, start = task(2)
    one, other = (
        trained(start, curves, centre, lr=0.1, momentum=0.9, **s)[0]
        for s in ({}, {"client": "fedprox", "client_args": {"mu": 0}})
    )
    np.testing.assert_array_equal(one, other)


def test_scaffold_as_its_paper_writes_it() -> None:
    """Algorithm 1, lines 10 and 12 (option II), in numpy; c_i⁺ is the mean gradient along the way."""
    curves, centre, start = task(3)
    rng = np.random.default_rng(4)
    own, common, lr = rng.normal(size=SIZE), rng.normal(size=SIZE), 0.1
    y, gradients = start.copy(), []
    for _ in range(STEPS):
        gradients.append(gradient_of(curves, centre, y))
        y = y - lr * (gradients[-1] - own + common)
    got, left = trained(start, curves, centre, own, common, client="scaffold", lr=lr)
    np.testing.assert_allclose(got, y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(left, own - common + (start - y) / (STEPS * lr), rtol=0, atol=1e-12)
    np.testing.assert_allclose(left, np.mean(gradients, axis=0), rtol=0, atol=1e-12)


def test_feddyn_as_its_paper_writes_it() -> None:
    curves, centre, start = task(5)
    own, alpha, lr = np.random.default_rng(6).normal(size=SIZE), 0.4, 0.1
    w = start.copy()
    for _ in range(STEPS):
        w = w - lr * (gradient_of(curves, centre, w) - own + alpha * (w - start))
    got, left = trained(start, curves, centre, own, None, client="feddyn", client_args={"alpha": alpha}, lr=lr)
    np.testing.assert_allclose(got, w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(left, own - alpha * (w - start), rtol=0, atol=1e-12)


def rounds(local: str, count: int, lr: float, **settings: Any) -> tuple[Row, Row, float]:
    """Two clients with different quadratics for many rounds: where they end, the common minimum, FedAvg's distance."""
    clients = [task(seed)[:2] for seed in (7, 8)]
    best = sum(a * b for a, b in clients) / sum(a for a, _ in clients)
    part = optimizers.client_optimizer(Federation(client=local, lr=lr, **settings))
    model, plain, rows, mean = np.zeros(SIZE), np.zeros(SIZE), [np.zeros(SIZE)] * 2, np.zeros(SIZE)
    for _ in range(count):
        ended = [
            trained(model, *c, row, mean, client=local, lr=lr, **settings) for c, row in zip(clients, rows, strict=True)
        ]
        rows = [left for _, left in ended if left is not None]
        mean = np.mean(rows, axis=0)
        model = part.correct_model(torch.tensor(np.mean([w for w, _ in ended], axis=0)), torch.tensor(mean)).numpy()
        plain = np.mean([trained(plain, *c, lr=lr)[0] for c in clients], axis=0)
    return model, best, float(np.abs(plain - best).max())


@pytest.mark.parametrize(("local", "settings"), [("scaffold", {}), ("feddyn", {"client_args": {"alpha": 0.5}})])
def test_drift_is_undone(local: str, settings: dict[str, Any]) -> None:
    """With different clients and several steps FedAvg misses the minimum of the common loss; these find it."""
    model, best, missed = rounds(local, 400, 0.2, **settings)
    assert missed > 0.01
    np.testing.assert_allclose(model, best, rtol=0, atol=1e-6)


CLIENTS, FEATURES, CLASSES, LOCAL = 14, 4, 3, 3
ARGS: dict[str, dict[str, float]] = {"scaffold": {}, "feddyn": {"alpha": 0.3}}
Federated = tuple[Row, Row, dict[int, Row]]  # the model, the cohort's row, the clients' rows


def softmax_gradient(w: Row, x: Row, y: NDArray[np.int64]) -> Row:
    """Of the mean cross-entropy of a linear model, whose weights and biases lie in one row."""
    weights, biases = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    scores = np.exp(x @ weights.T + biases)
    error = (scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


def scaffold(start: Row, gradients: Gradients, chosen: list[list[int]], eta: float) -> Federated:
    """Karimireddy et al. 2020, Algorithm 1, option II, η_g = 1; N are all clients, S a round's."""
    x, c, N = start, np.zeros_like(start), len(gradients)
    c_i = {i: np.zeros_like(start) for i in gradients}
    for S in chosen:
        delta_y, delta_c = [], []
        for i in S:
            y = x
            for _ in range(LOCAL):
                y = y - eta * (gradients[i](y) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (LOCAL * eta)
            delta_y.append(y - x)
            delta_c.append(c_plus - c_i[i])
            c_i[i] = c_plus
        x = x + np.mean(delta_y, axis=0)  # line 16
        c = c + len(S) / N * np.mean(delta_c, axis=0)  # line 17
    return x, c, c_i


def feddyn(start: Row, gradients: Gradients, chosen: list[list[int]], eta: float) -> Federated:
    """Acar et al. 2021, Algorithm 1, with steps of descent for its argmin; m are all clients, P a round's."""
    theta, h, m, alpha = start, np.zeros_like(start), len(gradients), 0.3
    gradient = {k: np.zeros_like(start) for k in gradients}
    for P in chosen:
        ended = {}
        for k in P:
            w = theta
            for _ in range(LOCAL):
                w = w - eta * (gradients[k](w) - gradient[k] + alpha * (w - theta))
            gradient[k] = gradient[k] - alpha * (w - theta)
            ended[k] = w
        h = h - alpha / m * sum(w - theta for w in ended.values())
        theta = sum(ended.values()) / len(P) - h / alpha
    return theta, h, gradient


@pytest.mark.parametrize("engine", ["reference", "workers", "lanes"])
@pytest.mark.parametrize("paper", [scaffold, feddyn])
def test_a_cohort_s_row_when_only_some_take_part(paper: Any, engine: str) -> None:
    """Whole federations, two of seven clients a round, against the papers: who is away moves c and h by nothing."""
    rng = np.random.default_rng(20)
    x, y = rng.normal(size=(200, FEATURES)), rng.integers(0, CLASSES, 200)
    federation = {
        "client": paper.__name__,
        "lr": 0.2,
        "client_args": ARGS[paper.__name__],
        "participants": 2,
        "local_epochs": LOCAL,
    }
    made = Experiment(
        cohorts=2, clients=CLIENTS, max_rounds=12, precision="float64", federation=federation | {"batch_size": 200},
        data={"train": "given", "public": "given", "validation": 0}, model={"name": "given"},
    )  # fmt: skip
    given = given_arrays((x, y), (x, y), x)
    task = build_task(made, [], given, lambda: torch.nn.Linear(FEATURES, CLASSES))
    for session in federate(task, engine):
        chosen = [line["participants"] for line in vars(session)["lines"]]
        assert len({client for some in chosen for client in some}) > 4
        start, ended = (
            np.concatenate([state["weight"].numpy().ravel(), state["bias"].numpy()])
            for state in (task.start, session.model)
        )
        held = {k: task.data.clients[k].training for k in session.clients}
        gradients = {k: lambda w, at=rows: softmax_gradient(w, x[at], y[at]) for k, rows in held.items()}
        model, cohort, clients = paper(start, gradients, chosen, 0.2)
        assert np.abs(model - start).max() > 0.1
        np.testing.assert_allclose(ended, model, rtol=0, atol=1e-10)
        memory = session.algorithm_state
        for state, row in [
            (memory.cohort[CLIENT_STATE_MEAN], cohort),
            *((memory.clients[k], clients[k]) for k in memory.clients),
        ]:
            flat = np.concatenate([state["weight"].numpy().ravel(), state["bias"].numpy()])
            np.testing.assert_allclose(flat, row, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "fedprox", "scaffold", "feddyn"])
def test_clients_side_by_side_are_clients_alone(name: str) -> None:
    """Stacked rows, each with its own rate, count and memory, learn what single rows learn."""
    part = optimizers.client_optimizer(Federation(client=name, max_grad_norm=0.8, client_args={"weight_decay": 0.05}))
    generator = torch.Generator().manual_seed(1)

    def drawn() -> torch.Tensor:
        return torch.randn(3, SIZE, dtype=torch.float64, generator=generator)

    rates, counts = (
        torch.tensor([[0.1], [0.02], [0.3]], dtype=torch.float64),
        torch.tensor([[1.0], [5.0], [2.0]]).double(),
    )
    params, gradient, memory = drawn(), drawn(), {key: drawn().square() for key in part.buffers}
    rows = [drawn() for _ in range(3)]
    alone = params.clone()
    lone_memory = {key: value.clone() for key, value in memory.items()}
    left = []
    for k in range(3):
        own = {key: value[k] for key, value in lone_memory.items()}
        at = ClientState(float(rates[k]), counts[k], own, *(row[k].clone() for row in rows))
        part.clip_and_step(alone[k], gradient[k].clone(), at)
        left.append(part.update_client_state(alone[k], at) if part.has_client_state else alone[k])
    at = ClientState(rates, counts, memory, *rows)
    part.clip_and_step(params, gradient.clone(), at)
    torch.testing.assert_close(params, alone, rtol=0, atol=1e-12)
    if part.has_client_state:
        torch.testing.assert_close(part.update_client_state(params, at), torch.stack(left), rtol=0, atol=1e-12)


def test_schedules() -> None:
    def rates(**settings: Any) -> list[float]:
        return [local_training.rate(Federation(lr=0.8, **settings), number) for number in range(1, 8)]

    assert rates() == [0.8] * 7
    assert rates(lr_schedule="step", lr_schedule_args={"rounds": 2, "factor": 0.5}) == [
        0.8,
        0.8,
        0.4,
        0.4,
        0.2,
        0.2,
        0.1,
    ]
    assert rates(warmup_rounds=4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8])
    cosine = rates(lr_schedule="cosine", lr_schedule_args={"rounds": 4, "floor": 0.5})
    half = [0.5 + 0.5 * math.cos(math.pi * t / 4) for t in range(5)]
    assert cosine == pytest.approx([0.8 * (0.5 + 0.5 * h) for h in half] + [0.4, 0.4])
    both = rates(lr_schedule="step", lr_schedule_args={"rounds": 2}, warmup_rounds=2)
    assert both == pytest.approx([0.4, 0.8, 0.4, 0.4, 0.2, 0.2, 0.1])
    assert rates(lr_schedule="step", lr_schedule_args={"rounds": 1, "floor": 0.25})[2:] == [0.2] * 5
    assert local_training.constant_rate(Federation())
    assert not local_training.constant_rate(Federation(warmup_rounds=3))
