"""New cohort models are made from their clients' and evaluated by the participants; the host reads the losses later.

Axes: V models evaluated together, B samples of each, K participants, P parameters, Q running statistics of BatchNorm.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.engines.lanes.batch_schedule import EMPTY, ClientRound
from cpfl.engines.lanes.buffers import DeviceBuffers, StagingBuffer, download, upload
from cpfl.engines.lanes.graphs import captured, recorded
from cpfl.engines.lanes.member import Member, ServerKey
from cpfl.errors import DivergedError
from cpfl.federation import local_training
from cpfl.federation.messages import AlgorithmState, RoundRequest
from cpfl.federation.optimizers.base import client_weight
from cpfl.federation.rounds import staleness
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import ClientResult, RoundResult, Session
from cpfl.models import State

MODELS = {"cuda": 16}  # small cohorts that are evaluated together; elsewhere it gains nothing
BATCH, LARGEST = 64, 1024


@dataclass(eq=False)
class Round:
    """A round of one cohort that is in training, or complete and not evaluated yet."""

    member: Member
    session: Session
    number: int
    clients: dict[int, ClientRound]  # by participant, in their order
    cohort_slot: int
    slot: int  # of the first client's model, where all are aggregated together; the others follow
    following: Sequence[ClientRound] = ()  # of the next round, as far as they are known
    request: RoundRequest | None = None  # where clients may have started from older models
    starts: dict[int, Tensor] = field(default_factory=dict)  # those older models by client, as rows
    missing: int = 0  # clients that have not ended
    weight: float = 0.0  # of those that have
    share: float = 0.0  # of their running statistics
    dropped: bool = False  # its run has failed, or its cohort has stopped or waits


@dataclass
class PendingEvaluation:
    """New models of complete rounds, what the optimizers remember with them, and losses on their way to the host."""

    rounds: Sequence[Round]
    models_VP: Tensor
    stats_VQ: Tensor
    cohort_states: dict[str, Tensor]  # (V, P)
    client_states: Tensor | None  # of all rounds' participants, one after the other
    held: list[dict[int, int]]  # validation samples by participant, of those that have any
    chunks: list[Tensor]  # losses (V, B), one tensor for each chunk of B samples
    training: Tensor  # the participants' summed training losses
    squared_losses: Tensor | None  # and those of their squared sample losses
    done: torch.cuda.Event | None


class EvaluatorKind(NamedTuple):
    """What the cohorts of an evaluator have in common."""

    server: ServerKey
    models: int  # V
    batch: int  # B

    @classmethod
    def of(cls, member: Member, device: torch.device) -> "EvaluatorKind":
        """The kind for the cohorts of a run."""
        sizes = member.clients.validation_sizes
        cohorts = map(np.asarray, member.task.cohorts)
        most = max(int(sizes[c].mean() * participants_per_round(member.settings, len(c))) for c in cohorts)
        if device.type in MODELS and most < 2 * BATCH:  # a large cohort fills a batch alone
            return cls(member.server_key, MODELS[device.type], BATCH)
        return cls(member.server_key, 1, min(LARGEST, BATCH * max(1, -(-most // BATCH))))


class Evaluator:
    """Makes cohort models by one server optimizer, and evaluates them on the participants' validation samples."""

    def __init__(self, buffers: DeviceBuffers, kind: EvaluatorKind) -> None:
        task, device, self._buffers = buffers.task, buffers.device, buffers
        server, self.models, self._batch = kind
        self._server, self._cohort_NP = buffers.algorithm.servers[server], buffers.algorithm.cohort_rows(server)
        self._augmented = task.data.augmented and task.experiment.data.augment_validation
        self._params_VP = torch.zeros(self.models, buffers.layout.size, dtype=buffers.dtype, device=device)
        self._stats_VQ = self._params_VP.new_zeros(self.models, buffers.stats_NQ.shape[1])
        self._losses_VB = torch.zeros(self.models, self._batch, dtype=buffers.dtype, device=device)
        cohorts, floats = ((self.models,), torch.int64), ((self.models,), buffers.dtype)
        sums = dict.fromkeys(("weights", "shares", "scales", "sizes"), floats)
        self._sums = StagingBuffer(device, cohorts=cohorts, **sums)
        self._means_VP = torch.zeros_like(self._params_VP) if buffers.algorithm.needs_all_models else None
        shape = (self.models, self._batch)
        augmentation = {"augmentation": ((*shape, 5), torch.int8)} if self._augmented else {}
        self._samples = StagingBuffer(device, rows=(shape, torch.int32), **augmentation)
        self._stage([])  # warm-ups must not touch open rounds
        self._sums.send()
        losses, records = buffers.model.evaluation_losses, device.type == "cpu" and buffers.model.is_short
        self._losses: Callable[..., Tensor] = recorded(losses) if records else losses
        self.aggregate: Callable[[], None] = captured(self._aggregate, device)
        self.evaluate: Callable[[], None] = captured(self._evaluate, device)

    def start(self, rounds: Sequence[Round]) -> PendingEvaluation:
        """Make and evaluate the new models of complete rounds."""
        buffers, algorithm = self._buffers, self._buffers.algorithm
        self._stage(rounds)
        self._sums.send()
        clients = upload(buffers.device, [one.member.client_row(client) for one in rounds for client in one.clients])
        if self._means_VP is not None:
            for k, one in enumerate(rounds):
                self._means_VP[k] = self._mean(one)
        self.aggregate()
        cohorts = self._sums.device["cohorts"]
        cohort_states = {name: rows.index_select(0, cohorts) for name, rows in self._cohort_NP.items()}
        client_states = None
        if buffers.local is not None:
            client_states = buffers.local.rows(clients)
        elif algorithm.client.has_client_state:
            client_states = algorithm.client_states_MP.index_select(0, clients)
        held, arrays = zip(*map(self._validation, rounds), strict=True)
        chunks = []
        for start in range(0, max(sum(counts.values()) for counts in held), self._batch):
            samples = self._samples.host
            samples["rows"][:] = EMPTY
            for k, of_round in enumerate(arrays):
                for name, values in of_round.items():
                    part = values[start : start + self._batch]
                    samples[name][k, : len(part)] = part
            self._samples.send()
            self.evaluate()
            chunks.append(download(self._losses_VB))
        training, squared = download(buffers.losses_M.index_select(0, clients)), None
        if buffers.has_squared_losses:
            squared = download(buffers.squared_losses_M.index_select(0, clients))
        models_VP, done = self._params_VP.clone(), None
        if buffers.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        states = (models_VP, self._stats_VQ.clone(), cohort_states, client_states)
        return PendingEvaluation(rounds, *states, list(held), chunks, training, squared, done)

    def _stage(self, rounds: Sequence[Round]) -> None:
        """Say which cohorts get new models; what is left over is for the row that stays empty."""
        staged = self._sums.host
        staged["cohorts"][:] = len(self._buffers.sums_NP) - 1
        staged["weights"][:] = staged["shares"][:] = staged["scales"][:] = staged["sizes"][:] = 1
        for k, one in enumerate(rounds):
            staged["cohorts"][k], staged["weights"][k] = one.cohort_slot, one.weight
            staged["shares"][k], staged["sizes"][k] = one.share, len(one.session.clients)
            if one.request is None:
                work = [(client.samples, client.steps) for client in one.clients.values()]
                staged["scales"][k] = one.member.server.update_scale(work)

    def results(self, pending: PendingEvaluation) -> Iterator[tuple[Round, RoundResult | DivergedError]]:
        """Wait for an evaluation; the results of its rounds, less those of sessions that have stopped or wait since."""
        if pending.done is not None:
            pending.done.synchronize()
        chunks, layout, local = [chunk.numpy() for chunk in pending.chunks], self._buffers.layout, self._buffers.local
        end = 0
        losses_VB = np.concatenate(chunks, axis=1, dtype=np.float64) if chunks else None
        for k, (round, held) in enumerate(zip(pending.rounds, pending.held, strict=True)):
            own = slice(end, end + len(round.clients))
            end = own.stop
            if round.session.idle or round.dropped:
                continue
            validation: dict[int, float] = {}
            if held and losses_VB is not None:
                counts = np.array(list(held.values()))
                sums = np.add.reduceat(losses_VB[k, : counts.sum()], np.cumsum(counts) - counts)
                validation = dict(zip(held, (sums / counts).tolist(), strict=True))
            state = AlgorithmState({name: layout.views(rows_VP[k]) for name, rows_VP in pending.cohort_states.items()})
            if pending.client_states is not None:
                # Copies: a session may keep a client's row for long, and must not keep all others with it.
                for one, row in zip(round.clients.values(), pending.client_states[own], strict=True):
                    kept, before = row.clone(), self._before(round, one)
                    state.clients[one.client] = local.state(kept, before, one.steps) if local else layout.views(kept)
            squared = None if pending.squared_losses is None else pending.squared_losses[own].tolist()
            try:
                results = self._client_results(round, validation, pending.training[own].tolist(), squared)
            except DivergedError as error:
                yield round, error
                continue
            first = next(iter(round.clients.values()))  # counters are the first client's
            stats = self._buffers.model.stats.state(pending.stats_VQ[k], self._before(round, first), first.steps)
            yield round, RoundResult(layout.state(pending.models_VP[k]) | stats, results, algorithm_state=state)

    def _before(self, round: Round, one: ClientRound) -> State:
        """Where a client's counters began: with its own model, if it has one, or with its cohort's."""
        known = round.session.algorithm_state.clients if self._buffers.local is not None else {}
        return known.get(one.client, round.session.model)

    def _client_results(
        self, round: Round, validation: dict[int, float], losses: list[float], squared: list[float] | None
    ) -> list[ClientResult]:
        results, settings = [], round.member.settings
        for k, one in enumerate(round.clients.values()):
            loss, value = losses[k] / one.steps, validation.get(one.client)
            for number in (loss, value):
                if number is not None and not math.isfinite(number):
                    raise DivergedError(round.session.cohort, one.client, round.number, number)
            samples = local_training.samples_in_steps(settings, one.samples, one.steps)
            reported = None if squared is None else squared[k]
            results.append(ClientResult(one.client, samples, one.steps, loss, value, squared_losses=reported))
        return results

    def _mean(self, one: Round) -> Tensor:
        """What takes the place of the clients' mean where the server must see all models."""
        algorithm, newest_P = self._buffers.algorithm, self._buffers.models_NP[one.cohort_slot]
        models_KP = algorithm.models_SP[one.slot : one.slot + len(one.clients)]
        server, request = one.member.server, one.request
        if request is None:
            return server.aggregate(models_KP)
        starts_KP = torch.stack([one.starts.get(client, newest_P) for client in one.clients])
        updates_KP = server.clip_update(models_KP, starts_KP) - starts_KP
        weights = [client_weight(server.settings.weights, client.samples) for client in one.clients.values()]
        ages = [request.round - request.origin(client).round for client in one.clients]
        return newest_P + staleness.combined(request.aggregation, updates_KP, ages, weights)

    def _aggregate(self) -> None:
        buffers, algorithm, staged = self._buffers, self._buffers.algorithm, self._sums.device
        cohorts, scales_V1, sizes_V1 = staged["cohorts"], staged["scales"][:, None], staged["sizes"][:, None]
        means_VP = self._means_VP
        if means_VP is None:
            means_VP = buffers.sums_NP.index_select(0, cohorts).div_(staged["weights"][:, None])
        models_VP = buffers.models_NP.index_select(0, cohorts)
        server_VP = {name: rows.index_select(0, cohorts) for name, rows in self._server.rows_NP.items()}
        models_VP = self._server.optimizer.update(models_VP, means_VP, scales_V1, server_VP)
        for name, rows in self._server.rows_NP.items():
            rows.index_copy_(0, cohorts, server_VP[name])
        if algorithm.client.has_client_state:
            changes_VP = algorithm.changes_NP.index_select(0, cohorts).div_(sizes_V1)
            states_VP = algorithm.means_NP.index_select(0, cohorts).add_(changes_VP)
            algorithm.means_NP.index_copy_(0, cohorts, states_VP)
            algorithm.changes_NP.index_fill_(0, cohorts, 0)
            models_VP = algorithm.client.correct_model(models_VP, states_VP)
        self._params_VP.copy_(models_VP)
        buffers.models_NP.index_copy_(0, cohorts, self._params_VP)
        buffers.sums_NP.index_fill_(0, cohorts, 0)
        self._stats_VQ.copy_(buffers.stats_sums_NQ.index_select(0, cohorts).div_(staged["shares"][:, None]))
        buffers.stats_NQ.index_copy_(0, cohorts, self._stats_VQ)
        buffers.stats_sums_NQ.index_fill_(0, cohorts, 0)

    def _evaluate(self) -> None:
        x, y = self._buffers.samples(self._samples.device)
        self._losses_VB.copy_(self._losses(self._params_VP, self._stats_VQ, x, y))

    def _validation(self, round: Round) -> tuple[dict[int, int], dict[str, NDArray[np.generic]]]:
        """The number of validation samples by participant, and these samples for the staging buffer."""
        data, seed = round.member.task.data, round.member.seed
        parts = {c: data.clients[c].validation for c in round.clients if data.clients.validation_sizes[c]}
        counts = {client: len(part) for client, part in parts.items()}
        arrays = {"rows": np.concatenate([np.zeros(0, np.int32), *parts.values()])}
        if self._augmented:
            drawn = [
                local_training.augmentation(count, data.train.shape, seed, client, round.number, "val-augment")
                for client, count in counts.items()
            ]
            arrays["augmentation"] = np.concatenate([np.zeros((0, 5), np.int8), *drawn])
        return counts, arrays
