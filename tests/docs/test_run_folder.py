"""The reference describes every field of every file that a run writes, every variable and exit code, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import call
from tests.pages import ROOT, find

# Fields of engines and fleets that no run here has; they stand in the source.
ELSEWHERE = {
    "run.json": {"fleet", "sites"},
    "rounds/cohort-….jsonl": {"excluded"},
    "log.jsonl": {"workers_device", "worker", "node", "pid", "why", "run_again[].piece", "reason"},
    "workers.json": {"workers", "moved", "dashboard"}
    | {f"workers[].{key}" for key in ("worker", "node", "pid", "device", "cohorts", "load", "samples_per_second")},
}
QUICK = ("--set", "cohorts=2", "--set", "distillation.epochs=1")
LOSSES = (  # clients crash, rounds are repeated, results come late; with the stopping rule joint
    "max_rounds=8", "stopping.rule=joint", "stopping.eval_interval=2", "stopping.eval_window=4", "snapshots=5 rounds",
    "devices.crash_rate=0.3", "federation.participation=0.3", "federation.over_selection=0.3", "federation.deadline=20",
    "federation.straggler_policy=stale", "federation.min_results=5",
)  # fmt: skip
MEETING = ("max_rounds=4", "meetings.rule=outer", "meetings.interval=2 rounds")


def described() -> dict[str, set[str]]:
    """The fields on the page, by the file that they are in."""
    sections = re.split(r"^## (.+)\n", find("run-folder.md").read_text(), flags=re.M)[1:]
    cells = {
        file: re.findall(r"^\| (`.+?`) \|", text, re.M)
        for file, text in zip(sections[::2], sections[1::2], strict=True)
    }
    return {file: {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)} for file, rows in cells.items()}


def fields(tree: dict[str, Any], names: set[str], above: str = "") -> Iterator[str]:
    """The fields of an object. One is entered if the page describes what is in it."""
    for key, value in tree.items():
        name = f"{above}{key}"
        yield name
        if isinstance(value, list) and any(known.startswith(f"{name}[].") for known in names):
            for entry in value:
                yield from fields(entry, names, f"{name}[].")
        elif isinstance(value, dict) and any(known.startswith(f"{name}.") for known in names):
            yield from fields(value, names, f"{name}.")


def objects(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    return [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that write all kinds of files and fields."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in (("losses", LOSSES), ("meeting", MEETING)):
        words = [word for setting in settings for word in ("--set", setting)]
        call("run", "digits", *QUICK, *words, "--out", name, cwd=folder).good()
    call("distill", "meeting", "--weights", "uniform", "--name", "again", cwd=folder).good()
    call("export", "meeting", cwd=folder).good()
    call("sweep", "digits", *QUICK, "--set", "max_rounds=1", "--seeds", "90", "--out", "sweep", cwd=folder).good()
    tune = ("--hours", "0.05", "--trials", "4", "--seeds", "1", "--set", "data.train_limit=400", "--set", "clients=10")
    call("tune", "digits", *tune, "--set", "distillation.epochs=1", "--out", "tune", cwd=folder).good()
    (folder / "losses" / "summary.json").unlink()  # the run is not finished, and has lost its last checkpoints
    for old in (folder / "losses" / "checkpoints").glob("cohort-0000-*"):
        old.unlink()
    call("resume", "losses", cwd=folder).good()
    return folder


def test_every_field_of_a_run_is_described_and_no_other(runs: Path) -> None:
    known = described()
    found: dict[str, set[str]] = {file: set() for file in known}
    for path in runs.rglob("*.json*"):
        (file,) = (file for file in known if fnmatch(path.name, Path(file).name.replace("…", "*")))
        found[file] |= {name for tree in objects(path) for name in fields(tree, known[file])}
    assert {file: names - known[file] for file, names in found.items() if names - known[file]} == {}
    without = {file: names - found[file] - ELSEWHERE.get(file, set()) for file, names in known.items()}
    assert {file: names for file, names in without.items() if names} == {}


def test_fields_of_other_engines_are_in_the_source() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in {name.rpartition(".")[2] for names in ELSEWHERE.values() for name in names}:
        assert re.search(rf'"{name}"|\b{name}[=:]', source), name


def test_every_file_of_a_run_is_listed(runs: Path) -> None:
    listed = re.findall(r"^\| `([^`]+)` \|", find("run-folder.md").read_text().partition("\n## ")[0], re.M)
    tops = {re.split(r"[/.]", name)[0] for name in listed}
    for run in (runs / "losses", runs / "meeting"):
        assert {path.name.partition(".")[0] for path in run.iterdir()} - {"export"} <= tops


def test_every_variable_is_described() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = find("environment.md").read_text().partition("## Variables that cpfl reads")[2].partition("\n## ")[0]
    assert set(re.findall(r"\bCPFL_[A-Z_]+\b", source)) == set(re.findall(r"^\| `(CPFL_[A-Z_]+)`", page, re.M))


def test_every_exit_code_is_described() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "cpfl" / "cli").rglob("*.py"))
    found = re.findall(r"typer\.Exit\((\d+)\)|\b(?:INTERRUPTED|CLOSED) = (\d+)|_end\(.*, (\d+)\)", source)
    page = find("environment.md").read_text().partition("## Variables")[0]
    described = set(re.findall(r"^\| (\d+) \|", page, re.M))
    assert {code for codes in found for code in codes if code} | {"0"} == described
