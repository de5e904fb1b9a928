"""How fast is the same federated work in cpfl, in pfl-research 0.6.0 and in Flower 1.41's simulation?

Sides run alternately, several times, each in a virtual environment of its own; the medians count.

    python benchmarks/peers/run.py --make-venvs DIR --out results/peers.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import works

from cpfl.data.given import Given, as_samples
from cpfl.data.samples import Samples
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
WARM_UP = 2  # rounds before the window
FASTER = 10  # on a GPU cpfl does so many times the rounds, for a window as long as the peers'
PACKAGES = {  # torch first: the rest must be content with it
    "pfl": (["torch==2.13.0"], ["pfl==0.6.0"]),
    "flower": (["torch==2.13.0"], ["flwr==1.41.0", "ray==2.55.1", "rich<15", "typer<0.21"]),
}
QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Work:
    """A model, and users that are drawn from CIFAR-10 as the cifar10 preset with these settings draws them."""

    model: str
    rounds: int  # in the window
    settings: dict[str, Any]


def equal_users(samples: int) -> dict[str, Any]:
    """20 users with as many samples each."""
    return {"clients": 20, "data.split": "iid", "data.train_limit": 20 * samples, "data.validation": 0.0}


WORKS = {
    "lenet5": Work("lenet5", 60, equal_users(50)),
    "cifar10": Work("gn-lenet", 10, equal_users(200)),
    "skewed": Work("gn-lenet", 5, {}),  # the preset's 200 users, α = 0.1, less what they hold out
}


@dataclass(frozen=True)
class Case:
    """A side, how many cohorts (cpfl), processes (pfl) or cores (Flower), and the precision."""

    side: str
    count: int
    precision: str

    def __str__(self) -> str:
        return f"{self.side}:{self.count}:{self.precision}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """From side:count:precision."""
        side, count, precision = text.split(":")
        if side not in ("cpfl", *PACKAGES) or precision not in ("float32", "tf32", "bf16") or int(count) < 1:
            raise ValueError
        return cls(side, int(count), precision)


def make_venvs(folder: Path) -> None:
    """A virtual environment for each peer, unless it is there."""
    for side, steps in PACKAGES.items():
        if (folder / side / "ready").is_file():
            continue
        subprocess.run([sys.executable, "-m", "venv", folder / side], check=True)
        for packages in steps:
            subprocess.run([folder / side / "bin" / "pip", "install", "--quiet", *packages], check=True)
        (folder / side / "ready").touch()


def make_arrays(work: Work, data: Path | None, folder: Path) -> None:
    """The arrays that every side reads: normalised inputs, labels and owners, of CIFAR-10 or of its shape."""
    public = as_samples(np.zeros((1, 3, 32, 32), np.uint8))  # plays no part
    given = Given(public=public) if data else Given(drawn(50_000, 0), drawn(10, 1), public)
    settings = {"data.public_fit": "exact", "devices.trace": "fixed", **work.settings}
    experiment = experiment_file.with_settings(experiment_file.load("cifar10"), settings)
    held = build_task(experiment, [data] if data else [], given).data
    rows = np.concatenate([client.training for client in held.clients])
    owner = np.repeat(np.arange(len(held.clients)), [len(client.training) for client in held.clients])
    assert held.train.y is not None
    folder.mkdir()
    np.save(folder / "x.npy", held.transform(torch.as_tensor(held.train.x[rows])).numpy())
    np.save(folder / "y.npy", held.train.y[rows])
    np.save(folder / "owner.npy", owner)


def drawn(count: int, seed: int) -> Samples:
    """Images that can be learnt: a coarse pattern a class, under noise; as many of each class."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).integers(64, 192, (works.CLASSES, 3, 4, 4)).repeat(8, 2).repeat(8, 3)
    y = rng.permutation(np.arange(count) % works.CLASSES)
    noise = rng.integers(-64, 64, (count, 3, 32, 32), np.int8)
    return as_samples((patterns.astype(np.int16)[y] + noise).astype(np.uint8), y)


