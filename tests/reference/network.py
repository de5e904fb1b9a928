"""The model f(x; θ): one hidden layer of tanh, with its gradients and its two optimisers written out.

Parameters carry torch's names and layout: "0.weight" (H, D), "0.bias" (H,), "2.weight" (C, H), "2.bias" (C,).
The method: "the logits (no softmax)"; "L1 is the mean over batch and classes"; "momentum starts at zero every round";
"Adam lr 0.001".
"""

from __future__ import annotations

import numpy as np


def hidden(params, x):
    return np.tanh(x @ params["0.weight"].T + params["0.bias"])


def logits(params, x):
    return hidden(params, x) @ params["2.weight"].T + params["2.bias"]


def backward(params, x, d_logits):
    """Gradient of a loss over the parameters, from its gradient over the logits."""
    h = hidden(params, x)
    d_before_tanh = (d_logits @ params["2.weight"]) * (1 - h**2)
    return {
        "0.weight": d_before_tanh.T @ x,
        "0.bias": d_before_tanh.sum(axis=0),
        "2.weight": d_logits.T @ h,
        "2.bias": d_logits.sum(axis=0),
    }


def log_softmax(z):
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def cross_entropy(params, x, y):
    """Mean over the samples of −log of the right class's probability."""
    log_p = log_softmax(logits(params, x))
    return float(-log_p[np.arange(len(y)), y].mean())


def cross_entropy_gradient(params, x, y):
    """Over the logits: (softmax − one-hot) / B."""
    d = np.exp(log_softmax(logits(params, x)))
    d[np.arange(len(y)), y] -= 1
    return backward(params, x, d / len(y))


def l1(params, x, target):
    """Mean over samples and classes of |f(x; θ) − z̃|."""
    return float(np.abs(logits(params, x) - target).mean())


def l1_gradient(params, x, target):
    """Over the logits: sign / (B · C), with sign(0) = 0."""
    return backward(params, x, np.sign(logits(params, x) - target) / target.size)


def accuracy(scores, y):
    """Per cent of the samples whose highest score is the right class's."""
    return float(100.0 * (scores.argmax(axis=1) == y).mean())


def average(models, weights):
    """Σ_k w_k θ_k / Σ_k w_k."""
    total = sum(weights)
    return {name: sum(w / total * model[name] for model, w in zip(models, weights, strict=True)) for name in models[0]}


class SGD:
    """buf = μ · buf + g;  θ −= lr · buf."""

    def __init__(self, params, lr, momentum):
        self.lr, self.momentum = lr, momentum
        self.buffer = {name: np.zeros_like(value) for name, value in params.items()}

    def step(self, params, gradient):
        """The parameters after one step (those before it are left as they are)."""
        after = {}
        for name, g in gradient.items():
            self.buffer[name] = self.momentum * self.buffer[name] + g
            after[name] = params[name] - self.lr * self.buffer[name]
        return after


class Adam:
    """m and v bias corrected: θ −= lr / (1 − β1^t) · m / (√v / √(1 − β2^t) + ε)."""

    def __init__(self, params, lr, beta1=0.9, beta2=0.999, eps=1e-8):
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps
        self.t = 0
        self.m = {name: np.zeros_like(value) for name, value in params.items()}
        self.v = {name: np.zeros_like(value) for name, value in params.items()}

    def step(self, params, gradient):
        """The parameters after one step (those before it are left as they are)."""
        self.t += 1
        after = {}
        for name, g in gradient.items():
            self.m[name] = self.beta1 * self.m[name] + (1 - self.beta1) * g
            self.v[name] = self.beta2 * self.v[name] + (1 - self.beta2) * g**2
            denominator = np.sqrt(self.v[name]) / np.sqrt(1 - self.beta2**self.t) + self.eps
            after[name] = params[name] - self.lr / (1 - self.beta1**self.t) * self.m[name] / denominator
        return after
