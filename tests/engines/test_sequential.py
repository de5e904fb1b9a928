"""The step of a sequence of layers gives the gradients of autograd; other models are left to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cpfl.engines.workers.sequential import sequence_of, sequential_step
from cpfl.models import BUILT_IN
from cpfl.models.layout import IMAGE_AXES, Layout

IMAGE = (3, 32, 32)


def lenet5() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    )  # fmt: skip


def unusual() -> nn.Module:
    """What the layers can be set to, one within the other."""
    return nn.Sequential(
        OrderedDict(
            first=nn.Sequential(
                nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), nn.Conv2d(3, 8, 3, stride=2, dilation=2, bias=False)
            ),
            norm=nn.GroupNorm(4, 8, affine=False),
            second=nn.Conv2d(8, 12, (3, 1), padding=(1, 0), groups=4),
            open=nn.ReLU(inplace=True),
            pool=nn.MaxPool2d((2, 1), (1, 2), dilation=(1, 2)),
            rows=nn.Flatten(),
            out=nn.Linear(288, 10, bias=False),
        )
    )


def narrow(outputs: int, stride: int = 1) -> Callable[[], nn.Module]:
    """A convolution of few outputs behind another, so that the gradient of its input counts."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.Conv2d(16, outputs, 5, (stride, 1), (4, 1), (2, 1), bias=outputs > 2), nn.ReLU(),
            nn.Flatten(), nn.Linear(outputs * (30 // stride) * 28, 10),
        )  # fmt: skip

    return build


def halves(rows: int) -> Callable[[], nn.Module]:
    """Few channels pooled two by two, of convolutions in steps of two columns."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, (33 - rows, 3), (1, 2), (0, 1)), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(4, 6, 3, (1, 2), 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * (rows // 4) * 2, 10),
        )  # fmt: skip

    return build


def padded() -> nn.Module:
    """Few inputs behind a layer, and more padding than the kernel reaches."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 32 * 32, 10)
    )


NARROW = {"lenet5": lenet5, "four": narrow(4), "two": narrow(2, 2), "one": narrow(1), "padded": padded}
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "unusual": unusual,
    "halves": halves(28),
    "halves and a row": halves(29),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(3072, 10))),
    **NARROW,
    **{name: lambda name=name: BUILT_IN[name](IMAGE, 10) for name in ("gn-lenet", "femnist-cnn", "mlp")},
}


def both(build: Callable[[], nn.Module], dtype: torch.dtype, low: bool, x: Tensor) -> list[tuple[Tensor, ...]]:
    """Loss, logits and the row of gradients: of autograd and of the step without it."""
    torch.manual_seed(1)
    module = build().to(dtype)
    layout = Layout.from_module(module, by_name=True, channels_last=True)
    row = layout.row(module.state_dict(), torch.device("cpu"))
    gradients = torch.zeros_like(row)
    named = dict(module.named_parameters())
    for name, view in layout.views(row).items():
        named[name].data = view
    step = sequential_step(module, x.dim(), row, gradients, layout.views, low)
    assert step is not None
    x, y = x.to(dtype), torch.arange(len(x)) % 10
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == IMAGE_AXES else x
    with torch.autocast("cpu", torch.bfloat16, enabled=low, cache_enabled=False):
        logits = module(x)
    loss = nn.functional.cross_entropy(logits.to(dtype), y)
    wanted = torch.autograd.grad(loss, [named[name] for name in layout.shapes])
    found = step(x, y)
    return [(loss, logits.to(dtype), torch.cat([layout.flat(part) for part in wanted])), (*found, gradients)]


@pytest.mark.parametrize("count", [20, 1])
@pytest.mark.parametrize("kind", ["float64", "float32", "bf16"])
@pytest.mark.parametrize("model", PLAIN)
def test_the_step_gives_the_bits_of_autograd(model: str, kind: str, count: int) -> None:
    dtype = torch.float64 if kind == "float64" else torch.float32
    x = torch.randn(count, *IMAGE, generator=torch.Generator().manual_seed(2)).relu()  # equal maxima are common
    x[:, :, 8:24] = 0
    (*wanted, gradients), (*found, others) = both(PLAIN[model], dtype, kind == "bf16", x)
    assert all(map(torch.equal, wanted, found))
    differing = gradients != others
    if kind == "float32" or (kind == "float64" and model in NARROW):  # biases are summed up in another order
        biases, (rtol, atol) = of_biases(PLAIN[model]()), (1e-5, 2e-6) if kind == "float32" else (1e-12, 1e-14)
        assert torch.allclose(gradients[biases], others[biases], rtol=rtol, atol=atol)
        differing &= ~biases
    assert not differing.any()


def of_biases(module: nn.Module) -> Tensor:
    """Which numbers of a model's row are biases of convolutions, as a mask."""
    convolutions = [f"{name}.bias" for name, part in module.named_modules() if isinstance(part, nn.Conv2d)]
    rows = Layout.from_module(module, by_name=True).shapes.items()
    return torch.cat([torch.full((shape.numel(),), name in convolutions) for name, shape in rows])


@pytest.mark.parametrize("model", PLAIN)
def test_gradients_of_biases_are_as_exact_as_those_of_autograd(model: str) -> None:
    x, biases = torch.randn(20, *IMAGE, generator=torch.Generator().manual_seed(2)), of_biases(PLAIN[model]())
    exact = both(PLAIN[model], torch.float64, False, x)[0][2][biases]
    autograd, ours = ((each[2][biases] - exact).abs().sum() for each in both(PLAIN[model], torch.float32, False, x))
    assert ours <= 2 * autograd  # less in most models


def hooked() -> nn.Module:
    module = lenet5()
    module[3].register_forward_hook(lambda part, x, y: 2 * y)
    return module


def masked() -> nn.Module:
    module = lenet5()
    module[0].weight.register_hook(lambda gradient: gradient * 0)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(48, 48)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def frozen() -> nn.Module:
    module = lenet5()
    module[0].requires_grad_(False)
    return module


class Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "build",
    [
        hooked,
        masked,
        shared,
        frozen,
        lambda: Own(*lenet5()),
        lambda: nn.Sequential(nn.ReLU(), *lenet5()),  # would write over the samples
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), nn.Linear(4096, 10)),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect", padding=1), nn.Flatten(), nn.Linear(4096, 10)),
        lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(3072, 10)),
        lambda: nn.Sequential(nn.Linear(32, 10), nn.Flatten()),  # of rows of an image
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3072), nn.Linear(3072, 10)),
        lambda: nn.Sequential(nn.Flatten()),
    ],
)
def test_other_models_are_left_to_autograd(build: Callable[[], nn.Module]) -> None:
    assert sequence_of(build(), 1 + len(IMAGE)) is None


def test_a_single_layer_is_a_sequence() -> None:
    (wanted, found) = both(lambda: nn.Linear(7, 10), torch.float32, False, torch.randn(5, 7))
    assert all(map(torch.equal, wanted, found))
