"""The models of a round's clients become the cohort's next model, in the reference engine, the workers and Flower.

Trained parameters go through the server optimizer; buffers are averaged. Axes: P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpfl.federation.messages import CLIENT_STATE_MEAN, AlgorithmState, Origin, RoundRequest
from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer, client_weight
from cpfl.federation.rounds import staleness
from cpfl.models import State
from cpfl.models.layout import Layout, RunningMean


class RoundAggregator:
    """Takes the clients' models one after the other, in the clients' order."""

    def __init__(
        self,
        layout: Layout,
        server: ServerOptimizer,
        request: RoundRequest,
        device: torch.device,
        client: ClientOptimizer | None = None,  # to update the clients' states
        local: Sequence[str] = (),  # tensors that stay with each client
    ) -> None:
        self._layout, self._server, self._device, self._request, self._local = layout, server, device, request, local
        self.start = {name: value.to(device) for name, value in request.model.items()}
        trained_or_constant = {*layout.shapes, *layout.ties, *layout.frozen}
        self._others = [name for name in self.start if name not in trained_or_constant]
        self.start_P = layout.row(self.start, device)
        known = request.algorithm_state.cohort
        self._buffers = {name: self.row(known.get(name), server.initial_value(name)) for name in server.buffers}
        self._client = client if client is not None and client.has_client_state else None
        self.mean_client_state_P = self.row(known.get(CLIENT_STATE_MEAN)) if self._client else None
        self._client_states: dict[int, State] = {}
        self._change_P = torch.zeros_like(self.start_P)  # of all client states
        self._mean, self._mean_of_others = RunningMean(), RunningMean()
        self._models: list[Tensor] = []  # where the server must see all
        self._sizes: list[tuple[int, int]] = []
        self._updates: list[staleness.Arrived] = []  # where staleness counts, all models are needed

    def row(self, state: State | None, initial: float = 0.0) -> Tensor:
        """A stored state as a row, or a row of its initial value."""
        return torch.full_like(self.start_P, initial) if state is None else self._layout.row(state, self._device)

    def start_of(self, client: int) -> State:
        """The model that a client begins with: the cohort's newest or an older one, with what is its own."""
        origin = self._request.origins.get(client)
        model = self.start if origin is None else origin.model
        return {**model, **self._request.algorithm_state.clients.get(client, {})} if self._local else model

    def client_state(self, client: int) -> State | None:
        """What the client optimizer remembers of a client; None: nothing yet."""
        return None if self._local else self._request.algorithm_state.clients.get(client)

    def add(
        self, state: State, samples: int, steps: int, origin: Origin | None = None, row_P: Tensor | None = None
    ) -> None:
        """A client's model after so many samples and steps; it may be overwritten afterwards.

        `row_P` are its parameters, if they are a row already.
        """
        weight = client_weight(self._server.settings.weights, samples)
        row_P = self.row(state) if row_P is None else row_P
        if self._request.aggregation == "mean":
            self._sizes.append((samples, steps))
            model_P = self._server.clip_update(row_P, self.start_P)
            if self._server.needs_all_models:
                self._models.append(model_P.clone())
            else:
                self._mean.add({"model": model_P}, self._server.weight(samples, steps))
            self._mean_of_others.add({name: state[name] for name in self._others}, weight)
            return
        start = self.start if origin is None else {n: v.to(self._device) for n, v in origin.model.items()}
        clipped = self._layout.views(self._server.clip_update(row_P, self._layout.row(start, self._device)))
        sent = self._layout.sent(state)
        model = {name: clipped[name] if name in clipped else value.clone() for name, value in sent.items()}
        age = 0 if origin is None else self._request.round - origin.round
        self._updates.append(staleness.Arrived(model, start, age, weight))

    def keep_local(self, client: int, state: State) -> None:
        """Keep what stays with the client of its model, which may be overwritten afterwards."""
        if self._local:
            self._client_states[client] = {name: state[name].clone() for name in self._local}

    def add_client_state(self, client: int, before_P: Tensor, after_P: Tensor) -> None:
        """A client's state before and after its round; the second one is kept."""
        self._change_P += after_P - before_P
        self._client_states[client] = self._layout.views(after_P)

    def result(self) -> tuple[State, AlgorithmState]:
        """The cohort's next model, and what the optimizers remember from now on."""
        if self._updates:
            merged = staleness.merged(self._request.aggregation, self._layout.sent(self.start), self._updates)
            self._mean_of_others.add({name: merged[name] for name in self._others}, 1.0)
            mean_P, scale = self.row(merged), 1.0
        else:
            server, scale = self._server, self._server.update_scale(self._sizes)
            mean_P = server.aggregate(torch.stack(self._models)) if self._models else self._mean.result()["model"]
        model_P = self._server.update(self.start_P, mean_P, scale, self._buffers)
        rows = dict(self._buffers)
        if self._client is not None:
            assert self.mean_client_state_P is not None
            rows[CLIENT_STATE_MEAN] = self.mean_client_state_P + self._change_P / self._request.cohort_size
            model_P = self._client.correct_model(model_P, rows[CLIENT_STATE_MEAN])
        found = {**self._layout.state(model_P), **self._mean_of_others.result()}
        copied = found.keys() - self._layout.frozen.keys()  # frozen parameters are shared by all models
        model = {name: found[name].to(value.dtype, copy=name in copied) for name, value in self.start.items()}
        cohort = {name: self._layout.views(row_P) for name, row_P in rows.items()}
        return model, AlgorithmState(cohort, self._client_states)
