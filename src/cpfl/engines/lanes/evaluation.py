"""New cohort models are made from their clients' and evaluated by the participants; the host reads the losses later.

Axes: V models evaluated together, B samples of each, K participants, P parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from cpfl.engines.lanes.batch_schedule import EMPTY, ClientRound
from cpfl.engines.lanes.buffers import DeviceBuffers, StagingBuffer, download, upload
from cpfl.engines.lanes.step import captured
from cpfl.federation import local_training
from cpfl.federation.messages import AlgorithmState, RoundRequest
from cpfl.federation.optimizers.base import ServerOptimizer, client_weight
from cpfl.federation.rounds import staleness
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.models.layout import Layout

MODELS = {"cuda": 16}  # small cohorts that are evaluated together; elsewhere it gains nothing
BATCH, LARGEST = 64, 1024


@dataclass(frozen=True)
class StaleUpdates:
    """A round some of whose clients started from a model that is no longer their cohort's newest."""

    request: RoundRequest
    starts: dict[int, Tensor]  # the older models by client, as rows

    def merged(
        self, server: ServerOptimizer, clients: Sequence[int], sizes: Sequence[int], models_KP: Tensor, newest_P: Tensor
    ) -> Tensor:
        """The clients' mean, for the server optimizer."""
        starts_KP = torch.stack([self.starts.get(client, newest_P) for client in clients])
        updates_KP = server.clip_update(models_KP, starts_KP) - starts_KP
        weights = [client_weight(server.settings.weights, size) for size in sizes]
        ages = [self.request.round - self.request.origin(client).round for client in clients]
        return newest_P + staleness.combined(self.request.aggregation, updates_KP, ages, weights)


@dataclass(eq=False)
class Round:
    """A round of one cohort that is in training, or complete and not evaluated yet."""

    session: Session
    number: int
    clients: dict[int, ClientRound]  # by participant, in their order
    sizes: Sequence[int]  # their training samples
    cohort_slot: int
    slot: int  # of the first client's model, where all are aggregated together; the others follow
    following: Sequence[ClientRound] = ()  # of the next round, as far as they are known
    stale: StaleUpdates | None = None
    missing: int = 0  # clients that have not ended
    weight: float = 0.0  # of those that have


@dataclass
class ValidationSamples:
    """The validation samples of one model's participants."""

    rows: NDArray[np.int32]
    augmentation: NDArray[np.int8] | None
    clients: list[int]  # those that have any
    starts: NDArray[np.int64]  # where each one's samples begin
    counts: NDArray[np.int64]


@dataclass
class PendingEvaluation:
    """New models, what the optimizers remember with them, and losses on their way to the host."""

    layout: Layout
    models_VP: Tensor
    cohort_states: dict[str, Tensor]  # (V, P)
    client_states: Tensor | None  # of all rounds' participants, one after the other
    held: list[ValidationSamples]
    chunks: list[Tensor]  # losses (V, B), one tensor for each chunk of B samples
    training: Tensor  # the participants' summed training losses
    squared_losses: Tensor  # and those of their squared sample losses
    done: torch.cuda.Event | None

    def read(self) -> tuple[list[dict[int, float]], NDArray[np.float64], NDArray[np.float64]]:
        """Each model's mean validation loss by client, and the participants' summed training losses and squares."""
        if self.done is not None:
            self.done.synchronize()
        means: list[dict[int, float]] = [{} for _ in self.held]
        if self.chunks:
            losses = np.concatenate([chunk.numpy() for chunk in self.chunks], axis=1, dtype=np.float64)
            for k, held in enumerate(self.held):
                if held.clients:
                    sums = np.add.reduceat(losses[k, : len(held.rows)], held.starts)
                    means[k] = dict(zip(held.clients, (sums / held.counts).tolist(), strict=True))
        return means, self.training.numpy().astype(np.float64), self.squared_losses.numpy().astype(np.float64)

    def algorithm_state(self, k: int, first: int, participants: Sequence[int]) -> AlgorithmState:
        """What the k-th round changed, whose participants begin at row `first`."""
        cohort = {name: self.layout.views(rows_VP[k]) for name, rows_VP in self.cohort_states.items()}
        if self.client_states is None:
            return AlgorithmState(cohort)
        rows = zip(participants, self.client_states[first : first + len(participants)], strict=True)
        # Copies: a session may keep a client's row for long, and must not keep all others of this round with it.
        return AlgorithmState(cohort, {client: self.layout.views(row.clone()) for client, row in rows})


