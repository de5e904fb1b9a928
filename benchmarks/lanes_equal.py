"""Do lanes train what the plain loop trains? Whole runs on float64, ragged clients, n from 1 to M, on this device.

Also how exact the kernels are, and whether a run repeats bit by bit in another process. A check that fails is
reported, and the next one starts.

python benchmarks/lanes_equal.py --out results/lanes-equal.json
python benchmarks/lanes_equal.py --out equal.json --device cpu --only kernels "n = 1"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import cpfl
from cpfl import models
from cpfl.engines.create import torch_device
from cpfl.errors import first_line
from cpfl.kernels import layers

BASE = {"precision": "float64", "max_rounds": 8, "distillation.epochs": 1}
ROUNDING = 1e-9  # of float64, over a whole run
FEW = {"federation.participation": 0.4}
CASES: dict[str, dict[str, Any]] = {
    "n = 4, momentum": {},
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 40},
    "no momentum": {"federation.momentum": 0.0},
    "partial, by samples": {**FEW, "federation.weights": "samples"},
    "local steps": {"federation.local_steps": 3},
    "batch larger than most clients": {"federation.batch_size": 64},
    "convolutions": {"model.name": "femnist-cnn", "max_rounds": 3},
    "over-selection, crashes": {
        **FEW, "federation.over_selection": 0.5, "devices.crash_rate": 0.4, "federation.min_results": 4,
    },
    "deadline, stragglers are dropped": {"federation.deadline": 8, "federation.local_epochs": 2},
    "deadline, partial work": {
        "federation.deadline": 8, "federation.straggler_policy": "partial", "federation.local_epochs": 2,
    },
    "stale updates": {**FEW, "federation.over_selection": 1.0, "federation.straggler_policy": "stale"},
    "buffered, crashes": {"federation.buffer_size": 3, "federation.concurrency": 6, "devices.crash_rate": 0.2},
}  # fmt: skip
Shape = tuple[int, ...]
LAYERS: dict[str, list[tuple[nn.Module, Shape]]] = {  # some of GN-LeNet's, and odd ones: each shape is compiled anew
    "convolution": [
        (nn.Conv2d(3, 32, 5, padding=2), (3, 32, 32)),
        (nn.Conv2d(32, 64, 5, padding=2), (32, 7, 7)),
        (nn.Conv2d(5, 7, (3, 5), padding=(0, 2), bias=False), (5, 9, 11)),
    ],
    "group normalisation": [
        (nn.GroupNorm(2, 32), (32, 15, 15)),
        (nn.GroupNorm(7, 7, affine=False), (7, 9, 11)),
    ],
    "pooling": [
        (nn.MaxPool2d(3, 2), (32, 32, 32)),
        (nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0)), (7, 9, 11)),
    ],
}
LANES, BATCH = 4, 20
LARGEST = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}  # difference to exact arithmetic, as a share of the largest


def strided() -> nn.Module:
    """Two convolutions for which lanes have no kernel: torch's own compute them in any arithmetic."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, groups=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def normalised() -> nn.Module:
    """A layer of each kind that lanes have a kernel for."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


MODELS: dict[str, dict[str, Any]] = {
    "normalised": {"model": normalised},
    "femnist-cnn": {"settings": {"model.name": "femnist-cnn"}},
    "strided and grouped": {"model": strided},
}
REPEATS = {f"{model}, {precision}": (model, precision) for precision in LARGEST for model in MODELS}


def apart(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    """The largest difference between two runs' records; what is no number must be the same."""
    worst = 0.0
    for a, b in zip(theirs, ours, strict=True):
        for key, value in a.items():
            if isinstance(value, float):
                worst = max(worst, abs(value - b[key]))
            elif value != b[key]:
                raise AssertionError(f"cohort {a['cohort']}, round {a['round']}: {key} is {b[key]}, not {value}")
    return worst


def models_apart(ours: models.State, theirs: models.State) -> float:
    """The largest difference between two models' parameters."""
    return max((ours[name].double() - value.double()).abs().max().item() for name, value in theirs.items())


def equal(case: str, device: str) -> dict[str, Any]:
    """One kind of run by the plain loop and in lanes."""
    with tempfile.TemporaryDirectory() as scratch:
        plain, lanes = (
            cpfl.run("digits", out=Path(scratch) / e, engine=e, device=device, settings=BASE | CASES[case])
            for e in ("reference", "lanes")
        )
        records, model = apart(lanes.rounds, plain.rounds), models_apart(lanes.model, plain.model)
        wasted = sum(record.get("wasted_cpu_seconds", 0) for record in plain.rounds)
        done = {"case": case, "rounds": len(plain.rounds), "records": records, "global model": model}
        return {**done, "wasted cpu seconds": wasted, "ok": max(records, model) < ROUNDING}