def command(case: Case, words: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """What starts a side, and its environment."""
    env = {**os.environ, **QUIET}
    python = sys.executable
    if case.side in PACKAGES and words.venvs:
        python = str(words.venvs / case.side / "bin" / "python")
        env.pop("PYTHONPATH", None)
    elif case.side == "pfl" and words.pfl_path:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(words.pfl_path.absolute()), env.get("PYTHONPATH")]))
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.count)]
    start = several if case.side == "pfl" and case.count > 1 else []
    return [python, *start, str(HERE / f"{case.side}_side.py")], env


def measure(case: Case, work: Work, arrays: Path, words: argparse.Namespace) -> dict[str, Any]:
    """One run of one side."""
    rounds = words.rounds or work.rounds
    more = FASTER if case.side == "cpfl" and words.device == "cuda" else 1
    out = arrays.parent / "report.json"
    out.unlink(missing_ok=True)
    start, env = command(case, words)
    options = {
        "arrays": arrays,
        "model": work.model,
        "device": words.device,
        "precision": case.precision,
        "count": case.count,
        "rounds": WARM_UP + rounds * more,
        "evaluate": WARM_UP + rounds,
        "out": out,
    }
    line = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    done = subprocess.run([*start, *line], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not out.is_file():
        raise RuntimeError(f"{case} ended with {done.returncode} and no report:\n{done.stdout[-3000:]}")
    report = json.loads(out.read_text())
    return {**rates(report["events"]), "loss": report["loss"], "about": report["about"]}


def rates(events: list[tuple[float, int, int]]) -> dict[str, float]:
    """Speeds from when every cohort has warmed up until the first one ends; all samples that a round of all trains."""
    ends: dict[int, list[float]] = {}
    for seconds, cohort, _ in events:
        ends.setdefault(cohort, []).append(seconds)
    began, ended = max(own[WARM_UP - 1] for own in ends.values()), min(own[-1] for own in ends.values())
    if ended <= began:
        raise RuntimeError(f"{len(ends)} cohorts ran together for no time at all: more --rounds are needed")
    inside = [(cohort, samples) for seconds, cohort, samples in events if began < seconds <= ended]
    each = sum({cohort: samples for _, cohort, samples in events}.values())
    speed = sum(samples for _, samples in inside) / (ended - began)
    return {"samples_per_second": speed, "rounds_per_second": speed / each, "samples_per_round": each}


def ratios(rows: dict[Case, list[dict[str, Any]]]) -> dict[str, float]:
    """Median speed of every cpfl case over that of every peer's."""
    speeds = {case: median(row["samples_per_second"] for row in found) for case, found in rows.items() if found}
    ours, peers = ([case for case in speeds if (case.side == "cpfl") == own] for own in (True, False))
    return {f"{a} / {b}": round(speeds[a] / speeds[b], 2) for a in ours for b in peers}


def doubts(rows: dict[Case, list[dict[str, Any]]]) -> list[str]:
    """Cases whose precision cannot have been in effect: their loss is another precision's to the last bit."""
    evaluated = [
        (case, found[0]["loss"][1]) for case, found in rows.items() if found and found[0]["loss"][1] is not None
    ]
    return [
        f"{a} and {b} end with the same loss to the last bit: the same arithmetic, whatever their names say"
        for (a, one), (b, other) in itertools.combinations(evaluated, 2)
        if (a.side, a.count) == (b.side, b.count) and one == other
    ]


def show(rows: dict[Case, list[dict[str, Any]]], evaluated: int) -> None:
    """Print a work's table and its ratios."""
    print(
        f"| side | rounds/s | samples/s (least – most) | samples a round | loss at start → after {evaluated} rounds |"
    )
    print("|---|---|---|---|---|")
    for case, found in rows.items():
        if not found:
            print(f"| {case} | failed | | | |")
            continue
        speeds = [row["samples_per_second"] for row in found]
        rounds, (before, after) = median(row["rounds_per_second"] for row in found), found[0]["loss"]
        last = "–" if after is None else f"{after:.4f}"
        print(
            f"| {case} | {rounds:.3g} | {median(speeds):,.0f} ({min(speeds):,.0f} – {max(speeds):,.0f}) | "
            f"{found[0]['samples_per_round']:,} | {before:.4f} → {last} |"
        )
    print("\n" + "\n".join(f"{name} = {ratio:.2f}×" for name, ratio in ratios(rows).items()) + "\n")
    print("".join(f"DOUBT: {doubt}\n" for doubt in doubts(rows)), flush=True)


def machine(device: str) -> str:
    """What it was measured on."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{CORES} cores of {named[0].split(':')[1].strip() if named else platform.machine()}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", action="append", choices=WORKS, help="default: lenet5 and cifar10; skewed on a GPU")
    parser.add_argument("--data", type=Path, help="a folder with cifar10; else images of its shape are drawn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, help="in the window; default: as many as the work says")
    parser.add_argument(
        "--make-venvs", type=Path, metavar="DIR", help="make the peers' environments there and use them"
    )
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="where they were made")
    parser.add_argument("--pfl-path", type=Path, metavar="DIR", help="pfl's unpacked wheels, where there is no network")
    parser.add_argument("cases", nargs="*", help="side:count:precision, such as cpfl:1:bf16 pfl:2:float32")
    words = parser.parse_args()
    on_gpu = ["cpfl:1:tf32", "cpfl:16:tf32", "cpfl:1:bf16", "cpfl:16:bf16", "pfl:1:tf32", "pfl:1:bf16"]
    on_cpu = ["cpfl:1:float32", "cpfl:1:bf16", "pfl:1:float32", f"pfl:{CORES}:float32", f"flower:{CORES}:float32"]
    try:
        words.cases = [Case.parse(text) for text in words.cases or (on_gpu if words.device == "cuda" else on_cpu)]
    except ValueError:
        parser.error("a case is side:count:precision, of cpfl, pfl or flower and float32, tf32 or bf16: cpfl:1:bf16")
    words.work = words.work or (["skewed"] if words.device == "cuda" else ["lenet5", "cifar10"])
    if words.make_venvs:
        make_venvs(words.make_venvs)
        words.venvs = words.make_venvs
    return words


def main() -> None:
    words = parse()
    results: dict[str, Any] = {
        "machine": machine(words.device),
        "command": " ".join(["python benchmarks/peers/run.py", *(Path(word).name for word in sys.argv[1:])]),
        "data": "cifar10" if words.data else "drawn, of CIFAR-10's shape",
        "works": {},
        "failed": {},
    }
    for name in words.work:
        work, failed = WORKS[name], results["failed"].setdefault(name, {})
        rows: dict[Case, list[dict[str, Any]]] = {case: [] for case in words.cases}
        with tempfile.TemporaryDirectory() as folder:
            make_arrays(work, words.data, Path(folder) / "arrays")
            for turn, case in itertools.product(range(words.repeat), words.cases):
                if str(case) in failed:
                    continue
                try:
                    rows[case].append(measure(case, work, Path(folder) / "arrays", words))
                    line = f"{rows[case][-1]['samples_per_second']:,.0f} samples/s"
                except RuntimeError as error:  # the others continue without it
                    failed[str(case)] = line = str(error)
                print(f"{name} {turn + 1}/{words.repeat} {case}: {line}", file=sys.stderr, flush=True)
                runs = {str(other): found for other, found in rows.items()}
                results["works"][name] = {"ratios": ratios(rows), "doubts": doubts(rows), "runs": runs}
                words.out.write_text(json.dumps(results, indent=2) + "\n")
        print(f"{name}: {work.model}, batch {works.BATCH}, {words.repeat} runs of every side, {results['machine']}")
        show(rows, WARM_UP + (words.rounds or work.rounds))
    sys.exit(1 if any(results["failed"].values()) else 0)


if __name__ == "__main__":
    main()
