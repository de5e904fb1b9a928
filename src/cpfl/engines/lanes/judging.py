"""Cohort models judged by their participants, several cohorts in one look, read by the host when it has time.

Axes: N models, V models in one look, B samples of each, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl.engines.lanes.plans import EMPTY
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.step import Judge, Samples
from cpfl.engines.lanes.transfer import download, upload
from cpfl.federation import local
from cpfl.problem import Problem

MODELS, BATCH = 16, 64


class Judging:
    """Looks at models through the participants' validation samples."""

    @dataclass
    class Ticket:
        """Judgements on their way to the host."""

        models_NP: Tensor
        places: list[tuple[int, NDArray[np.int64]]]  # of every slot: which model, whose samples
        counts: list[dict[int, int]]  # of every model: validation samples by client
        losses_VB: list[Tensor] = field(default_factory=list)
        training: Tensor | None = None
        done: torch.cuda.Event | None = None

        def read(self) -> tuple[list[dict[int, float]], NDArray[np.float64]]:
            """Mean validation loss of each model by client, and the participants' summed training losses."""
            if self.done is not None:
                self.done.synchronize()
            sums: list[dict[int, float]] = [dict.fromkeys(count, 0.0) for count in self.counts]
            losses = np.concatenate([part.numpy() for part in self.losses_VB]) if self.losses_VB else np.zeros((0, 0))
            for (model, owners), row in zip(self.places, losses, strict=False):
                values = row[: len(owners)].astype(np.float64)
                starts = np.flatnonzero(np.diff(owners, prepend=-1))
                for start, part in zip(starts, np.add.reduceat(values, starts), strict=True):
                    sums[model][int(owners[start])] += float(part)
            means = [{c: total / self.counts[k][c] for c, total in by.items()} for k, by in enumerate(sums)]
            assert self.training is not None
            return means, self.training.numpy().astype(np.float64)

    def __init__(self, problem: Problem, module: nn.Module, layout: Layout, samples: Samples) -> None:
        self._problem, self._device = problem, samples.x.device
        held = sum(len(client.validation) for client in problem.data.clients) / problem.experiment.cohorts
        # Cohorts with much to judge by fill a look of their own; small ones share one.
        count, batch = (MODELS, BATCH) if self._device.type == "cuda" and held < 2 * BATCH else (1, 4 * BATCH)
        self._judge = Judge(problem, module, layout, samples, count, batch)

    def start(
        self, models_NP: Tensor, participants: Sequence[Sequence[int]], rounds: Sequence[int], training: Tensor
    ) -> Judging.Ticket:
        """Queue the looks at these models; the ticket is read later."""
        judge, slots = self._judge, []
        counts: list[dict[int, int]] = []
        for model, (clients, round) in enumerate(zip(participants, rounds, strict=True)):
            rows, owners, plans = self._samples_of(clients, round)
            counts.append({client: int(n) for client, n in zip(*np.unique(owners, return_counts=True), strict=True)})
            for at in range(0, len(rows), judge.batch):
                part = slice(at, at + judge.batch)
                slots.append((model, rows[part], owners[part], None if plans is None else plans[part]))
        ticket = Judging.Ticket(models_NP, [(model, owners) for model, _, owners, _ in slots], counts)
        for at in range(0, len(slots), judge.models):
            ticket.losses_VB.append(self._look(models_NP, slots[at : at + judge.models]))
        ticket.training = download(training)
        if self._device.type == "cuda":
            ticket.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ticket.done.record()
        return ticket

    def _look(
        self,
        models_NP: Tensor,
        slots: Sequence[tuple[int, NDArray[np.int32], NDArray[np.int64], NDArray[np.int8] | None]],
    ) -> Tensor:
        judge = self._judge
        rows = np.full((judge.models, judge.batch), EMPTY, np.int32)
        which = np.zeros(judge.models, np.int64)
        plan = np.zeros((judge.models, judge.batch, 5), np.int8)
        for k, (model, part, _, augmentation) in enumerate(slots):
            which[k], rows[k, : len(part)] = model, part
            if augmentation is not None:
                plan[k, : len(part)] = augmentation
        models, rows_there, plan_there = upload(self._device, which, rows, plan)
        judge.params_VP.copy_(models_NP[models])
        judge.rows_VB.copy_(rows_there)
        if judge.plan_VB5 is not None:
            judge.plan_VB5.copy_(plan_there)
        judge.look()
        return download(judge.losses_VB)

    def _samples_of(
        self, clients: Sequence[int], round: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int8] | None]:
        data, experiment = self._problem.data, self._problem.experiment
        held = [data.clients[client].validation for client in clients]
        rows = np.concatenate(held).astype(np.int32)
        owners = np.repeat(np.array(clients, np.int64), [len(part) for part in held])
        if self._judge.plan_VB5 is None:
            return rows, owners, None
        plans = [
            local.validation_augmentation(len(part), data.train.shape, experiment.seed, client, round)
            for client, part in zip(clients, held, strict=True)
        ]
        return rows, owners, np.concatenate(plans).astype(np.int8)
