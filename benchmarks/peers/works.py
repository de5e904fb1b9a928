"""What is the same for every side: model, arrays, batches, steps and the report. Needs only torch and numpy."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

BATCH, LR, MOMENTUM = 20, 0.002, 0.9  # of the cifar10 preset; one local epoch, momentum starts at zero
CLASSES = 10
SEED = 90


def lenet5() -> nn.Module:
    """LeNet-5 on 3×32×32: 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


def gn_lenet() -> nn.Module:
    """The cifar10 preset's model on 3×32×32, layer by layer as in cpfl.models: 85,354 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
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
        nn.Linear(64 * 3 * 3, CLASSES),
    )


MODELS = {"lenet5": lenet5, "gn-lenet": gn_lenet}


def build(name: str) -> nn.Module:
    """The model with the start that all sides share."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return MODELS[name]()


def load(folder: str | Path) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, labels, and the rows that each user holds."""
    x, y, owner = (np.load(Path(folder) / f"{name}.npy") for name in ("x", "y", "owner"))
    order = np.argsort(owner, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(owner))[:-1])
    return torch.from_numpy(x), torch.from_numpy(y), [torch.from_numpy(part) for part in rows]


def set_arithmetic(precision: str) -> None:
    """Let convolutions and matrix products round to TF32 on a GPU, or not."""
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.benchmark = True


@torch.no_grad()
def loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Mean cross-entropy over all users' samples, outside the timed window."""
    total = 0.0
    for at in range(0, len(x), 1000):
        logits = model(x[at : at + 1000])
        total += nn.functional.cross_entropy(logits, y[at : at + 1000], reduction="sum").item()
    return total / len(x)


class Report:
    """When rounds ended and how many samples each trained; the loss before, and after an agreed round."""

    def __init__(self, words: argparse.Namespace) -> None:
        self._words = words
        self.events: list[tuple[float, int, int]] = []  # seconds, cohort, samples
        self.evaluated: dict[str, Tensor] | None = None

    def ended(self, seconds: float, samples: int, cohort: int = 0) -> None:
        """A round ended."""
        self.events.append((seconds, cohort, samples))

    def write(self, **more: object) -> None:
        """Evaluate the stored model and hand everything to run.py."""
        x, y, _ = load(self._words.arrays)
        x, y = x.to(self._words.device), y.to(self._words.device)
        model = build(self._words.model).to(self._words.device)
        before, after = loss(model, x, y), None
        if self.evaluated is not None:
            model.load_state_dict(self.evaluated)
            after = loss(model, x, y)
        about = {"python": sys.version.split()[0], "torch": torch.__version__, **more}
        report = {"events": self.events, "loss": [before, after], "about": about}
        self._words.out.write_text(json.dumps(report))


def arguments(text: str, count: str) -> argparse.Namespace:
    """The options that run.py gives to a side."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--arrays", type=Path, required=True, help="folder of x.npy, y.npy and owner.npy")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--count", type=int, default=1, help=count)
    parser.add_argument("--rounds", type=int, required=True, help="all rounds, those to warm up included")
    parser.add_argument(
        "--evaluate", type=int, required=True, help="the round after which the model's loss is reported"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()
