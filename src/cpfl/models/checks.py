"""Whether all engines can train a model alike: else it is refused in one sentence, before a run folder exists."""

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpfl.errors import FAILURES, ModelError, first_line
from cpfl.models import trained, with_noise
from cpfl.models.adapter import Inputs, mapped, size, tensors
from cpfl.objectives.base import Answer

SHOWN = 3  # names in a sentence
TRIES = 4  # evaluations of the same inputs
MANY = 50  # where random numbers of others are drawn, which may seldom have an effect


def check_names(module: nn.Module) -> None:
    """Refuse a model whose state is not its parameters and buffers by their names, each with numbers."""
    own, state = tensors_of(module), module.state_dict()
    if lacking := [name for name, _ in module.named_parameters() if name not in state]:
        raise ModelError(f"the model's state_dict() lacks {lacking[0]}: a state has all parameters by their names")
    if strange := [name for name in state if name not in own]:
        raise ModelError(
            f"the model's state_dict() has {strange[0]}, which is no parameter and no buffer: leave it out, or "
            "register its numbers as a buffer"
        )
    if empty := [name for name, value in own.items() if value.is_meta]:
        raise ModelError(f"{empty[0]} of the model has no numbers, on the device meta: build the model on the CPU")


def check(module: nn.Module, x: Inputs, expected: Answer) -> None:
    """Refuse a model that does not map these inputs to the expected answers, or cannot be trained by all engines."""
    before = tensors_of(module).keys()
    for name, value in module.state_dict().items():
        if value.is_complex():
            raise ModelError(
                f"{name} of the model is complex: real numbers are trained; keep its real and imaginary part as two "
                "parameters, or a constant as a buffer that is not persistent"
            )
    given = " and ".join(f"{tuple(value.shape[1:])} of {_kind(value)}" for value in tensors(x))
    try:
        out = module.eval()(mapped(Tensor.clone, x))
    except ModelError:
        raise
    except FAILURES as error:
        reason = first_line(error)
        raise ModelError(f"the model does not take samples of shape {given}: {reason}{_hint(x, reason)}") from None
    _check_made(module, before)
    _check_shape(out, size(x), expected, "")
    if not (own := trained(module)):
        raise ModelError("the model has no parameter that is to be trained: it has none, or all are frozen")
    try:
        gradients = torch.autograd.grad(out.square().mean(), list(own.values()), allow_unused=True)
    except Exception as error:
        raise ModelError(f"the model has no gradients: {first_line(error)}") from None
    for name, gradient in zip(own, gradients, strict=True):
        if gradient is not None and gradient.is_sparse:
            raise ModelError(f"the gradient of {name} is sparse: dense ones are needed (sparse=False)")
    _check_training(module, x, expected)
    if varies_in_evaluation(module, x):
        raise ModelError(
            "the model gives different answers to the same inputs in evaluation: random numbers, as of dropout with "
            "training=True, and changes of buffers belong in training only (if self.training)"
        )
    if names := written(module, x):
        name, layer = names[0], dict(module.named_modules())[names[0].rpartition(".")[0]]
        remedy = "compute another tensor from it, for example with torch.nn.utils.parametrize"
        if getattr(layer, "max_norm", None) is not None:
            remedy = f"leave out max_norm of its {type(layer).__name__}"
        raise ModelError(f"the model changes its parameter {name} when it is called: {remedy}")


def _check_shape(out: Tensor, samples: int, expected: Answer, when: str) -> None:
    if out.shape != (samples, *expected.shape):
        raise ModelError(
            f"the model answers a sample with {tuple(out.shape[1:])}{when}, the data needs {expected.shape}: "
            f"{expected.what}"
        )


def _check_made(module: nn.Module, before: Collection[str]) -> None:
    """Refuse parameters and buffers that were not there before the model was called."""
    if made := [name for name in tensors_of(module) if name not in before]:
        raise ModelError(
            f"the model makes {listed(made)} when it is called: make all parameters and buffers in __init__, where "
            "nn.LazyLinear and its like find sizes by themselves"
        )


