"""Models as people bring them, in small: each with its inputs and what becomes of it.

`lanes`: all engines train it alike. `fallback`: lanes say why not, and the reference engine trains it alike. A text:
it is refused in a sentence with these words, before a folder exists.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl.models.sequences import char_lstm, signal_cnn

SAMPLES, FEATURES, WORDS, LENGTH, SIDE, CLASSES = 160, 12, 11, 6, 8, 3
RNG = np.random.default_rng(0)
Y = RNG.integers(0, CLASSES, SAMPLES)
TABLE = RNG.normal(size=(SAMPLES, FEATURES)).astype("float32") + Y[:, None]
TOKENS = (RNG.integers(0, WORDS, (SAMPLES, LENGTH)) + Y[:, None]) % WORDS
IMAGES = np.clip(RNG.integers(0, 120, (SAMPLES, 2, SIDE, SIDE)) + 60 * Y[:, None, None, None], 0, 255).astype("uint8")
SERIES = RNG.normal(size=(SAMPLES, LENGTH, 4)).astype("float32") + Y[:, None, None]
MASK = np.arange(LENGTH) < RNG.integers(2, LENGTH + 1, (SAMPLES, 1))
INPUTS: dict[str, Any] = {
    "table": TABLE,
    "tokens": TOKENS,
    "bytes": TOKENS.astype("uint8"),
    "images": IMAGES,
    "transposed": np.moveaxis(np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1)), -1, 1),
    "series": SERIES,
    "signals": RNG.normal(size=(SAMPLES, 2, 40)).astype("float32") + Y[:, None, None],
    "characters": (TOKENS % CLASSES).astype("uint8"),
    "integers": (10 * TABLE).astype(int),
    "dict": {"ids": TOKENS, "mask": MASK},
    "pair": (TABLE, TOKENS),
    "complex": TABLE + 1j,
}


class Recurrent(nn.Module):
    def __init__(self, kind: str, **how: Any) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(4, 5, batch_first=True, **how)
        self.head = nn.Linear(5 * (2 if how.get("bidirectional") else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]


class Language(nn.Module):
    """Tokens to an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(WORDS, 5), nn.LSTM(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(x).transpose(0, 1))[0][-1])  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, rotary: bool = False, persistent: bool = False, complex_: bool = False) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.rotary, self.complex_ = rotary, complex_
        angle = torch.arange(LENGTH)[:, None] / 10.0 ** (torch.arange(4) / 4)
        if complex_:
            self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle), persistent=persistent)
        elif rotary:
            self.register_buffer("cos", angle.cos(), persistent=persistent)
            self.register_buffer("sin", angle.sin(), persistent=persistent)

    def turned(self, x: Tensor) -> Tensor:
        if self.complex_:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2).contiguous())
            return torch.view_as_real(pairs * self.turn).flatten(-2).to(x.dtype)  # type: ignore[operator]
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = self.cos, self.sin
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        if self.rotary or self.complex_:
            q, k = self.turned(q), self.turned(k)
        weight = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1)
        return self.head((weight @ v).mean(1))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """PyTorch's own transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Takes ids and mask by name, answers as transformers do."""

    def __init__(self, answer: Callable[[Tensor], Any] = lambda z: {"logits": z, "extra": z}) -> None:
        super().__init__()
        self.embed, self.head, self.answer = nn.Embedding(WORDS, 5), nn.Linear(5, CLASSES), answer

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        weight = mask.to(self.head.weight.dtype)[..., None]
        return self.answer(self.head((self.embed(ids) * weight).sum(1) / weight.sum(1)))


