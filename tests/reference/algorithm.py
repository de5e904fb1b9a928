"""Algorithm 1, whole: assign cohorts, train them, distill.

The method: "M clients are split at random into n cohorts"; "Every cohort runs its own FL session until its own stopping
rule fires"; "The cohort models become teachers. For every public, unlabelled sample x: z_i = f(x; θ_i), the logits,
z̃ = Σ_i p_i ⊙ z_i. A fresh student minimises ‖f(x; θ_s) − z̃‖₁. With n = 1 there is nothing to distill: the cohort model
is the result."
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpfl.randomness import stream

from . import clock, cohorts, network, split
from .stopping import Stopping
from .weights import aggregate, class_weights, label_counts


@dataclass(frozen=True)
class Settings:
    clients: int  # M
    cohorts: int  # n
    seed: int = 0
    max_rounds: int = 100
    split: str = "dirichlet"  # dirichlet | iid | shards
    alpha: float = 1.0
    shards: int = 2  # a client
    remainder: str = "last"  # last | spread
    participation: float = 1.0
    local_epochs: int = 1
    local_steps: int | None = None  # replaces local_epochs
    batch_size: int = 20
    lr: float = 0.002
    momentum: float = 0.9
    weights: str = "equal"  # equal | samples: how the server averages
    patience: int = 50  # r
    window: int = 20
    keep: str = "best"  # best | last
    epochs: int = 50
    distill_batch_size: int = 512
    distill_lr: float = 0.001
    distill_weights: str = "labels"  # labels | uniform: p_i
    model_bytes: int = 346_000


@dataclass(frozen=True)
class Client:
    training: list[int]
    validation: list[int]


@dataclass(frozen=True)
class Result:
    clients: list[Client]
    cohorts: list[list[int]]
    rounds: list[list[dict]]  # the records of each cohort's rounds
    stop_reasons: list[str]
    teachers: list[dict]
    weights: np.ndarray  # (n, C)
    targets: np.ndarray | None  # z̃ of the public samples, (N, C); None where nothing is distilled
    student: dict
    student_accuracy: float
    teacher_accuracy_mean: float
    teacher_accuracy_std: float
    ensemble_accuracy: float
    hours: float
    cpu_hours: float
    comm_gb: float
    rounds_total: int


def run(settings, x, y, classes, x_test, y_test, x_public, compute_ms, network_kbps, start, student_start):
    """The whole method on one data set; compute_ms and network_kbps hold one number per client."""
    s = settings

    # Assign.
    parts = split.split_samples(s.split, y, classes, s.clients, s.seed, s.alpha, s.shards, s.remainder)
    clients = [Client(*split.hold_out(part, client, s.seed)) for client, part in enumerate(parts)]
    groups = cohorts.assign(s.clients, s.cohorts, s.seed)

    # Train.
    rounds, reasons, teachers = [], [], []
    for cohort, members in enumerate(groups):
        records, reason, teacher = train_cohort(s, cohort, members, clients, x, y, compute_ms, network_kbps, start)
        rounds.append(records)
        reasons.append(reason)
        teachers.append(teacher)

    # Distill.
    counts = label_counts(groups, [client.training for client in clients], y, classes)
    p = class_weights(counts, s.distill_weights)
    if s.cohorts == 1:
        targets, student = None, teachers[0]
    else:
        targets = aggregate(p, [network.logits(teacher, x_public) for teacher in teachers])
        student = distill(s, x_public, targets, student_start)

    # Measure.
    test_logits = [network.logits(teacher, x_test) for teacher in teachers]
    teacher_accuracies = [network.accuracy(z, y_test) for z in test_logits]
    every_round = [record for records in rounds for record in records]
    total_bytes = sum(r["bytes"] for r in every_round) + clock.final_bytes(s.cohorts, s.model_bytes)
    return Result(
        clients=clients,
        cohorts=groups,
        rounds=rounds,
        stop_reasons=reasons,
        teachers=teachers,
        weights=p,
        targets=targets,
        student=student,
        student_accuracy=network.accuracy(network.logits(student, x_test), y_test),
        teacher_accuracy_mean=float(np.mean(teacher_accuracies)),
        teacher_accuracy_std=float(np.std(teacher_accuracies, ddof=0)),
        ensemble_accuracy=network.accuracy(aggregate(p, test_logits), y_test),
        hours=max(records[-1]["clock"] for records in rounds) / 3600,
        cpu_hours=sum(r["cpu_seconds"] for r in every_round) / 3600,
        comm_gb=total_bytes / 1e9,
        rounds_total=len(every_round),
    )


def train_cohort(s, cohort, members, clients, x, y, compute_ms, network_kbps, start):
    """One cohort's FL session, from the common start model to its stop: (records, reason, teacher)."""
    model, now, records = start, 0.0, []
    rule = Stopping(s.patience, s.window, s.max_rounds)
    for t in range(1, s.max_rounds + 1):
        chosen = cohorts.participants(members, s.participation, cohort, t, s.seed)

        models, importance, seconds = [], [], []
        for k in chosen:
            own = clients[k].training
            models.append(train(s, k, t, model, x[own], y[own]))
            importance.append(len(own) if s.weights == "samples" else 1)
            steps = clock.steps_of(len(own), s.batch_size, s.local_epochs, s.local_steps)
            seconds.append(clock.training_seconds(steps, s.batch_size, len(own), compute_ms[k]))
        model = network.average(models, importance)

        losses = []
        for k in chosen:
            held_out = clients[k].validation
            if held_out:
                losses.append(network.cross_entropy(model, x[held_out], y[held_out]))
        loss = sum(losses) / len(losses) if losses else None
        rule.update(t, loss, model)

        duration = clock.round_seconds(seconds, [network_kbps[k] for k in chosen], s.model_bytes, len(members))
        now += duration
        records.append(
            {
                "round": t,
                "participants": chosen,
                "loss": loss,
                "moving_average": rule.moving_average,
                "seconds": duration,
                "clock": now,
                "cpu_seconds": sum(seconds),
                "bytes": clock.round_bytes(len(chosen), s.model_bytes, len(members)),
            }
        )
        reason = rule.reason_to_stop(t)
        if reason is not None:
            return records, reason, rule.teacher(s.keep, model)
    raise ValueError("max_rounds must be at least 1")


def train(s, client, round_number, model, x, y):
    """One client's local work: the cohort's model after some steps of SGD on the client's own samples."""
    rng = stream(s.seed, "batches", client, round_number)
    n = len(y)
    batches = []
    if s.local_steps is not None:
        for _ in range(s.local_steps):
            batches.append(rng.permutation(n)[: s.batch_size])
    else:
        for _ in range(s.local_epochs):
            order = rng.permutation(n)
            for first in range(0, n, s.batch_size):
                batches.append(order[first : first + s.batch_size])

    sgd = network.SGD(model, s.lr, s.momentum)
    for batch in batches:
        model = sgd.step(model, network.cross_entropy_gradient(model, x[batch], y[batch]))
    return model


def distill(s, x_public, targets, student_start):
    """A fresh student learns the aggregated logits."""
    student = student_start
    adam = network.Adam(student, s.distill_lr)
    for epoch in range(s.epochs):
        order = stream(s.seed, "distill", epoch).permutation(len(x_public))
        for first in range(0, len(order), s.distill_batch_size):
            batch = order[first : first + s.distill_batch_size]
            student = adam.step(student, network.l1_gradient(student, x_public[batch], targets[batch]))
    return student