def _check_training(module: nn.Module, x: Inputs, expected: Answer) -> None:
    """Refuse what a model does in training only."""
    try:
        module.train()
        with unchanged(module):
            before = tensors_of(module).keys()
            drawn = _drawn()
            one = _answer(module, x, seed=0)
            _check_made(module, before)
            tries = MANY if _drawn() != drawn else 1
        others = list[Tensor]()
        for _ in range(tries):
            with unchanged(module):
                others.append(_answer(module, x, seed=0).nan_to_num())
    except ModelError:
        raise
    except FAILURES as error:
        if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):  # BatchNorm's
            return
        raise ModelError(f"the model fails in training, as after model.train(): {first_line(error)}") from None
    _check_shape(one, size(x), expected, " in training")
    if not all(torch.equal(one.nan_to_num(), other) for other in others):
        raise ModelError(
            "the model gives different answers to the same inputs although torch's seed is the same: use torch's "
            "random numbers, not numpy's or Python's, and no counter of calls"
        )


def _drawn() -> tuple[Any, ...]:
    """What changes when the random numbers of Python or numpy are drawn."""
    _, keys, *rest = np.random.get_state()
    return random.getstate(), np.asarray(keys).tobytes(), rest


def varies_in_evaluation(module: nn.Module, x: Inputs) -> bool:
    """Whether its answers in evaluation depend on random numbers, torch's or others, or on earlier calls."""
    with unchanged(module):
        own = trained(module)
        for name, value in with_noise(module).items():  # zeros hide what it does
            own[name].copy_(value)
        filled = mapped(lambda each: each.masked_fill(each == 0, 0.01) if each.is_floating_point() else each, x)
        module.eval()
        drawn, first = _drawn(), _answer(module, filled, 0).nan_to_num()
        tries = TRIES if _drawn() == drawn else MANY
        others = [_answer(module, filled, seed).nan_to_num() for seed in range(1, tries)]
    return not all(torch.equal(first, other) for other in others)


def written(module: nn.Module, x: Inputs) -> list[str]:
    """The parameters that it changes itself when it is called, as a limit on their size does."""
    with unchanged(module):
        own = dict(module.named_parameters())
        for value in own.values():
            value.mul_(-1000).sub_(1)  # beyond any limit
        before = {name: value.clone() for name, value in own.items()}
        for training in (False, True):
            with suppress(*FAILURES):  # with such parameters it may fail
                module.train(training)(mapped(Tensor.clone, x))
        after = dict(module.named_parameters())
        return [name for name, value in before.items() if name not in after or not torch.equal(after[name], value)]


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """A context without gradients after which the model's state and torch's random numbers are what they were."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            module.load_state_dict(state, strict=False)  # what it has made meanwhile is refused


def _answer(module: nn.Module, x: Inputs, seed: int) -> Tensor:
    """Its answer to a copy of the inputs with this seed of torch."""
    torch.default_generator.manual_seed(seed)
    answer: Tensor = module(mapped(Tensor.clone, x))
    return answer


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _hint(x: Inputs, reason: str) -> str:
    """What else may be meant where types do not fit."""
    integers = any(not value.is_floating_point() for value in tensors(x))
    if integers and not isinstance(x, Tensor):
        return "; integers reach a model as they are: make those floats that are no indices"
    if integers:
        return "; integers reach a model as they are: data.inputs = numbers makes them floats, pixels scales them"
    if "indices" in reason:
        return "; data.inputs = integers keeps integers, bytes of images too"
    if "type" in reason:
        return f"; tensors that it makes itself need the type of its inputs, {_kind(tensors(x)[0])}"
    return ""


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers, by each of their names."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return {**buffers, **dict(module.named_parameters(remove_duplicate=False))}


def listed(names: Sequence[str]) -> str:
    """The first few names for a sentence."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