class Evaluator:
    """Makes cohort models and evaluates them on the participants' validation samples."""

    def __init__(self, buffers: DeviceBuffers) -> None:
        task, device, self._buffers = buffers.task, buffers.device, buffers
        sizes, settings = task.data.clients.validation_sizes, task.experiment.federation
        most = max(
            int(sizes[c].mean() * participants_per_round(settings, len(c))) for c in map(np.asarray, task.cohorts)
        )
        if device.type in MODELS and most < 2 * BATCH:  # a large cohort fills a batch alone
            self.models, self._batch = MODELS[device.type], BATCH
        else:
            self.models, self._batch = 1, min(LARGEST, BATCH * max(1, -(-most // BATCH)))
        self._augmented = task.data.augmented and task.experiment.data.augment_validation
        self._params_VP = torch.zeros(self.models, buffers.layout.size, dtype=buffers.dtype, device=device)
        self._losses_VB = torch.zeros(self.models, self._batch, dtype=buffers.dtype, device=device)
        floats = ((self.models,), torch.zeros(0, dtype=buffers.dtype).numpy().dtype)
        self._sums = StagingBuffer(
            device, cohorts=((self.models,), np.int64), weights=floats, scales=floats, sizes=floats
        )
        self._means_VP = torch.zeros_like(self._params_VP) if buffers.algorithm.needs_all_models else None
        shape = (self.models, self._batch)
        augmentation = {"augmentation": ((*shape, 5), np.int8)} if self._augmented else {}
        self._samples = StagingBuffer(device, rows=(shape, np.int32), **augmentation)
        self.aggregate: Callable[[], None] = captured(self._aggregate, device)
        self.evaluate: Callable[[], None] = captured(self._evaluate, device)

    def start(self, rounds: Sequence[Round]) -> PendingEvaluation:
        """Make and evaluate the new models of complete rounds."""
        buffers, algorithm, staged = self._buffers, self._buffers.algorithm, self._sums.host
        staged["cohorts"][:] = len(buffers.sums_NP) - 1
        staged["weights"][:] = staged["scales"][:] = staged["sizes"][:] = 1
        for k, one in enumerate(rounds):
            staged["cohorts"][k], staged["weights"][k] = one.cohort_slot, one.weight
            staged["sizes"][k] = len(one.session.clients)
            if one.stale is None:
                steps = [client.steps for client in one.clients.values()]
                staged["scales"][k] = algorithm.server.update_scale(list(zip(one.sizes, steps, strict=True)))
        self._sums.send()
        clients = upload(buffers.device, np.concatenate([np.array(list(one.clients), np.int64) for one in rounds]))
        for k, one in enumerate(rounds if self._means_VP is not None else ()):
            assert self._means_VP is not None
            models_KP = algorithm.models_SP[one.slot : one.slot + len(one.clients)]
            if one.stale is None:
                self._means_VP[k] = algorithm.server.aggregate(models_KP)
            else:
                about = (algorithm.server, list(one.clients), one.sizes)
                self._means_VP[k] = one.stale.merged(*about, models_KP, buffers.models_NP[one.cohort_slot])
        self.aggregate()
        states = algorithm.states(self._sums.device["cohorts"], clients)
        held = [self._held(one) for one in rounds]
        chunks = []
        for start in range(0, max(len(part.rows) for part in held), self._batch):
            samples = self._samples.host
            samples["rows"][:] = EMPTY
            for k, part in enumerate(held):
                rows = part.rows[start : start + self._batch]
                samples["rows"][k, : len(rows)] = rows
                if part.augmentation is not None:
                    samples["augmentation"][k, : len(rows)] = part.augmentation[start : start + self._batch]
            self._samples.send()
            self.evaluate()
            chunks.append(download(self._losses_VB))
        training, squared = download(buffers.losses_M.index_select(0, clients)), torch.zeros(len(clients))
        if buffers.has_squared_losses:
            squared = download(buffers.squared_losses_M.index_select(0, clients))
        models_VP, done = self._params_VP.clone(), None
        if buffers.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return PendingEvaluation(buffers.layout, models_VP, *states, held, chunks, training, squared, done)

    def _aggregate(self) -> None:
        buffers, staged = self._buffers, self._sums.device
        cohorts, scales_V1, sizes_V1 = staged["cohorts"], staged["scales"][:, None], staged["sizes"][:, None]
        means_VP = self._means_VP
        if means_VP is None:
            means_VP = buffers.sums_NP.index_select(0, cohorts).div_(staged["weights"][:, None])
        models_VP = buffers.models_NP.index_select(0, cohorts)
        self._params_VP.copy_(buffers.algorithm.advance(models_VP, means_VP, cohorts, scales_V1, sizes_V1))
        buffers.models_NP.index_copy_(0, cohorts, self._params_VP)
        buffers.sums_NP.index_fill_(0, cohorts, 0)

    @torch.no_grad()
    def _evaluate(self) -> None:
        buffers, rows_VB = self._buffers, self._samples.device["rows"]
        x = buffers.inputs(rows_VB, self._samples.device.get("augmentation"))
        params = buffers.layout.views(self._params_VP)
        self._losses_VB.copy_(vmap(buffers.eval_losses)(params, x, buffers.labels(rows_VB)))

    def _held(self, round: Round) -> ValidationSamples:
        data, seed = self._buffers.task.data, self._buffers.task.experiment.seed
        clients = [client for client in round.clients if data.clients.validation_sizes[client]]
        parts = [data.clients[client].validation for client in clients]
        counts = np.array([len(part) for part in parts], np.int64)
        rows = np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
        augmentation = None
        if self._augmented:
            drawn = [
                local_training.validation_augmentation(len(part), data.train.shape, seed, client, round.number)
                for client, part in zip(clients, parts, strict=True)
            ]
            augmentation = np.concatenate([np.zeros((0, 5), np.int8), *drawn]).astype(np.int8)
        return ValidationSamples(rows, augmentation, clients, np.cumsum(counts) - counts, counts)
