"""The weights that training starts from: drawn by the seed, those of a given model, or those of a file.

What is frozen never changes. So every module that is built later, the student too, has it from the start.
"""

from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from cpfl.errors import ModelError, first_line
from cpfl.models import ModelFactory, State, fresh, state_of, trained
from cpfl.models.adapter import Inputs
from cpfl.models.checks import check, check_names, listed, tensors_of
from cpfl.models.layout import Layout
from cpfl.objectives.base import Answer
from cpfl.settings import Model

FRESH, AS_GIVEN = "fresh", "given"  # model.start; anything else is a file


def initial(
    build: ModelFactory,
    settings: Model,
    seed: int,
    x: Inputs,
    expected: Answer,
    dtype: torch.dtype,
    file: Path | None = None,
) -> tuple[ModelFactory, State, int]:
    """What builds models that start as `settings` say, their initial state, and the bytes that travel of them.

    The model must fit the inputs `x` and answer as expected, and the file, if there is one, must fit the model.
    """
    module = reproducible(build, seed, "init", dtype)
    if file is not None:
        put(module, read(file, module))
    if beyond := [name for name, value in trained(module).items() if not value.isfinite().all()]:
        source = "the model" if file is None else f"model.start = {str(file)!r}"
        raise ModelError(f"{source} has weights that are no finite number: {listed(beyond)}")
    state, layout = state_of(module), Layout.from_module(module)
    check(module, x, expected)
    fixed = layout.frozen if settings.start == FRESH else state
    held = {name: state[name] for name in fixed}  # the same memory as the start's
    return holding(build, held), state, settings.bytes or layout.sent_bytes


def reproducible(build: ModelFactory, seed: int, purpose: str, dtype: torch.dtype) -> nn.Module:
    """A new model; refused if a second one with the same seed is another one, or has parts of the first."""
    module, again = (fresh(build, seed, purpose, dtype) for _ in range(2))
    check_names(module)
    own, other = trained(module), trained(again)
    if any(value is other.get(name) for name, value in own.items()):
        raise ModelError(
            "the function that builds the model gives the same parameters each time: build all of it anew, or give the "
            "model object itself"
        )
    one, two = tensors_of(module), tensors_of(again)
    different = [name for name, value in one.items() if name not in two or not _equal(value, two[name])]
    if different or one.keys() != two.keys():
        raise ModelError(
            f"two models that are built with the same seed differ in {listed(different or sorted(two))}: use torch's "
            "random numbers to build it, not numpy's or Python's, and no memory that nobody has written (torch.empty)"
        )
    return module


def with_frozen_of(build: ModelFactory, state: State, seed: int, dtype: torch.dtype) -> ModelFactory:
    """A factory of the same models with the frozen parameters of this state."""
    frozen = Layout.from_module(fresh(build, seed, "init", dtype)).frozen
    return holding(build, {name: state[name] for name in frozen})


def holding(build: ModelFactory, state: State) -> ModelFactory:
    """A factory of the same models that hold this state, or this part of one."""
    if not state:
        return build

    def build_holding() -> nn.Module:
        module = build()
        put(module, state)
        return module

    return build_holding


def put(module: nn.Module, state: State) -> None:
    """Make copies of these numbers the module's, in their own precision."""
    own = tensors_of(module)
    for name, value in state.items():
        own[name].data = value.clone()


def read(file: Path, module: nn.Module) -> State:
    """The weights in a safetensors file, which must be those of the module."""
    try:
        found = safetensors.torch.load_file(file)
    except Exception as error:  # safetensors has no common error for damaged files
        raise ModelError(f"model.start = {str(file)!r} is no safetensors file: {first_line(error)}") from None
    own = tensors_of(module)
    expected = {name: own[name] for name in module.state_dict()}
    held = {id(own[name]) for name in found if name in own}  # a file may hold one name of what has several
    wrong = {
        "lacks": [name for name, value in expected.items() if name not in found and id(value) not in held],
        "has more than the model:": [name for name in found if name not in expected],
        "has another shape or type of": [n for n, value in expected.items() if n in found and _differ(found[n], value)],
    }
    if reasons := [f"{what} {listed(names)}" for what, names in wrong.items() if names]:
        raise ModelError(f"model.start = {str(file)!r} does not fit the model: it {', and '.join(reasons)}")
    return {name: found[name].to(own[name].dtype) for name in expected if name in found}


def _differ(found: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether a tensor cannot take another's place: any precision will do."""
    return found.shape != own.shape or found.is_floating_point() != own.is_floating_point()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
