"""Small runs as real processes, and the comparison of two run folders."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from forked import Forked

from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment

Unbroken = Callable[..., Path]  # settings -> the folder of an uninterrupted run
MEASURED = {"wall_seconds", "samples_per_second", "distill_seconds", "checksum"}  # which covers the others
BELONGS = ("run", "evaluations_checksum", "meetings_checksum")  # what a model says of the run that it belongs to
OWN = {"run", "model_checksum"}  # what a summary says of the run that it belongs to

SETTINGS: dict[str, Any] = {
    "clients": 6,
    "cohorts": 3,
    "max_rounds": 5,
    "snapshots": "2 rounds",
    "checkpoint_seconds": 0,
    "data.train_limit": 200,
    "data.public_limit": 60,
    "model.args.hidden": 8,
    "stopping.patience": 4,
    "stopping.window": 3,
    "distillation.epochs": 3,
    "distillation.batch_size": 32,
}


def settings_with(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings above with changes; a setting that a changed stopping rule does not read is left out."""
    chosen = SETTINGS | dict(changes)
    if chosen.get("stopping.rule", "plateau") != "plateau":
        del chosen["stopping.patience"]
    return chosen


def run_words(out: Path, settings: Mapping[str, Any]) -> list[str]:
    """The command line of a run with these settings."""
    words = ["run", "digits", "--device", "cpu", "--out", str(out)]
    for key, value in settings_with(settings).items():
        words += ["--set", f"{key}={value}"]
    return words


def environment() -> dict[str, str]:
    """One thread, as in this process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(*words: str | Path, driver: Sequence[str] = ()) -> Forked:
    """Start cpfl; with `driver`, a process that fails as its words say."""
    if driver:
        return Forked("dying:main", ["dying.py", *driver, *map(str, words)], environment())
    return Forked("cpfl.cli:main", ["cpfl", *map(str, words)], environment())


def cpfl(*words: str | Path, driver: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run cpfl until it ends."""
    process = start(*words, driver=driver)
    out, err = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def content(path: Path) -> bytes:
    """A file of a run without what says which run it belongs to: equal for other settings of the same outcome."""
    if path.suffix == ".safetensors":
        tensors, numbers = files.load_tensors(path)
        kept = {
            key: value
            for key, value in numbers.items()
            if key not in ("run", "evaluations_checksum", "meetings_checksum")
        }
        return safetensors.torch.save(tensors) + json.dumps(kept).encode()
    if path.name in ("evaluations.jsonl", "meetings.jsonl"):  # a meeting's files are compared themselves
        named = b',"model":' if path.name == "meetings.jsonl" else b',"checksum":'
        return b"".join(line.rpartition(named)[0] for line in path.read_bytes().splitlines())
    if path.name == "summary.json":
        return json.dumps({k: v for k, v in json.loads(path.read_bytes()).items() if k not in MEASURED | OWN}).encode()
    return path.read_bytes()


def made_by_hand(path: Path, experiment: Experiment | None = None, **about: Any) -> RunFolder:
    """A folder for rounds that no engine trains."""
    facts = {"engine": "workers", "fingerprint": {}, "shape": [1], "classes": 2, "class_names": None, "samples": {}}
    facts |= {"data_folder": None, "label_counts": [], "cohorts": [[0], [1]]}
    facts |= {"model_bytes": 16, "cohort_model_bytes": {}}
    return RunFolder.create(path, experiment or Experiment(cohorts=2, clients=2), facts | about)


def rewrite(path: Path, **entries: Any) -> None:
    """Other values in a JSON file that carries its checksum, as if a program had written them."""
    tree = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(tree | {"checksum": files.checksum(tree)}))


def reseal(path: Path) -> None:
    """A run folder whose text files were edited by hand, as if a program had written it so."""
    settings = hashlib.sha256((path / "experiment.toml").read_bytes()).hexdigest()
    rewrite(path / "run.json", experiment_checksum=settings)
    folder = RunFolder(path)
    for file in path.rglob("*.safetensors"):
        tensors, numbers = files.load_tensors(file)
        folder.save(file, tensors, numbers)
    for file in path.rglob("summary.json"):
        rewrite(file, run=folder.identity)


def contents(path: Path) -> dict[str, bytes]:
    """What `outcome` compares, whatever run it belongs to."""
    return {name: content(path / name) for name in outcome(path)}


def outcome(path: Path) -> dict[str, bytes]:
    """The results of a run that must not differ: its files, and its summary without wall-clock measurements."""
    names = ("rounds/*.jsonl", "models/*.safetensors", "snapshots/*.safetensors", "*.jsonl", "clients.json")
    there = [file for name in names for file in path.glob(name) if not file.name.startswith(".")]
    found = {str(file.relative_to(path)): file.read_bytes() for file in there if file.name != "log.jsonl"}
    summary = json.loads((path / "summary.json").read_bytes())
    kept = {key: value for key, value in summary.items() if key not in MEASURED}
    return found | {"summary.json": json.dumps(kept).encode()}


def differing(one: Path, other: Path) -> list[str]:
    """Names of the results in which two finished runs differ by any byte."""
    first, second = outcome(one), outcome(other)
    assert len(first) > 3, "there is something to compare"
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def one_sentence(error: str) -> str:
    """The sentence of a failed command: its last line, and no traceback before it."""
    assert "Traceback" not in error, error
    last = error.strip().splitlines()[-1]
    assert last.startswith("cpfl: "), error
    return last
