"""Models: those that come with the package, and what every engine needs of any nn.Module.

All return logits, one for each class, never probabilities; or the numbers that they predict.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from cpfl.errors import FAILURES, CpflError, ModelError, first_line, shortened
from cpfl.models.adapter import Inputs, part, size
from cpfl.models.sequences import char_lstm, signal_cnn
from cpfl.randomness import stream
from cpfl.registry import did_you_mean, load
from cpfl.settings import Model

State = dict[str, Tensor]
"""A model's parameters and buffers by name."""

ModelFactory = Callable[[], nn.Module]

NOISE = 0.01  # of parameters, small beside those of most layers


def gn_lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's CIFAR-10 model: LeNet with group normalisation, 85,354 parameters."""
    channels, height, width = _image(shape, "gn-lenet")
    for _ in range(3):  # poolings of three by three pixels in steps of two
        height, width = (height - 1) // 2, (width - 1) // 2
    if min(height, width) < 1:
        raise ModelError(f"model gn-lenet takes images of 15×15 or more, not samples of shape {shape}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(3, 2),
        nn.GroupNorm(2, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.GroupNorm(2, 32),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.GroupNorm(2, 64),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * height * width, classes),
    )


def femnist_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's FEMNIST model (LEAF's): 1.69 million parameters at 62 classes."""
    channels, height, width = _image(shape, "femnist-cnn")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer; takes samples of any shape."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "gn-lenet": gn_lenet,
    "femnist-cnn": femnist_cnn,
    "mlp": mlp,
    "signal-cnn": signal_cnn,
    "char-lstm": char_lstm,
}


def named(own: Model, name: str) -> Model:
    """The model that a cohort names: the experiment's own, with its args and bytes, or another with its defaults."""
    return own if name == own.name else Model(name=name)


def factory(model: Model, shape: tuple[int, ...], classes: int, key: str = "model.name") -> ModelFactory:
    """What builds the model that the setting `key` names: one of ours, or the user's `module:Class`."""
    if model.name in BUILT_IN:
        build = BUILT_IN[model.name]
        known = list(inspect.signature(build).parameters)[2:]
        for word in [word for word in model.args if word not in known]:
            takes = f"{did_you_mean(word, known)}it takes {', '.join(known) or 'no arguments'}"
            raise ModelError(f"model.args.{shortened(word, 80)} is no argument of the model {model.name}; {takes}")
        return guarded(model.name, lambda: build(shape, classes, **model.args))
    if not all(model.name.partition(":")):
        hint = did_you_mean(model.name, BUILT_IN)
        raise ModelError(f"{key} = {model.name!r} is unknown; {hint}Known: {', '.join(BUILT_IN)}, or module:Class")
    try:
        build = load(model.name)
    except FAILURES as error:  # a user's module can fail in any way
        raise ModelError(f"{key} = {model.name!r} cannot be loaded: {first_line(error)}") from None
    # A run folder or a TOML file may come from somebody else: it may name a model, not just any function to call.
    if not (isinstance(build, type) and issubclass(build, nn.Module)):
        raise ModelError(
            f"{key} = {model.name!r} is no class of torch.nn.Module; functions are given in Python, as model="
        )
    return guarded(model.name, lambda: build(**model.args))


def fresh(build: ModelFactory, seed: int, purpose: str, dtype: torch.dtype) -> nn.Module:
    """A new model whose weights are drawn at the address (seed, purpose), whatever torch drew before."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed, purpose)
        module = build()
        return module.double() if dtype == torch.float64 else module.float()  # unlike to(): complex buffers stay


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; the others are frozen."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def looks_at_batches(module: nn.Module, x: Inputs) -> bool:
    """Whether its output for a sample depends on the others of its batch, as with BatchNorm."""
    half = max(1, size(x) // 2)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            params = with_noise(module)
            parts = [part(x, slice(half)), part(x, slice(half, None))] if size(x) > 1 else [x]
            # All of them: a sample may depend only on those before it.
            whole, *outputs = (functional_call(module, params, (each,)) for each in (x, *parts))
    except (ValueError, RuntimeError):  # BatchNorm in training wants more than one sample
        return True
    rounding = 1e-4 * whole.nan_to_num().abs().max().item()  # batches of another size round in another way
    return not torch.allclose(whole, torch.cat(outputs), rtol=0, atol=rounding, equal_nan=True)


def with_noise(module: nn.Module) -> State:
    """Its trained parameters a bit changed: a new model may hold zeros, which hide what it does. Inside fork_rng."""
    seed_torch(0, "noise")
    return {name: value + NOISE * torch.randn_like(value) for name, value in trained(module).items()}


def takes(module: nn.Module, x: Inputs) -> bool:
    """Whether the model runs with this memory layout of inputs and parameters; `view` restricts it."""
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(x)
    except RuntimeError:
        return False
    finally:
        module.train(training)
    return True


def state_of(module: nn.Module) -> State:
    """A copy of a model's state that nothing else changes."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def seed_torch(seed: int, purpose: str, *address: int) -> None:
    """Seed what a model draws by itself, such as dropout, by address too. Call it inside torch.random.fork_rng."""
    number = int(stream(seed, purpose, *address).integers(2**63))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.manual_seed(number)
    else:  # the same without a GPU, without the cost of torch.manual_seed's bookkeeping
        torch.default_generator.manual_seed(number)


def choose_arithmetic(precision: str) -> None:
    """Set a GPU's arithmetic for this process: exact float32, or TF32 beside bf16 and for auto."""
    exact = precision in ("float32", "float64")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not exact
    # Algorithms chosen by timing would differ between processes and round differently.
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True


def arithmetic(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """A context with bf16 arithmetic if the precision is bf16; parameters stay in full precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def kernel_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """The dtype of the kernels in `cpfl.kernels`; None: torch's own layers are used."""
    known = {"auto": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
    return known.get(precision) if device.type == "cuda" else None


def threads_for(state: State) -> AbstractContextManager[None]:
    """All torch threads for models with convolutions, else one: always the same for the same model."""
    return threads(torch.get_num_threads() if any(value.dim() > 2 for value in state.values()) else 1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A context with so many torch threads. A client's batches are too small for more than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_arrays(state: State) -> dict[str, NDArray[Any]]:
    """A model for another process: arrays in host memory, never views of something larger."""
    return {name: value.detach().cpu().contiguous().numpy() for name, value in state.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> State:
    """The model again; copies, because received arrays may be read-only and shared."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def guarded(name: str, build: Callable[[], Any]) -> ModelFactory:
    """A factory whose failures are reported as the user's."""

    def call() -> nn.Module:
        try:
            module = build()
        except CpflError:
            raise
        except FAILURES as error:
            raise ModelError(f"model {name} cannot be built: {first_line(error)}") from None
        if not isinstance(module, nn.Module):
            raise ModelError(f"model {name} gives a {type(module).__name__}, not a torch.nn.Module")
        return module

    return call


def _image(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ModelError(f"model {name} takes images (channels, height, width), not samples of shape {shape}")
    return shape[0], shape[1], shape[2]
