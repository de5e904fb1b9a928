"""The reference against cases worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cpfl.randomness import stream

from . import algorithm, clock, cohorts, network, split, weights
from .stopping import MAX_ROUNDS, NO_SIGNAL, PLATEAU, Stopping


def flat(lists):
    return sorted(i for one in lists for i in one)


# ---------------------------------------------------------------- split


def test_the_last_client_gets_all_that_remains():
    assert split.counts_of([0.25, 0.35, 0.4], 10, "last") == [2, 3, 5]  # 2.5, 3.5, and what is left


def test_a_spread_remainder_goes_to_the_largest_fractions_lowest_client_first():
    assert split.counts_of([0.25, 0.35, 0.4], 10, "spread") == [3, 3, 4]  # 2.5 and 3.5 tie
    assert split.counts_of([0.125, 0.6875, 0.1875], 10, "spread") == [1, 7, 2]  # 1.25, 6.875, 1.875


@pytest.mark.parametrize("remainder", ["last", "spread"])
def test_a_dirichlet_split_gives_every_client_its_share_of_every_class(remainder):
    y = np.array([0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1] * 5)
    parts = split.dirichlet(y, 3, 4, seed=7, alpha=0.5, remainder=remainder)
    assert sorted(i for part in parts for i in part) == list(range(60))
    for c, total in enumerate([20, 40, 0]):
        rng = stream(7, "split", c)
        rng.permutation(total)
        shares = rng.dirichlet([0.5] * 4)
        held = [sum(int(y[i] == c) for i in part) for part in parts]
        assert sum(held) == total
        for client in range(3):
            assert held[client] - math.floor(shares[client] * total) in ([0] if remainder == "last" else [0, 1])


def test_iid_parts_differ_by_at_most_one():
    parts = split.iid(10, 3, seed=1)
    assert [len(part) for part in parts] == [4, 3, 3]
    assert flat(parts) == list(range(10))


def test_shards_hold_neighbours_in_label_order():
    y = np.array([1, 0, 1, 0, 2, 2, 3, 3])
    parts = split.by_shards(y, 2, seed=3, shards=2)  # the shards: {1, 3}, {0, 2}, {4, 5}, {6, 7}
    assert flat(parts) == list(range(8))
    for part in parts:
        assert sorted(y[part])[::2] == sorted(y[part])[1::2]  # whole shards, so every label comes in a pair


def test_an_empty_client_gets_a_sample_from_one_that_has_more_than_one():
    parts = split.repair([[], [0], [1, 2, 3], []], seed=5)
    assert [len(part) for part in parts] == [1, 1, 1, 1]
    assert parts[1] == [0]
    assert flat(parts) == [0, 1, 2, 3]


@pytest.mark.parametrize(("n", "validation"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_a_tenth_validates_with_ten_samples_or_more(n, validation):
    part = list(range(100, 100 + n))
    training, held_out = split.hold_out(part, client=2, seed=0)
    assert len(held_out) == validation
    assert sorted(training + held_out) == part


# ---------------------------------------------------------------- cohorts


def test_cohort_sizes_differ_by_at_most_one():
    groups = cohorts.assign(11, 4, seed=0)
    assert [len(group) for group in groups] == [3, 3, 3, 2]
    assert flat(groups) == list(range(11))


@pytest.mark.parametrize(("participation", "size", "k"), [(1.0, 5, 5), (0.2, 10, 2), (0.1, 3, 1), (0.5, 5, 2)])
def test_participants(participation, size, k):
    members = list(range(10, 10 + size))
    chosen = cohorts.participants(members, participation, cohort=1, round_number=4, seed=0)
    assert len(chosen) == len(set(chosen)) == k
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(members)


# ---------------------------------------------------------------- stopping


def test_a_cohort_stops_when_its_moving_average_has_made_no_new_minimum():
    rule = Stopping(patience=2, window=2, max_rounds=100)
    seen = []
    for t, value in enumerate([4, 2, None, 3, 2, 4], start=1):
        rule.update(t, value, f"model {t}")
        seen.append((rule.moving_average, rule.best_round, rule.reason_to_stop(t)))
    assert seen == [
        (4.0, 1, None),
        (3.0, 2, None),
        (3.0, 2, None),  # nobody reported: nothing enters the average
        (2.5, 4, None),  # (2 + 3) / 2
        (2.5, 4, None),  # (3 + 2) / 2: not lower
        (3.0, 4, PLATEAU),
    ]
    assert rule.teacher("best", "after") == "model 4"
    assert rule.teacher("last", "after") == "after"


def test_without_a_signal_a_cohort_stops_after_r_rounds_with_its_last_model():
    rule = Stopping(patience=3, window=2, max_rounds=100)
    for t in (1, 2, 3):
        rule.update(t, None, f"model {t}")
    assert [rule.reason_to_stop(t) for t in (1, 2, 3)] == [None, None, NO_SIGNAL]
    assert rule.teacher("best", "after") == "after"


def test_a_cohort_stops_after_max_rounds():
    rule = Stopping(patience=3, window=1, max_rounds=2)
    for t, value in ((1, 1.0), (2, 0.5)):
        rule.update(t, value, f"model {t}")
    assert [rule.reason_to_stop(t) for t in (1, 2)] == [None, MAX_ROUNDS]


# ---------------------------------------------------------------- weights


def test_weights_are_shares_of_a_class_and_equal_where_nobody_holds_it():
    counts = np.array([[3, 0, 1], [1, 0, 0]])
    assert weights.class_weights(counts).tolist() == [[0.75, 0.5, 1.0], [0.25, 0.5, 0.0]]
    assert weights.class_weights(counts, "uniform").tolist() == [[0.5] * 3] * 2


def test_label_counts_and_aggregated_logits():
    y = np.array([0, 0, 2, 0, 0])
    counts = weights.label_counts([[0, 2], [1]], [[0, 1], [3], [2, 4]], y, classes=3)
    assert counts.tolist() == [[3, 0, 1], [1, 0, 0]]
    z = weights.aggregate(weights.class_weights(counts), [np.array([[4.0, 2.0, 1.0]]), np.array([[8.0, 4.0, 9.0]])])
    assert z.tolist() == [[5.0, 3.0, 1.0]]


# ---------------------------------------------------------------- clock


def test_a_round_lasts_as_long_as_its_slowest_participant():
    steps = [clock.steps_of(25, 10, 1, None), clock.steps_of(10, 10, 1, None)]
    assert steps == [3, 1]
    assert clock.steps_of(25, 10, 1, 7) == 7
    training = [clock.training_seconds(3, 10, 25, 100.0), clock.training_seconds(1, 10, 10, 200.0)]
    assert training == [9.0, 6.0]
    assert clock.training_seconds(1, 10, 4, 200.0) == 2.4  # all it holds is 4
    assert clock.transfer_seconds(128_000, 1000.0) == 1.0  # 1000 kbit/s are 128,000 bytes/s
    assert clock.round_seconds(training, [1000.0, 100.0], 128_000, cohort_size=2) == 26.0  # 10 + 6 + 10, over 1 + 9 + 1
    assert clock.round_bytes(2, 128_000, cohort_size=2) == 512_000


def test_a_cohort_with_one_client_sends_nothing_in_its_rounds():
    assert clock.round_seconds([9.0], [1000.0], 128_000, cohort_size=1) == 9.0
    assert clock.round_bytes(1, 128_000, cohort_size=1) == 0


# ---------------------------------------------------------------- network


def random_network(rng, d=4, h=5, c=3):
    return {
        "0.weight": rng.normal(size=(h, d)),
        "0.bias": rng.normal(size=h),
        "2.weight": rng.normal(size=(c, h)),
        "2.bias": rng.normal(size=c),
    }


@pytest.mark.parametrize("kind", ["cross entropy", "l1"])
def test_gradients_against_finite_differences(kind):
    rng = np.random.default_rng(0)
    params, x = random_network(rng), rng.normal(size=(7, 4))
    if kind == "l1":
        loss, gradient, target = network.l1, network.l1_gradient, rng.normal(size=(7, 3))
    else:
        loss, gradient, target = network.cross_entropy, network.cross_entropy_gradient, rng.integers(3, size=7)
    computed = gradient(params, x, target)
    assert computed.keys() == params.keys()
    step = 1e-6
    for name, value in params.items():
        for position in np.ndindex(value.shape):
            up, down = ({k: v.copy() for k, v in params.items()} for _ in range(2))
            up[name][position] += step
            down[name][position] -= step
            difference = (loss(up, x, target) - loss(down, x, target)) / (2 * step)
            assert computed[name][position] == pytest.approx(difference, abs=1e-8)


def test_losses_by_hand():
    params = {"0.weight": np.zeros((1, 1)), "0.bias": np.zeros(1), "2.weight": np.zeros((2, 1)), "2.bias": np.zeros(2)}
    x = np.ones((2, 1))
    assert network.cross_entropy(params, x, np.array([0, 1])) == pytest.approx(math.log(2), abs=1e-15)
    assert network.l1(params, x, np.array([[1.0, -2.0], [0.0, 5.0]])) == 2.0
    d = network.l1_gradient(params, x, np.array([[1.0, -2.0], [0.0, -5.0]]))["2.bias"]
    assert d.tolist() == [-0.25, 0.5]  # signs (−, +), (0, +), each over B · C = 4


def test_sgd_with_momentum_by_hand():
    sgd, params = network.SGD({"a": np.zeros(1)}, lr=0.1, momentum=0.5), {"a": np.array([1.0])}
    params = sgd.step(params, {"a": np.array([2.0])})  # buf = 2
    assert params["a"][0] == pytest.approx(0.8, abs=1e-15)
    params = sgd.step(params, {"a": np.array([2.0])})  # buf = 1 + 2
    assert params["a"][0] == pytest.approx(0.5, abs=1e-15)


def test_adam_by_hand():
    adam, params = network.Adam({"a": np.zeros(1)}, lr=0.1), {"a": np.array([1.0])}
    params = adam.step(params, {"a": np.array([2.0])})  # m = 0.2 → 2, v = 0.004 → 4
    first = 1 - 0.1 * 2 / (2 + 1e-8)
    assert params["a"][0] == pytest.approx(first, abs=1e-14)
    params = adam.step(params, {"a": np.array([-1.0])})  # m = 0.18 − 0.1, v = 0.003996 + 0.001
    second = first - 0.1 * (0.08 / 0.19) / (math.sqrt(0.004996 / 0.001999) + 1e-8)
    assert params["a"][0] == pytest.approx(second, abs=1e-14)


def test_average():
    models = [{"a": np.array([0.0])}, {"a": np.array([4.0])}]
    assert network.average(models, [1, 1])["a"][0] == 2.0
    assert network.average(models, [3, 1])["a"][0] == 1.0


# ---------------------------------------------------------------- the whole

# A network of zeros sees nothing but the labels: its probabilities are ½ and ½, and one step of SGD at lr 1 on a sample
# of class 0 moves the last bias to (½, −½), on one of class 1 to (−½, ½), and nothing else.
ZERO = {"0.weight": np.zeros((1, 1)), "0.bias": np.zeros(1), "2.weight": np.zeros((2, 1)), "2.bias": np.zeros(2)}
TINY = algorithm.Settings(
    clients=2,
    cohorts=2,
    max_rounds=1,
    split="iid",
    batch_size=10,
    lr=1.0,
    momentum=0.0,
    patience=5,
    epochs=2,
    distill_batch_size=2,
    distill_lr=0.1,
    model_bytes=128_000,
)


def run_tiny(settings, y=(0, 1)):
    y = np.array(y)
    return algorithm.run(
        settings,
        x=np.ones((len(y), 1)),
        y=y,
        classes=2,
        x_test=np.ones((4, 1)),
        y_test=np.array([0, 0, 0, 1]),
        x_public=np.ones((3, 1)),
        compute_ms=[1000.0, 2000.0],  # a client of one sample: 3 s and 6 s
        network_kbps=[1000.0, 500.0],
        start=ZERO,
        student_start=ZERO,
    )


def test_one_client_a_cohort_by_hand():
    result = run_tiny(TINY)
    assert sorted(t["2.bias"].tolist() for t in result.teachers) == [[-0.5, 0.5], [0.5, -0.5]]
    assert sorted(result.weights.tolist()) == [[0.0, 1.0], [1.0, 0.0]]
    assert result.targets.tolist() == [[0.5, 0.5]] * 3  # each class from the cohort that knows it
    assert result.student["2.bias"] == pytest.approx([0.4, 0.4], abs=1e-7)  # two epochs of two batches, each by lr
    assert result.student["0.weight"] == 0
    assert result.stop_reasons == [MAX_ROUNDS] * 2
    assert (result.teacher_accuracy_mean, result.teacher_accuracy_std) == (50.0, 25.0)
    assert result.ensemble_accuracy == result.student_accuracy == 75.0  # a tie is class 0
    assert result.hours == 6 / 3600
    assert result.cpu_hours == 9 / 3600
    assert result.comm_gb == 2 * 128_000 / 1e9
    assert result.rounds_total == 2


def test_a_single_cohort_is_plain_fl_by_hand():
    result = run_tiny(replace(TINY, cohorts=1))
    assert result.teachers[0]["2.bias"].tolist() == [0.0, 0.0]  # the mean of the two clients
    assert result.student is result.teachers[0]
    assert result.targets is None
    assert result.weights.tolist() == [[1.0, 1.0]]
    assert result.rounds[0] == [
        {
            "round": 1,
            "participants": [0, 1],
            "loss": None,
            "moving_average": None,
            "seconds": 10.0,  # 2 + 6 + 2, over 1 + 3 + 1
            "clock": 10.0,
            "cpu_seconds": 9.0,
            "bytes": 4 * 128_000,
        }
    ]
    assert result.comm_gb == 5 * 128_000 / 1e9
    assert result.student_accuracy == result.ensemble_accuracy == 75.0
    assert run_tiny(replace(TINY, cohorts=1, patience=1)).stop_reasons == [NO_SIGNAL]


def test_the_evaluated_model_is_the_one_that_is_kept():
    settings = replace(TINY, clients=1, cohorts=1, max_rounds=2)
    best, last = run_tiny(settings, [0] * 20), run_tiny(replace(settings, keep="last"), [0] * 20)
    first, second = best.rounds[0]

    # 18 samples of class 0 in batches of ten: two steps of 1 − p(0), with p(0) = 1 / (1 + exp(−2b)) for a bias (b, −b).
    def after_a_step(b):
        return b + 1 - 1 / (1 + math.exp(-2 * b))

    after_one_round = after_a_step(after_a_step(0.0))
    after_two_rounds = after_a_step(after_a_step(after_one_round))
    assert first["loss"] == first["moving_average"]
    assert first["loss"] == pytest.approx(math.log1p(math.exp(-2 * after_one_round)), abs=1e-15)
    assert second["loss"] == pytest.approx(math.log1p(math.exp(-2 * after_two_rounds)), abs=1e-15)
    assert second["moving_average"] == pytest.approx((first["loss"] + second["loss"]) / 2, abs=1e-15)
    assert best.teachers[0]["2.bias"][0] == last.teachers[0]["2.bias"][0]  # the loss fell in both rounds
    assert best.teachers[0]["2.bias"][0] == pytest.approx(after_two_rounds, abs=1e-15)
    assert first["seconds"] == 60.0  # two steps, the short one costs as much as the full one; no transfer
    assert (len(best.clients[0].training), len(best.clients[0].validation)) == (18, 2)


def test_local_steps_draw_from_a_fresh_shuffle_and_replace_epochs():
    settings = replace(TINY, clients=1, cohorts=1, local_steps=3, batch_size=2, keep="last")
    start = random_network(np.random.default_rng(1))
    x, y = np.random.default_rng(2).normal(size=(5, 4)), np.array([0, 1, 2, 1, 0])
    rng, expected = stream(0, "batches", 0, 1), start
    for _ in range(3):
        batch = rng.permutation(5)[:2]
        gradient = network.cross_entropy_gradient(expected, x[batch], y[batch])
        expected = {name: expected[name] - gradient[name] for name in expected}
    trained = algorithm.train(settings, 0, 1, start, x, y)
    for name in expected:
        assert trained[name] == pytest.approx(expected[name], abs=1e-14)


@pytest.mark.parametrize("kind", ["dirichlet", "iid", "shards"])
def test_a_whole_run_is_consistent_and_repeatable(kind):
    rng = np.random.default_rng(3)
    settings = algorithm.Settings(
        clients=7, cohorts=3, seed=11, max_rounds=6, split=kind, alpha=0.5, participation=0.6, batch_size=4, lr=0.1,
        weights="samples", patience=2, window=2, epochs=2, distill_batch_size=8, model_bytes=1000,
    )  # fmt: skip
    y = rng.integers(3, size=90)
    data = (
        rng.normal(size=(90, 4)),
        y,
        3,
        rng.normal(size=(20, 4)),
        rng.integers(3, size=20),
        rng.normal(size=(20, 4)),
    )
    devices = (rng.uniform(10, 50, size=7), rng.uniform(1000, 5000, size=7))
    start, student = random_network(rng), random_network(rng)
    first, second = (algorithm.run(settings, *data, *devices, start, student) for _ in range(2))
    held = sorted(i for client in first.clients for i in client.training + client.validation)
    assert held == list(range(90))
    assert np.allclose(first.weights.sum(axis=0), 1.0, atol=1e-15)
    assert first.rounds_total == sum(len(records) for records in first.rounds)
    longest = max(sum(r["seconds"] for r in records) for records in first.rounds)
    assert first.hours == pytest.approx(longest / 3600, rel=1e-12)
    assert first.rounds == second.rounds
    assert all((first.student[name] == second.student[name]).all() for name in student)
