"""Cohort models made from their sums and judged by their participants, read by the host when it has time.

Axes: V models in one look, B samples of each, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from cpfl.engines.lanes.aged import Aged
from cpfl.engines.lanes.keeping import Seen
from cpfl.engines.lanes.plans import EMPTY
from cpfl.engines.lanes.step import Bench, captured
from cpfl.engines.lanes.transfer import Inbox, download, upload
from cpfl.federation import local, selection

MODELS = {"cuda": 16}  # small cohorts that share a look; elsewhere nothing is won by it
BATCH, LARGEST = 64, 1024


@dataclass(frozen=True)
class Complete:
    """A round whose clients have all ended."""

    place: int
    weight: float  # of its clients together
    pace: float
    clients: int  # of the cohort
    participants: Sequence[int]
    sizes: Sequence[int]  # training samples of each
    number: int
    seat: int  # of the first participant; the others' follow
    aged: Aged | None  # where updates are of different age


@dataclass
class Held:
    """The validation samples of one model's participants."""

    rows: NDArray[np.int32]
    plan: NDArray[np.int8] | None
    clients: list[int]  # those that have any
    starts: NDArray[np.int64]  # where each one's samples begin
    counts: NDArray[np.int64]


@dataclass
class Ticket:
    """Judgements on their way to the host."""

    models_VP: Tensor
    held: list[Held]
    looks: list[Tensor]  # losses (V, B), one tensor for each chunk of B samples
    training: Tensor  # the participants' summed training losses
    squares: Tensor  # and those of their squared sample losses
    seen: Seen  # what the parts remember
    done: torch.cuda.Event | None

    def read(self) -> tuple[list[dict[int, float]], NDArray[np.float64], NDArray[np.float64]]:
        """Mean validation loss of each model by client, and the participants' summed training losses and squares."""
        if self.done is not None:
            self.done.synchronize()
        losses = np.concatenate([look.numpy() for look in self.looks], axis=1, dtype=np.float64) if self.looks else None
        means: list[dict[int, float]] = []
        for k, held in enumerate(self.held):
            if losses is None or not held.clients:
                means.append({})
                continue
            sums = np.add.reduceat(losses[k, : len(held.rows)], held.starts)
            means.append(dict(zip(held.clients, (sums / held.counts).tolist(), strict=True)))
        return means, self.training.numpy().astype(np.float64), self.squares.numpy().astype(np.float64)


