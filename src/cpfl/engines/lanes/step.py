"""What lanes do, each a graph on a GPU: take clients in, advance all by a step, add models of ended clients to sums.

Axes: L lanes, B batch, P parameters, Q running statistics of BatchNorm, N cohorts, F staged clients. Row L or N is for
entries that stay empty.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from cpfl.engines.lanes.batch_schedule import EMPTY
from cpfl.engines.lanes.buffers import DeviceBuffers, StagingBuffer
from cpfl.engines.lanes.graphs import captured, faster, recorded
from cpfl.federation.optimizers.base import ClientState, Step
from cpfl.models import State
from cpfl.models.adapter import Inputs

STAGED = 16  # clients that are taken in or collected at once
STAGED_OF_COHORT = 32  # clients of one cohort that are collected at once
MANY_OF_COHORT = 4  # from so many on they are collected at once

Entry = tuple[int, int, int, float, float, int]
"""A staged client: its lane, its cohort's slot, the client, its learning rate or weight, the weight of its running
statistics, its model's slot."""

Losses = tuple[Tensor, Tensor, Tensor | None]
"""Every lane's loss, its new running statistics, and the sum of its samples' squared losses."""
Gradients = tuple[Losses, Tensor]
"""With the gradient of every lane's loss by its parameters, (L, P)."""


