"""Layers that know lanes give what torch's own layers give, lane by lane; so do the kernels behind them on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from cpfl.kernels import layers
from cpfl.models import femnist_cnn, gn_lenet

L, B = 3, 4
NETS = {
    "gn-lenet": (lambda: gn_lenet((3, 32, 32), 10), (3, 32, 32)),
    "femnist-cnn": (lambda: femnist_cnn((1, 28, 28), 62), (1, 28, 28)),
    "other sizes": (
        lambda: nn.Sequential(
            nn.Conv2d(5, 7, (3, 5), padding=(0, 2), bias=False),
            nn.GroupNorm(7, 7, affine=False),
            nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0)),
            nn.Conv2d(7, 4, 1),
            nn.Flatten(),
        ),
        (5, 9, 11),
    ),
    "layers it leaves alone": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2),
            nn.Conv2d(8, 8, 3, groups=2, padding=1),
            nn.Conv2d(8, 8, 3, dilation=2, padding=2),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(8, 8, 3, padding="same"),
            nn.MaxPool2d(3, ceil_mode=True),
            nn.Flatten(),
        ),
        (4, 13, 13),
    ),
}


def gradients(net: nn.Module, params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Losses and gradients of all lanes, as the engine takes them."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, p, (x,)).square().mean()  # type: ignore[no-any-return]

    losses = vmap(loss)(leaves, x)
    return losses.detach(), list(torch.autograd.grad(losses.sum(), list(leaves.values())))


@pytest.mark.parametrize("name", NETS)
def test_a_fitted_model_equals_the_model(name: str) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build().double()
    fitted = layers.fit(net, torch.float64)
    assert list(fitted.state_dict()) == list(net.state_dict())
    params = {
        n: torch.stack([p + 0.1 * torch.randn_like(p) for _ in range(L)]).detach() for n, p in net.named_parameters()
    }
    x = torch.randn(L, B, *shape, dtype=torch.float64)
    ours, our_gradients = gradients(fitted, params, x)
    theirs, their_losses = vmap(grad_and_value(lambda p, x: functional_call(net, p, (x,)).square().mean()))(params, x)
    torch.testing.assert_close(ours, their_losses)
    for mine, value in zip(our_gradients, theirs.values(), strict=True):
        torch.testing.assert_close(mine, value)


@pytest.mark.parametrize("name", NETS)
def test_a_model_by_itself_equals_the_model(name: str) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build().double()
    fitted = layers.fit(net, torch.float64)
    x = torch.randn(B, *shape, dtype=torch.float64)
    torch.testing.assert_close(fitted(x), net(x))
    for one in (fitted, net):
        one(x).square().mean().backward()
    for ours, theirs in zip(fitted.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_which_layers_are_fitted() -> None:
    kinds = [type(part).__name__ for part in layers.fit(NETS["layers it leaves alone"][0](), torch.float32)]
    assert kinds == ["Conv2d"] * 5 + ["MaxPool2d", "Flatten"]
    kinds = [type(part).__name__ for part in layers.fit(gn_lenet((3, 32, 32), 10), torch.float32)]
    assert kinds.count("LaneConv2d") == kinds.count("LaneMaxPool2d") == kinds.count("LaneGroupNorm") == 3


def test_the_model_itself_stays_as_it_is() -> None:
    net = gn_lenet((3, 32, 32), 10)
    layers.fit(net, torch.float32)
    assert type(net[0]) is nn.Conv2d


KERNELS = """
import torch
from cpfl.kernels import conv, norm, pool
from cpfl.kernels.triton import conv as conv_kernels, norm as norm_kernels, pool as pool_kernels
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False  # the interpreter knows no bf16; benchmarks/lanes_equal.py tries it
worst = 0.0
for lanes, batch, side, channels, outputs, taps in [(2, 3, 9, 4, 8, 5), (2, 2, 7, 32, 32, 5), (3, 2, 6, 12, 24, 3)]:
    x, w = torch.randn(lanes, batch, side, side, channels), torch.randn(lanes, taps, taps, channels, outputs)
    bias = torch.randn(lanes, outputs)
    right = conv.lane_conv(x, w, bias)
    worst = max(worst, ((conv_kernels.convolve(x, w, bias) - right).abs().max() / right.abs().max()).item())
    g = torch.randn_like(right)
    right = conv.lane_conv_gradients(x, g)
    worst = max(worst, ((conv_kernels.weight_gradient(x, g) - right).abs().max() / right.abs().max()).item())
for side, window, stride, padding in [(32, 3, 2, 0), (15, 3, 2, 1), (28, 2, 2, 0), (9, 3, 1, 1)]:
    x = torch.randn(4, side, side, 8)
    out, winner = pool.lane_pool(x, [window] * 2, [stride] * 2, [padding] * 2)
    ours, which = pool_kernels.pool(x, (window,) * 2, (stride,) * 2, (padding,) * 2)
    assert torch.equal(out, ours) and torch.equal(winner, which)
    g = torch.randn_like(out)
    right = pool.lane_pool_gradients(g, winner, [side] * 2, [window] * 2, [stride] * 2, [padding] * 2)
    mine = pool_kernels.pool_gradient(g, winner, (side,) * 2, (window,) * 2, (stride,) * 2, (padding,) * 2)
    worst = max(worst, (mine - right).abs().max().item())
for lanes, batch, pixels, channels, groups in [(2, 3, 225, 32, 2), (3, 2, 7, 12, 4), (1, 5, 1, 6, 3)]:
    x = torch.randn(lanes * batch, pixels, channels) + 3
    g, w, bias = torch.randn_like(x), torch.randn(lanes, channels), torch.randn(lanes, channels)
    for affine in ((w, bias), (None, None)):
        right, ours = norm.lane_norm(x, *affine, groups, 1e-5), norm_kernels.normalise(x, *affine, groups, 1e-5)
        worst = max(worst, *((a - b).abs().max().item() / 10 for a, b in zip(ours, right)))
        right = norm.lane_norm_gradients(g, x, affine[0], *right[1:])
        ours = norm_kernels.gradients(g, x, affine[0], *ours[1:])
        worst = max(worst, *(((a - b).abs().max() / (1 + b.abs().max())).item() for a, b in zip(ours, right)))
print(worst)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_in_tritons_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-5
