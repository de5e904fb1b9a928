"""What client and server optimizers are.

Both work on flat parameters: (P,) for one client or cohort, (L, P) for L of them side by side. A subclass computes
along the last axis, which fits both. On a GPU a client's steps are recorded once and replayed: they write into the
tensors that they are given, and branch on settings, never on numbers in tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cpfl.settings import Federation


@dataclass
class ClientState:
    """A client within its round; tensors have the shape of the parameters unless a comment says otherwise."""

    lr: float | Tensor  # of the round; (L, 1) where clients side by side may be in different rounds
    steps: Tensor  # steps, this one included: (1,) or (L, 1)
    buffers: dict[str, Tensor] = field(default_factory=dict)  # those the optimizer names, zero as the round begins
    # None unless the optimizer asks for them; typed so that one that does need not test for it.
    start: Tensor | Any = None  # the cohort's model as the round began; if the optimizer `needs_start`
    client_state: Tensor | Any = None  # zero before the client's first round; if the optimizer `has_client_state`
    mean_client_state: Tensor | Any = None  # the mean of that state over all clients of the cohort


Step = Callable[[Tensor, Tensor, ClientState], None]


class ClientOptimizer:
    """How a client's gradients become steps.

    Subclass it, write `step`, and name it `module:Class` in federation.client. Keyword arguments after `federation` are
    federation.client_args.
    """

    buffers: tuple[str, ...] = ()  # tensors that last for a client's round
    needs_start = False
    has_client_state = False  # each client has state that lasts from round to round; `update_client_state` returns it
    traffic = 1  # bytes each way, in sizes of the model

    def __init__(self, federation: Federation) -> None:
        self.settings = federation

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """Change `params` in place by one step; `gradient` may be overwritten."""
        raise NotImplementedError

    def update_client_state(self, params: Tensor, state: ClientState) -> Tensor:
        """The client's next state, as it ends its round with these parameters."""
        raise NotImplementedError

    def correct_model(self, model: Tensor, cohort: Tensor) -> Tensor:
        """The cohort's new model, from what the server optimizer made and the mean of the clients' states."""
        return model

    def clip_and_step(self, params: Tensor, gradient: Tensor, state: ClientState, step: Step | None = None) -> None:
        """One step with the gradient clipped to federation.max_grad_norm; `step` is a compiled version of the own."""
        if self.settings.max_grad_norm:
            gradient = clip_norm(gradient, self.settings.max_grad_norm)
        (step or self.step)(params, gradient, state)


class ServerOptimizer:
    """How clients' models become the cohort's next one.

    Subclass it, write `update` or `aggregate`, and name it `module:Class` in federation.server. Keyword arguments after
    `federation` are federation.server_args. Clients' models are added up as they arrive, so that memory does not grow
    with the participants; with `needs_all_models` engines keep them and call `aggregate`.
    """

    buffers: tuple[str, ...] = ()  # tensors that last from round to round
    needs_all_models = False  # `aggregate` takes the place of the mean
    min_results = 1  # clients' models without which there is no next one

    def __init__(self, federation: Federation) -> None:
        self.settings = federation

    def update(self, model: Tensor, mean: Tensor, update_scale: float | Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """The next model, from the last one and the mean of the clients'; buffers are changed in place."""
        return mean

    def aggregate(self, models_KP: Tensor) -> Tensor:
        """One model in place of the mean, from all K clients' of a round, in the order of the clients."""
        raise NotImplementedError

    def initial_value(self, name: str) -> float:
        """What a buffer is filled with before the first round."""
        return 0.0

    def weight(self, samples: int, steps: int) -> float:
        """A client's weight in the mean."""
        return client_weight(self.settings.weights, samples)

    def update_scale(self, clients: Sequence[tuple[int, int]]) -> float:
        """A number for `update`, from the (samples, steps) of a round's clients."""
        return 1.0

    def shortage(self, participants: int, cohort: str) -> str:
        """What is wrong with so many participants in every round, fewer than `min_results`, in one sentence."""
        needs = f"federation.server = {self.settings.server!r} needs {self.min_results} participants in every round"
        return f"{needs}, and {cohort} has {participants}"

    def clip_update(self, models: Tensor, start: Tensor) -> Tensor:
        """Clients' models with their updates clipped to federation.max_update_norm (Sun et al. 2019)."""
        longest = self.settings.max_update_norm
        return clip_norm(models - start, longest).add_(start) if longest else models


def client_weight(kind: str, samples: int) -> float:
    """A client's weight in a mean by federation.weights: equal, or by its training samples."""
    return 1.0 if kind == "equal" else float(samples)


def descend(params: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
    """params ← params − lr · gradient."""
    if isinstance(lr, Tensor):
        params.addcmul_(gradient, lr, value=-1)
    else:
        params.sub_(gradient, alpha=lr)


def clip_norm(vectors: Tensor, longest: float) -> Tensor:
    """Scale vectors down to a norm where theirs is larger (Pascanu et al. 2013, Algorithm 1), in place."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors.mul_((longest / norms).clamp_(max=1))