class Lanes:
    """L clients in training: their parameters, losses, and what their client optimizer has beside them."""

    def __init__(self, buffers: DeviceBuffers, count: int) -> None:
        device, task, self._optimizer = buffers.device, buffers.task, buffers.algorithm.client
        self.count, self.buffers, batch = count, buffers, buffers.batch
        compiled = device.type == "cuda"
        self.params_LP = torch.zeros(count + 1, buffers.layout.size, dtype=buffers.dtype, device=device)
        self.stats_LQ = self.params_LP.new_zeros(count + 1, buffers.stats_NQ.shape[1])
        self.losses_L = torch.zeros(count + 1, dtype=buffers.dtype, device=device)
        self.squared_losses_L = torch.zeros_like(self.losses_L)
        self._rates_L1 = torch.zeros(count + 1, 1, dtype=buffers.dtype, device=device)
        has_state = self._optimizer.has_client_state
        needed = {"start": self._optimizer.needs_start, "client_state": has_state, "mean_client_state": has_state}
        self._rows = {name: torch.zeros_like(self.params_LP) for name, needs in needed.items() if needs}
        self._state = ClientState(
            self._rates_L1 if buffers.rate is None else buffers.rate,
            torch.zeros_like(self._rates_L1),
            {name: torch.zeros_like(self.params_LP) for name in self._optimizer.buffers},
            **self._rows,
        )
        augmentation = {"augmentation": ((count, batch, 5), torch.int8)} if task.data.augmented else {}
        self.batches = StagingBuffer(device, rows=((count, batch), torch.int32), **augmentation)
        integers, floats = ((STAGED,), torch.int64), ((STAGED,), buffers.dtype)
        self._entering = StagingBuffer(device, lanes=integers, cohorts=integers, clients=integers, rates=floats)
        self._ended = StagingBuffer(
            device, lanes=integers, cohorts=integers, clients=integers, weights=floats, shares=floats, slots=integers
        )
        size, one = (min(STAGED_OF_COHORT, count),), ((1,), torch.int64)
        integers, floats = (size, torch.int64), (size, buffers.dtype)
        self._ended_of_cohort = StagingBuffer(
            device, lanes=integers, cohorts=one, clients=integers, weights=floats, shares=floats
        )
        self._leaf = self.params_LP.detach().requires_grad_()
        self._gradients: Callable[[], Gradients] = self._from_rows
        self._forward: Callable[[], Losses] = self._losses_of_rows
        if not compiled:
            views = buffers.layout.views(self.params_LP[:count])
            self._views = {name: view.detach().requires_grad_() for name, view in views.items()}
            self._gradients_LP = torch.zeros_like(self.params_LP)
            self._gradient_views = list(buffers.layout.views(self._gradients_LP[:count]).values())
            self._gradients, work = self._from_views, self._differentiated
            self._of_batch = recorded(work) if buffers.model.is_short else work
        elif buffers.model.is_short:
            self._forward = faster(self._losses_of_rows)
        # Compiled, a step reads each row once instead of once for every operation. A user's optimizer stays as it is.
        ours = type(self._optimizer).__module__.startswith("cpfl.")
        self._compiled_step: Step | None = faster(self._optimizer.step) if compiled and ours else None
        self.batches.device["rows"].fill_(EMPTY)
        # Warm-ups must not touch open rounds.
        for staging in (self._entering, self._ended, self._ended_of_cohort):
            self._stage(staging, [])
        self.step: Callable[[], None] = captured(self._step, device)
        self._fill_graph: Callable[[], None] = captured(self._fill, device)
        self._collect_graph: Callable[[], None] = captured(self._collect, device)
        self._collect_cohort_graph: Callable[[], None] = captured(self._collect_cohort, device)
        for state in self.states():
            state.zero_()

    def states(self) -> list[Tensor]:
        """All that clients in training have, by lane."""
        sums = [self.losses_L, self.squared_losses_L, self._rates_L1, self._state.steps]
        return [self.params_LP, self.stats_LQ, *sums, *self._state.buffers.values(), *self._rows.values()]

    def fill(self, entering: Sequence[Entry], older: dict[int, Tensor]) -> None:
        """Lanes start one client each, from its cohort's newest model or from an older one, which is given by lane."""
        self._replay(self._fill_graph, self._entering, entering)
        for rows_LP in (self.params_LP, self._state.start):
            if older and rows_LP is not None:
                torch._foreach_copy_([rows_LP[lane] for lane in older], list(older.values()))

    def collect(self, ended: Sequence[Entry]) -> None:
        """Add models of clients that have ended to the sums of their cohorts, always in the same order."""
        cohorts = dict[int, list[Entry]]()
        for entry in ended:
            cohorts.setdefault(entry[1], []).append(entry)
        many = self.count + 1 if self.buffers.algorithm.needs_all_models else MANY_OF_COHORT
        for entries in cohorts.values():
            if len(entries) >= many:
                self._replay(self._collect_cohort_graph, self._ended_of_cohort, entries)
        # One client of each cohort at a time: sums are then added up in one order, always.
        for each in zip_longest(*(entries for entries in cohorts.values() if len(entries) < many)):
            self._replay(self._collect_graph, self._ended, [entry for entry in each if entry is not None])

    def _replay(self, graph: Callable[[], None], staging: StagingBuffer, entries: Sequence[Entry]) -> None:
        """Stage as many entries as fit, and run the graph, until all are done."""
        size = len(staging.host["lanes"])
        for start in range(0, len(entries), size):
            self._stage(staging, entries[start : start + size])
            graph()

    def _stage(self, staging: StagingBuffer, entries: Sequence[Entry]) -> None:
        buffers, arrays = self.buffers, staging.host
        unused = {"lanes": self.count, "cohorts": len(buffers.models_NP) - 1, "clients": len(buffers.losses_M) - 1}
        unused["slots"] = buffers.algorithm.empty_model
        for name, array in arrays.items():
            array[:] = unused.get(name, 0)
        for array, values in zip(arrays.values(), zip(*entries, strict=True), strict=False):  # not all have slots
            array[: len(entries)] = values[: len(array)]  # clients of one cohort have one cohort slot
        staging.send()

    def _fill(self) -> None:
        arrays, buffers, state = self._entering.device, self.buffers, self._state
        lanes, cohorts, clients = arrays["lanes"], arrays["cohorts"], arrays["clients"]
        models_FP = buffers.models_NP.index_select(0, cohorts)
        stats_FQ = buffers.stats_NQ.index_select(0, cohorts)
        if buffers.local is not None:
            models_FP, stats_FQ = buffers.local.start(clients, models_FP, stats_FQ)
        self.params_LP.index_copy_(0, lanes, models_FP)
        self.stats_LQ.index_copy_(0, lanes, stats_FQ)
        for values in (self.losses_L, self.squared_losses_L, state.steps, *state.buffers.values()):
            values.index_fill_(0, lanes, 0)
        self._rates_L1.index_copy_(0, lanes, arrays["rates"][:, None])
        if state.start is not None:
            state.start.index_copy_(0, lanes, models_FP)
        if state.client_state is not None and state.mean_client_state is not None:
            algorithm = buffers.algorithm
            state.client_state.index_copy_(0, lanes, algorithm.client_states_MP.index_select(0, clients))
            state.mean_client_state.index_copy_(0, lanes, algorithm.means_NP.index_select(0, cohorts))

    def _collect(self, of_cohort: bool = False) -> None:
        """Clients of different cohorts, or all of one."""
        arrays = (self._ended_of_cohort if of_cohort else self._ended).device
        buffers, algorithm = self.buffers, self.buffers.algorithm
        lanes, cohorts, clients = arrays["lanes"], arrays["cohorts"], arrays["clients"]
        models_FP, filled_F1 = self.params_LP.index_select(0, lanes), None
        stats_FQ = self.stats_LQ.index_select(0, lanes)
        if buffers.local is not None:
            buffers.local.keep(clients, models_FP, stats_FQ)
        if of_cohort:
            filled_F1 = (lanes != self.count)[:, None]
        if self._optimizer.has_client_state:
            state = self._selected(lanes)
            assert state.client_state is not None
            new_FP, old_FP = self._optimizer.update_client_state(models_FP, state), state.client_state
            algorithm.client_states_MP.index_copy_(0, clients, new_FP)
            changes = algorithm.changes_NP.index_select(0, cohorts)
            if filled_F1 is None:
                changes.add_(new_FP).sub_(old_FP)
            else:  # entries that stay empty may hold anything
                changes.add_(torch.where(filled_F1, new_FP - old_FP, 0).sum(0, keepdim=True))
            algorithm.changes_NP.index_copy_(0, cohorts, changes)
        if algorithm.clips and not algorithm.stale:
            start_FP = buffers.models_NP.index_select(0, cohorts).expand_as(models_FP)
            models_FP = algorithm.server.clip_update(models_FP, start_FP)
        if algorithm.needs_all_models and not of_cohort:
            algorithm.models_SP.index_copy_(0, arrays["slots"], models_FP)
        else:
            models_FP.mul_(arrays["weights"][:, None])
            if filled_F1 is not None:
                models_FP = torch.where(filled_F1, models_FP, 0).sum(0, keepdim=True)
            buffers.sums_NP.index_copy_(0, cohorts, buffers.sums_NP.index_select(0, cohorts).add_(models_FP))
        stats_FQ.mul_(arrays["shares"][:, None])
        if filled_F1 is not None:
            stats_FQ = torch.where(filled_F1, stats_FQ, 0).sum(0, keepdim=True)
        sums_FQ = buffers.stats_sums_NQ.index_select(0, cohorts).add_(stats_FQ)
        buffers.stats_sums_NQ.index_copy_(0, cohorts, sums_FQ)
        buffers.losses_M.index_copy_(0, clients, self.losses_L.index_select(0, lanes))
        buffers.squared_losses_M.index_copy_(0, clients, self.squared_losses_L.index_select(0, lanes))

    def _collect_cohort(self) -> None:
        self._collect(of_cohort=True)

    def _selected(self, lanes: Tensor) -> ClientState:
        """The state of the clients in some lanes."""
        lr, steps = self._state.lr, self._state.steps.index_select(0, lanes)
        rows = {name: rows_LP.index_select(0, lanes) for name, rows_LP in self._rows.items()}
        return ClientState(lr.index_select(0, lanes) if isinstance(lr, Tensor) else lr, steps, {}, **rows)

    def _losses(self, params: State, stats_LQ: Tensor, x: Inputs, y: Tensor, mask_LB: Tensor) -> Losses:
        """Every lane's mean loss, its new running statistics, and if needed the sum of its samples' squared losses."""
        buffers = self.buffers
        losses_LB, stats_LQ = buffers.model.losses(params, stats_LQ, x, y, mask_LB)
        squared_L = (losses_LB.detach() * mask_LB).square().sum(1) if buffers.has_squared_losses else None
        return (losses_LB * mask_LB).sum(1) / mask_LB.sum(1).clamp(min=1), stats_LQ, squared_L

    def _batch(self) -> tuple[Tensor, Inputs, Tensor, Tensor]:
        """What a step reads beside the parameters."""
        staged = self.batches.device
        mask_LB = (staged["rows"] != EMPTY).to(self.buffers.dtype)
        return self.stats_LQ[: self.count], *self.buffers.samples(staged), mask_LB

    def _losses_of_rows(self) -> Losses:
        return self._losses(self.buffers.layout.views(self._leaf[: self.count]), *self._batch())

    def _from_rows(self) -> Gradients:
        """Gradients by the rows: what a GPU compiles."""
        losses = self._forward()
        (gradients_LP,) = torch.autograd.grad(losses[0].sum(), self._leaf)  # lanes share nothing: each gets its own
        return losses, gradients_LP

    def _from_views(self) -> Gradients:
        """Gradients by each tensor of the model: by the rows, each would take a pass over all of them."""
        losses, gradients = self._of_batch(self._views, *self._batch())
        torch._foreach_copy_(self._gradient_views, gradients)
        self._gradients_LP[self.count :].zero_()
        return losses, self._gradients_LP

    def _differentiated(
        self, params: State, stats_LQ: Tensor, x: Inputs, y: Tensor, mask_LB: Tensor
    ) -> tuple[Losses, list[Tensor]]:
        losses_L, stats_LQ, squared_L = self._losses(params, stats_LQ, x, y, mask_LB)
        leaves = list(params.values())
        found = torch.autograd.grad(losses_L.sum(), leaves, allow_unused=True, materialize_grads=True)
        return (losses_L.detach(), stats_LQ.detach(), squared_L), list(found)

    def _step(self) -> None:
        (losses_L, stats_LQ, squared_L), gradients_LP = self._gradients()
        self._state.steps.add_(1)
        self._optimizer.clip_and_step(self.params_LP, gradients_LP, self._state, self._compiled_step)
        self.stats_LQ[: self.count].copy_(stats_LQ)
        self.losses_L[: self.count].add_(losses_L.detach())
        if squared_L is not None:
            self.squared_losses_L[: self.count].add_(squared_L)