class Two(nn.Module):
    """Takes two arrays by position, answers with a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 5), nn.Linear(FEATURES + 5, CLASSES)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(torch.cat([x, self.embed(ids).mean(1)], 1)), x


@dataclass
class Output:
    logits: Tensor


class Lambda(nn.Module):
    """A linear layer after something."""

    def __init__(self, change: Callable[[Tensor], Tensor], features: int = FEATURES) -> None:
        super().__init__()
        self.head, self.change = nn.Linear(features, CLASSES), change

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(x))  # type: ignore[no-any-return]


class View(nn.Module):
    """Flower's quickstart network, in small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = (
            nn.Conv2d(2, 6, 3, padding=1),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 8, 3, padding=1),
        )
        self.fc1, self.fc2 = nn.Linear(8 * 2 * 2, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.view(-1, 8 * 2 * 2))))  # type: ignore[no-any-return]


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep, self.point = nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.point(self.deep(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x).tanh()))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer at two places."""

    def __init__(self, two_names: bool = False) -> None:
        super().__init__()
        self.one, self.norm, self.head = nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, CLASSES)
        if two_names:
            self.again = self.norm

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.one(self.norm(x)).tanh()))  # type: ignore[no-any-return]


class Steps(nn.Module):
    """Statistics over all steps of all samples."""

    def __init__(self, time_first: bool = False) -> None:
        super().__init__()
        self.norm, self.head, self.time_first = nn.BatchNorm1d(4), nn.Linear(4, CLASSES), time_first
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1) if self.time_first else x
        normed = self.norm(rows.reshape(-1, 4)).view(rows.shape).tanh()
        return self.head(normed.mean(0 if self.time_first else 1))  # type: ignore[no-any-return]


class FrozenTied(Tied):
    """What two layers share is frozen, and what they have alone is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.one.weight.requires_grad_(False)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """The model with these parameters frozen."""
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


class Lora(nn.Module):
    """A frozen layer with a trained change of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(12, 12).requires_grad_(False), nn.Linear(12, CLASSES)
        self.a, self.b = nn.Parameter(torch.randn(2, 12) / 4), nn.Parameter(torch.zeros(12, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.base(x) + x @ self.a.T @ self.b.T).tanh())  # type: ignore[no-any-return]


class Change(nn.Module):
    """A frozen weight with a trained change of rank 2, as a parametrization."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.a, self.b = nn.Parameter(torch.randn(2, inputs) / 4), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a  # type: ignore[no-any-return]


def lora_transformer() -> nn.Module:
    """Everything is frozen but the head and the changes of the linear layers."""
    model = Encoder().requires_grad_(False)
    model.head.requires_grad_(True)
    for part in list(model.layer.modules()):
        if isinstance(part, nn.Linear):
            nn.utils.parametrize.register_parametrization(part, "weight", Change(part.weight))
    return model


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1  # type: ignore[operator]
        return self.head(x)  # type: ignore[no-any-return]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.turn = nn.Linear(FEATURES, CLASSES), nn.Parameter(torch.ones(CLASSES, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(x) * self.turn).real  # type: ignore[no-any-return]


class Half(nn.Module):
    """Makes a tensor of a type of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.half())  # type: ignore[no-any-return]


class Clamped(Lambda):
    """Limits its weights before it uses them."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.clamp_(-9, 9)
        return self.head(x)  # type: ignore[no-any-return]


class Normalized(Lambda):
    """Replaces its weights, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.head.weight.data = nn.functional.normalize(self.head.weight.data)
        return self.head(x)  # type: ignore[no-any-return]


class TupleInTraining(Lambda):
    """With another output beside it, as for a loss of its own."""

    def forward(self, x: Tensor) -> Any:
        return (self.head(x), x) if self.training else self.head(x)


class WideInTraining(Lambda):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(x)
        return torch.cat([z, z], 1) if self.training else z


class DrawsInEvaluation(Lambda):
    """Random numbers from outside torch, in evaluation only."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x if self.training else x + np.random.rand())  # type: ignore[no-any-return]


class Shortened(Lambda):
    """Answers in half the bits."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).bfloat16()  # type: ignore[no-any-return]


class SometimesOtherwise(Lambda):
    """Turns some of its batches around by Python's random numbers."""

    def __init__(self, in_training: bool) -> None:
        super().__init__(torch.neg)
        self.in_training = in_training

    def forward(self, x: Tensor) -> Tensor:
        return self.head(-x if self.training == self.in_training and random.random() < 0.3 else x)  # type: ignore[no-any-return]


class Fading(Lambda):
    """Changes a buffer in evaluation."""

    def __init__(self) -> None:
        super().__init__(torch.neg)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.scale *= 0.9  # type: ignore[operator]
        return self.head(self.scale * x)  # type: ignore[no-any-return, operator]