def kernels(precision: str, device: torch.device) -> dict[str, Any]:
    """How far the lanes' layers and all their gradients are from torch's own in exact arithmetic, on the same numbers.

    What is computed on a CPU is what the layers do where there are no kernels.
    """
    models.choose_arithmetic(precision)
    numbers = torch.bfloat16 if precision == "bf16" else torch.float32
    away: dict[str, list[float]] = {}
    draw = torch.Generator().manual_seed(0)

    def some(shape: Shape, offset: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=draw) + offset).to(numbers).double()

    for kind, cases in LAYERS.items():
        for layer, shape in cases:
            params = {name: some((LANES, *value.shape)) for name, value in layer.named_parameters()}
            values = {"input": some((LANES, BATCH, *shape), 0.5), **params}
            weights = dict.fromkeys(params, torch.float32)  # as in training: layers round what they need rounded
            true = {name: value.requires_grad_() for name, value in values.items()}
            mine = {
                name: value.detach().to(device, weights.get(name, numbers)).requires_grad_()
                for name, value in values.items()
            }
            right = _all_lanes(nn.Sequential(layer), true)
            out = _all_lanes(layers.fit(nn.Sequential(layer), numbers).to(device), mine)
            g = some(tuple(right.shape))
            gradients = torch.autograd.grad(out, list(mine.values()), g.to(device, out.dtype))
            exact_gradients = torch.autograd.grad(right, list(true.values()), g)
            names = [kind, *(f"{kind}: gradient of {name}" for name in values)]
            for name, found, exact in zip(names, (out, *gradients), (right, *exact_gradients), strict=True):
                far = (found.detach().double().cpu() - exact.detach()).abs().max() / exact.detach().abs().max()
                away.setdefault(name, []).append(far.item())
    worst = {name: torch.tensor(shares).max().item() for name, shares in away.items()}  # NaN if there is one
    fine = all(share <= LARGEST[precision] for share in worst.values())
    return {"arithmetic": precision, **worst, "largest allowed": LARGEST[precision], "ok": fine}


def _all_lanes(module: nn.Module, values: dict[str, Tensor]) -> Tensor:
    """What a module of one layer makes of all lanes' inputs, with their own parameters."""
    params = {f"0.{name}": value for name, value in values.items() if name != "input"}
    one: Callable[..., Tensor] = lambda p, x: functional_call(module, p, (x,))  # noqa: E731
    return vmap(one)(params, values["input"]) if params else vmap(module)(values["input"])


class Twins:
    """Two processes that do the same runs, independently: libraries that choose by timing choose again in each."""

    def __init__(self, device: str, names: Collection[str]) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._folders = [Path(self._scratch.name) / which for which in "ab"]
        command = [sys.executable, __file__, "--device", device, "--only", *names]
        self._both = [
            subprocess.Popen([*command, "--runs-in", str(folder)], stdout=subprocess.PIPE, text=True)
            for folder in self._folders
        ]

    def compare(self, name: str) -> dict[str, Any]:
        """The two runs of this name, when both have ended; names come in order."""
        for process in self._both:
            assert process.stdout is not None
            if not any(line.strip() == name for line in process.stdout):
                raise RuntimeError(f"a process ended with {process.wait()} before it had run {name}")
        one, two = (cpfl.load_run(folder / name) for folder in self._folders)
        alike = {"records": one.rounds == two.rounds}
        alike["global model"] = all(torch.equal(one.model[key], value) for key, value in two.model.items())
        far = {"records apart": apart(one.rounds, two.rounds), "models apart": models_apart(one.model, two.model)}
        return {"run": name, **alike, **far, "ok": all(alike.values())}


def runs_in(folder: Path, device: str, names: Collection[str]) -> None:
    """One twin's work: a run after the other, and a line when each has ended."""
    for name in names:
        model, precision = REPEATS[name]
        own = dict(MODELS[model])
        settings = {"precision": precision, "max_rounds": 5, "distillation.epochs": 1, **own.pop("settings", {})}
        try:
            cpfl.run("digits", out=folder / name, engine="lanes", device=device, settings=settings, **own)
        except Exception:
            traceback.print_exc()
        print(name, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("lanes-equal.json"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="a kind of check, or one by its own name")
    parser.add_argument("--runs-in", type=Path, help=argparse.SUPPRESS)  # a twin's
    words = parser.parse_args()
    if words.runs_in:
        runs_in(words.runs_in, words.device, words.only)
        return
    device = torch_device(words.device)
    checks: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        *(("runs", case, partial(equal, case, str(device))) for case in CASES),
        *(("kernels", precision, partial(kernels, precision, device)) for precision in LARGEST),
    ]
    outcome: dict[str, Any] = {"machine": "cpu", "torch": torch.__version__}
    if device.type == "cuda":
        outcome["machine"] = torch.cuda.get_device_name(device)
    unknown = {*words.only} - {name for kind, name, _ in checks for name in (kind, name)} - {"repeats", *REPEATS}
    if unknown:
        parser.error(f"--only knows no {', '.join(sorted(unknown))}")
    repeats = [name for name in REPEATS if not words.only or {"repeats", name} & {*words.only}]
    twins = Twins(str(device), repeats) if repeats else None  # they work during the other checks
    checks = [check for check in checks if not words.only or {*check[:2]} & {*words.only}]
    checks += [("repeats", name, partial(twins.compare, name)) for name in repeats if twins]
    fine, start = True, time.perf_counter()
    for kind, name, check in checks:
        began = time.perf_counter()
        try:
            entry = check()
        except Exception as error:
            traceback.print_exc()
            entry = {"check": name, "error": f"{type(error).__name__}: {first_line(error)}", "ok": False}
        fine = fine and entry["ok"]
        entry.setdefault("seconds", round(time.perf_counter() - began, 1))
        print(kind, json.dumps(entry), flush=True)
        outcome.setdefault(kind, []).append(entry)
        outcome |= {"ok": fine, "seconds": round(time.perf_counter() - start, 1)}
        words.out.write_text(json.dumps(outcome, indent=2, ensure_ascii=False) + "\n")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
