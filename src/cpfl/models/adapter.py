"""A user's model as engines call it: `module(inputs)` gives a tensor of logits, and changes nothing else.

What a model needs for that is found once, with a few samples. It is done by hooks, so that parameters keep their names.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.errors import FAILURES, ModelError, first_line

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""What a model is called with: one tensor, or several by name or position."""


def mapped(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The inputs with every tensor changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return tuple(change(value) for value in inputs)


def tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors of the inputs."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


def part(inputs: Inputs, rows: slice) -> Inputs:
    """Some samples of a batch."""
    return mapped(lambda x: x[rows], inputs)


def size(inputs: Inputs) -> int:
    """The number of samples of a batch."""
    return len(tensors(inputs)[0])


def adapted(build: Callable[[], nn.Module], inputs: Inputs) -> Callable[[], nn.Module]:
    """A factory of the same models, ready for engines; `inputs` are those of a few samples."""
    with torch.random.fork_rng(devices=[]):
        probe = ready(build(), inputs)
        writes, answers_tensor = _probe(probe, inputs)

    def build_adapted() -> nn.Module:
        module = ready(build(), inputs)
        if writes or not isinstance(inputs, Tensor):
            module.register_forward_pre_hook(partial(_pass, writes), with_kwargs=True)
        if not answers_tensor:
            module.register_forward_hook(_answer)
        return module

    return build_adapted


def ready(module: nn.Module, inputs: Inputs) -> nn.Module:
    """The module with all its parameters, and with dense gradients."""
    if type(module).__name__ == "OptimizedModule":  # torch.compile: engines compile by themselves
        module = dict(module.named_children())["_orig_mod"]
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # the gradients have the same numbers
    if any(map(nn.parameter.is_lazy, module.parameters())):
        whole = torch.get_default_dtype()
        with torch.no_grad():
            given = mapped(lambda x: x.to(whole) if x.is_floating_point() else x, inputs)
            args, kwargs = _arguments(given, True)
            try:
                module.eval()(*args, **kwargs)
            except FAILURES as error:
                raise ModelError(f"the model does not take its first inputs: {first_line(error)}") from None
        module.train()
    return module


def logits(answer: Any) -> Tensor:
    """The logits of a model's answer: a tensor, what is called logits, or the first of several."""
    if isinstance(answer, Tensor):
        return answer
    found = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if found is None and isinstance(answer, Sequence) and answer:
        found = answer[0]
    if not isinstance(found, Tensor):
        keys = f" with {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
        raise ModelError(
            f"the model answers with a {type(answer).__name__}{keys}: a tensor of logits is needed, or one called "
            "logits, or a tuple that begins with it"
        )
    return found


def _probe(module: nn.Module, inputs: Inputs) -> tuple[bool, bool]:
    """Whether the model writes into its inputs, and whether it answers with a tensor, in evaluation and in training."""
    writes, answers_tensor = False, True
    double = any(x.dtype == torch.float64 for x in tensors(inputs))
    module = module.double() if double else module.float()
    for training in (False, True):
        args, kwargs = _arguments(inputs, True)
        given = [*args, *kwargs.values()]
        try:
            with torch.no_grad():
                answer = module.train(training)(*args, **kwargs)
        except FAILURES:  # a check with a sentence for the user comes later
            continue
        for one, other in zip(given, tensors(inputs), strict=True):
            # torch counts writes, also those of what was there already; not those of numpy.
            writes = writes or one._version > 0 or not torch.equal(one, other)
        answers_tensor = answers_tensor and isinstance(answer, Tensor)
    return writes, answers_tensor


def _pass(copy: bool, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Before a model is called: its inputs as arguments of their own, copied if it writes into them."""
    (inputs,) = args
    return _arguments(inputs, copy)


def _arguments(inputs: Inputs, copy: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    own = mapped(Tensor.clone, inputs) if copy else inputs
    if isinstance(own, dict):
        return (), own
    return (own if isinstance(own, tuple) else (own,)), {}


def _answer(module: nn.Module, args: object, answer: Any) -> Tensor:
    return logits(answer)