class Judging:
    """Makes cohort models and looks at them through the participants' validation samples."""

    def __init__(self, bench: Bench) -> None:
        problem, device = bench.problem, bench.device
        self._bench, self._device = bench, device
        sizes, settings = problem.data.clients.validation_sizes, problem.experiment.federation
        most = max(int(sizes[c].mean() * selection.size(settings, len(c))) for c in map(np.asarray, problem.plan))
        if device.type in MODELS and most < 2 * BATCH:  # large cohorts fill a look of their own
            self.models, batch = MODELS[device.type], BATCH
        else:
            self.models, batch = 1, min(LARGEST, BATCH * max(1, -(-most // BATCH)))
        self._batch = batch
        self._augmented = problem.data.augmented and problem.experiment.data.augment_validation
        self._params_VP = torch.zeros(self.models, bench.layout.size, dtype=bench.dtype, device=device)
        self._losses_VB = torch.zeros(self.models, batch, dtype=bench.dtype, device=device)
        weights = torch.zeros(0, dtype=bench.dtype).numpy().dtype
        floats = ((self.models,), weights)
        self._sums = Inbox(device, places=((self.models,), np.int64), weights=floats, paces=floats, sizes=floats)
        self._joined_VP = torch.zeros_like(self._params_VP) if bench.keeping.one_by_one else None
        plan = {"plan": ((self.models, batch, 5), np.int8)} if self._augmented else {}
        self._samples = Inbox(device, rows=((self.models, batch), np.int32), **plan)
        self._make: Callable[[], None] = captured(self._aggregate, device)
        self.look: Callable[[], None] = captured(self._judge, device)

    def start(self, rounds: Sequence[Complete]) -> Ticket:
        """Make and judge the models of rounds that are complete."""
        letter = self._sums.here
        letter["places"][:] = len(self._bench.sums_NP) - 1
        letter["weights"][:] = letter["paces"][:] = letter["sizes"][:] = 1
        for k, one in enumerate(rounds):
            letter["places"][k], letter["weights"][k] = one.place, one.weight
            letter["paces"][k], letter["sizes"][k] = one.pace, one.clients
        self._sums.send()
        who = upload(self._device, np.concatenate([np.asarray(one.participants, np.int64) for one in rounds]))
        if self._joined_VP is not None:
            keeping = self._bench.keeping
            for k, one in enumerate(rounds):
                models_KP = keeping.models_SP[one.seat : one.seat + len(one.participants)]
                if one.aged is None:
                    self._joined_VP[k] = keeping.server.join(models_KP)
                else:
                    newest_P = self._bench.models_NP[one.place]
                    mean_P = one.aged.merged(keeping.server, one.participants, one.sizes, models_KP, newest_P)
                    self._joined_VP[k] = mean_P
        self._make()
        seen = self._bench.keeping.seen(self._sums.there["places"], who)
        held = [self._held(one.participants, one.number) for one in rounds]
        looks = []
        for at in range(0, max(len(part.rows) for part in held), self._batch):
            samples = self._samples.here
            samples["rows"][:] = EMPTY
            for k, part in enumerate(held):
                rows = part.rows[at : at + self._batch]
                samples["rows"][k, : len(rows)] = rows
                if part.plan is not None:
                    samples["plan"][k, : len(rows)] = part.plan[at : at + self._batch]
            self._samples.send()
            self.look()
            looks.append(download(self._losses_VB))
        training = download(self._bench.losses_M.index_select(0, who))
        squares = download(self._bench.squares_M.index_select(0, who)) if self._bench.squares else torch.zeros(len(who))
        models_VP = self._params_VP.clone()
        done = None
        if self._device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Ticket(models_VP, held, looks, training, squares, seen, done)

    def _aggregate(self) -> None:
        bench, there = self._bench, self._sums.there
        places, paces_V1, sizes_V1 = there["places"], there["paces"][:, None], there["sizes"][:, None]
        means_VP = self._joined_VP
        if means_VP is None:
            means_VP = bench.sums_NP.index_select(0, places).div_(there["weights"][:, None])
        models_VP = bench.models_NP.index_select(0, places)
        self._params_VP.copy_(bench.keeping.advance(models_VP, means_VP, places, paces_V1, sizes_V1))
        bench.models_NP.index_copy_(0, places, self._params_VP)
        bench.sums_NP.index_fill_(0, places, 0)

    @torch.no_grad()
    def _judge(self) -> None:
        bench, rows_VB = self._bench, self._samples.there["rows"]
        x = bench.inputs(rows_VB, self._samples.there.get("plan"))
        self._losses_VB.copy_(vmap(bench.judged)(bench.layout.views(self._params_VP), x, bench.labels(rows_VB)))

    def _held(self, participants: Sequence[int], number: int) -> Held:
        data, seed = self._bench.problem.data, self._bench.problem.experiment.seed
        clients = [c for c in participants if data.clients.validation_sizes[c]]
        parts = [data.clients[c].validation for c in clients]
        counts = np.array([len(part) for part in parts], np.int64)
        rows = np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
        plan = None
        if self._augmented:
            drawn = [
                local.validation_augmentation(len(part), data.train.shape, seed, client, number)
                for client, part in zip(clients, parts, strict=True)
            ]
            plan = np.concatenate([np.zeros((0, 5), np.int8), *drawn]).astype(np.int8)
        return Held(rows, plan, clients, np.cumsum(counts) - counts, counts)