class Spectrum(nn.Module):
    """Multiplies a spectrum by complex numbers, whose parts are one parameter behind one of an odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.head = nn.Parameter(torch.zeros(())), nn.Linear(FEATURES, CLASSES, bias=False)
        self.turn = nn.Parameter(torch.randn(FEATURES // 2 + 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.fft.rfft(x) * torch.view_as_complex(self.turn)
        return self.head(torch.fft.irfft(turned, n=FEATURES) + self.bias)  # type: ignore[no-any-return]


class ExtraState(Lambda):
    """Has a state beside its tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


class Renamed(Lambda):
    """Stores its parameters under other names."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {f"old.{name}": value for name, value in super().state_dict(*args, **kwargs).items()}


class MadeWhenCalled(nn.Module):
    """Makes a layer of the size of its first inputs."""

    def __init__(self, in_training: bool = False) -> None:
        super().__init__()
        self.in_training = in_training
        self.body = nn.Linear(FEATURES, 5)
        self.head = nn.Linear(5, CLASSES) if in_training else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if self.head is None:
            self.head = nn.Linear(5, CLASSES).to(hidden)
        if self.training and self.in_training and not hasattr(self, "scale"):
            self.scale = nn.Parameter(hidden.new_ones(()))
        return self.head(hidden)  # type: ignore[no-any-return]


class BuiltWithNumpy(Lambda):
    def __init__(self) -> None:
        super().__init__(torch.neg)
        self.scale = nn.Parameter(torch.tensor(np.random.rand()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * x)  # type: ignore[no-any-return]


SHARED = nn.Linear(FEATURES, CLASSES)


class Branching(Lambda):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x if x.sum() > 0 else -x)  # type: ignore[no-any-return]


def compiled() -> nn.Module:
    with warnings.catch_warnings():  # the compiler's remarks on itself
        warnings.simplefilter("ignore")
        return torch.compile(nn.Linear(FEATURES, CLASSES))  # type: ignore[return-value]


def scripted() -> nn.Module:
    with warnings.catch_warnings():  # it is deprecated
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(FEATURES, CLASSES))  # type: ignore[no-any-return, no-untyped-call]


def embedding(**how: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, 4, **how), nn.Flatten(), nn.Linear(4 * LENGTH, CLASSES))


def convolutional(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), norm(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


@dataclass(frozen=True)
class Animal:
    """A model, the inputs that it takes, and what becomes of it."""

    build: Callable[[], nn.Module]
    inputs: str
    outcome: str = "lanes"

    @property
    def arrays(self) -> Any:
        return INPUTS[self.inputs]


ZOO: dict[str, Animal] = {
    "linear": Animal(lambda: nn.Linear(FEATURES, CLASSES), "table"),
    "embedding": Animal(embedding, "tokens"),
    "bytes are tokens": Animal(embedding, "bytes"),
    "sparse embedding": Animal(lambda: embedding(sparse=True), "tokens"),
    "padded embedding": Animal(lambda: embedding(padding_idx=0), "tokens"),
    "bag": Animal(lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, CLASSES)), "tokens"),
    "lstm": Animal(lambda: Recurrent("LSTM"), "series"),
    "lstm, two layers": Animal(lambda: Recurrent("LSTM", num_layers=2), "series"),
    "lstm with dropout": Animal(lambda: Recurrent("LSTM", num_layers=2, dropout=0.5), "series", "fallback"),
    "gru, both directions": Animal(lambda: Recurrent("GRU", bidirectional=True), "series"),
    "rnn": Animal(lambda: Recurrent("RNN", nonlinearity="relu", bias=False), "series"),
    "signal-cnn": Animal(lambda: signal_cnn((2, 40), CLASSES, width=4), "signals"),
    "char-lstm": Animal(lambda: char_lstm((LENGTH,), CLASSES, hidden=6), "characters"),
    "language": Animal(Language, "tokens"),
    "attention": Animal(Attention, "tokens"),
    "rotary": Animal(lambda: Attention(rotary=True), "tokens"),
    "rotary, persistent": Animal(lambda: Attention(rotary=True, persistent=True), "tokens"),
    "rotary, complex": Animal(lambda: Attention(complex_=True), "tokens"),
    "transformer": Animal(Encoder, "tokens"),
    "dict in and out": Animal(Masked, "dict"),
    "object out": Animal(lambda: Masked(Output), "dict"),
    "list out": Animal(lambda: Masked(lambda z: [z, None]), "dict"),
    "two arrays, tuple out": Animal(Two, "pair"),
    "tuple in training": Animal(lambda: TupleInTraining(torch.neg), "table"),
    "in-place": Animal(lambda: Lambda(lambda x: x.sub_(1).div_(2)), "table"),
    "view": Animal(View, "images"),
    "view of transposed": Animal(View, "transposed"),
    "depthwise": Animal(Depthwise, "images"),
    "group norm": Animal(lambda: convolutional(lambda: nn.GroupNorm(2, 4)), "images"),
    "instance norm": Animal(lambda: convolutional(lambda: nn.InstanceNorm2d(4)), "images"),
    "batch norm": Animal(lambda: convolutional(lambda: nn.BatchNorm2d(4)), "images"),
    "batch norm of vectors": Animal(lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(CLASSES)), "table"),
    "batch norm of volumes": Animal(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2)), nn.BatchNorm3d(1), nn.Flatten(), nn.LazyLinear(CLASSES)),
        "images",
    ),
    "batch norm between processes": Animal(lambda: convolutional(lambda: nn.SyncBatchNorm(4)), "images"),
    "batch norm, no affine": Animal(lambda: convolutional(lambda: nn.BatchNorm2d(4, affine=False)), "images"),
    "batch norm, frozen": Animal(lambda: convolutional(lambda: nn.BatchNorm2d(4).requires_grad_(False)), "images"),
    "batch norm, cumulative": Animal(
        lambda: convolutional(lambda: nn.BatchNorm2d(4, momentum=None)), "images", "fallback"
    ),
    "batch norm, untracked": Animal(
        lambda: convolutional(lambda: nn.BatchNorm2d(4, track_running_stats=False)), "images", "fallback"
    ),
    "batch norm, twice": Animal(Twice, "table"),
    "batch norm, two names": Animal(lambda: Twice(two_names=True), "table", "fallback"),
    "batch norm of steps": Animal(Steps, "series"),
    "batch norm of steps, time first": Animal(lambda: Steps(time_first=True), "series", "fallback"),
    "instance norm, tracked": Animal(
        lambda: convolutional(lambda: nn.InstanceNorm2d(4, track_running_stats=True)), "images", "fallback"
    ),
    "layer norm": Animal(lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES)), "table"),
    "tied": Animal(Tied, "table"),
    "frozen": Animal(lambda: nn.Sequential(nn.Linear(12, 8).requires_grad_(False), nn.Linear(8, CLASSES)), "table"),
    "frozen and tied": Animal(FrozenTied, "table"),
    "frozen bias": Animal(lambda: frozen(nn.Linear(FEATURES, CLASSES), "bias"), "table"),
    "frozen embedding": Animal(lambda: frozen(embedding(), "0.weight"), "tokens"),
    "frozen batch norm": Animal(
        lambda: frozen(convolutional(lambda: nn.BatchNorm2d(4)), "1.weight", "1.bias"), "images"
    ),
    "lora": Animal(Lora, "table"),
    "lora transformer": Animal(lora_transformer, "tokens"),
    "weight norm": Animal(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES)), "table"),
    "lazy": Animal(lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(CLASSES)), "table"),
    "lazy convolution": Animal(
        lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(CLASSES)), "images"
    ),
    "compiled": Animal(compiled, "table"),
    "dropout": Animal(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES)), "table", "fallback"),
    "counting": Animal(Counting, "table", "fallback"),
    "scripted": Animal(scripted, "table", "fallback"),
    "short numbers out": Animal(lambda: Shortened(torch.neg), "table", "fallback"),
    "spectral norm": Animal(
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, CLASSES)), "table", "fallback"
    ),
    "branching": Animal(lambda: Branching(torch.neg), "table", "fallback"),
    "centred by batch": Animal(lambda: Lambda(lambda x: x - x.mean(0)), "table", "fallback"),
    "integers to floats inside": Animal(lambda: Lambda(lambda x: x.to(torch.get_default_dtype())), "integers", "dtype"),
    "complex parameter": Animal(Complex, "table", "turn of the model is complex"),
    "complex inputs": Animal(lambda: nn.Linear(FEATURES, CLASSES), "complex", "the inputs are complex"),
    "complex state": Animal(lambda: Attention(complex_=True, persistent=True), "tokens", "turn .* is complex"),
    "integers to a linear layer": Animal(lambda: nn.Linear(FEATURES, CLASSES), "integers", "data.inputs"),
    "another type inside": Animal(Half, "table", "the type of its inputs"),
    "numpy's random numbers": Animal(
        lambda: Lambda(lambda x: x * float(np.random.rand())), "table", "torch's random numbers"
    ),
    "Python's random numbers, at times": Animal(
        lambda: SometimesOtherwise(in_training=True), "table", "torch's random numbers"
    ),
    "Python's random numbers, at times in evaluation": Animal(
        lambda: SometimesOtherwise(in_training=False), "table", "in training only"
    ),
    "random numbers without effect": Animal(lambda: Lambda(lambda x: x + 0 * random.random()), "table"),
    "dropout in evaluation": Animal(
        lambda: Lambda(lambda x: nn.functional.dropout(x, training=True)), "table", "in training only"
    ),
    "random pooling in evaluation": Animal(
        lambda: nn.Sequential(nn.FractionalMaxPool2d(2, 5), nn.Flatten(), nn.Linear(50, CLASSES)),
        "images",
        "in training only",
    ),
    "numpy's random numbers in evaluation": Animal(lambda: DrawsInEvaluation(torch.neg), "table", "in training only"),
    "buffers that change in evaluation": Animal(Fading, "table", "in training only"),
    "numpy's random numbers at the start": Animal(BuiltWithNumpy, "table", "same seed differ in scale"),
    "the same parameters each time": Animal(lambda: nn.Sequential(SHARED), "table", "same parameters each time"),
    "embedding of limited norm": Animal(lambda: embedding(max_norm=1.0), "tokens", "max_norm of its Embedding"),
    "bag of limited norm": Animal(
        lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4, max_norm=1.0), nn.Linear(4, CLASSES)),
        "tokens",
        "max_norm of its EmbeddingBag",
    ),
    "clamped weights": Animal(lambda: Clamped(torch.neg), "table", "changes its parameter head.weight"),
    "replaced weights": Animal(lambda: Normalized(torch.neg), "table", "changes its parameter head.weight"),
    "wide in training": Animal(lambda: WideInTraining(torch.neg), "table", r"with \(6,\) in training"),
    "wrong number of classes": Animal(lambda: nn.Linear(FEATURES, 5), "table", "data.classes"),
    "dict without logits": Animal(lambda: Masked(lambda z: {"scores": z}), "dict", "dict with scores"),
    "complex view": Animal(Spectrum, "table", "fallback"),
    "state that is no tensor": Animal(lambda: ExtraState(torch.neg), "table", "_extra_state, which is no parameter"),
    "state of other names": Animal(lambda: Renamed(torch.neg), "table", "lacks head.weight"),
    "layers made when called": Animal(MadeWhenCalled, "table", "makes head.weight, head.bias when it is called"),
    "parameters made in training": Animal(lambda: MadeWhenCalled(in_training=True), "table", "makes scale when"),
    "no numbers yet": Animal(lambda: nn.Linear(FEATURES, CLASSES, device="meta"), "table", "weight .* device meta"),
    "pixels to an embedding": Animal(
        lambda: nn.Sequential(nn.Embedding(256, 2), nn.Flatten(), nn.Linear(256, CLASSES)), "images",
        "data.inputs = integers keeps integers"
    ),
    "an integer among several": Animal(
        lambda: nn.Bilinear(FEATURES, LENGTH, CLASSES), "pair", "make those floats that are no indices"
    ),
    "nothing to train": Animal(
        lambda: nn.Linear(FEATURES, CLASSES).requires_grad_(False), "table", "no parameter that is to be trained"
    ),
}  # fmt: skip


TRAIN, TEST, PUBLIC = slice(0, 100), slice(100, 130), slice(130, SAMPLES)


def rows(arrays: Any, part: slice) -> Any:
    """Some samples of one array, or of several."""
    if isinstance(arrays, dict):
        return {name: values[part] for name, values in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(values[part] for values in arrays)
    found: NDArray[Any] = arrays[part]
    return found
