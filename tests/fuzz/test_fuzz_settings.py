"""Any settings are refused in one short sentence, or they run."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import limited
import pytest
import small_runs
from hypothesis import strategies as st
from strategies import settings, words

import cpfl
from cpfl.errors import CpflError
from cpfl.settings import experiment_file

TIMES = int(os.environ.get("FUZZ", "1"))
LONGEST = 500  # characters of a sentence
MEMORY, CPU_SECONDS = 4 << 30, 60  # of a run that should take one second
SMALL = small_runs.SETTINGS | {"max_rounds": 2, "distillation.epochs": 1}
IDLE = ("stopping.patience", "distillation.batch_size", "model.args.hidden", "snapshots")
DIVERGED = {"diverged"}
PLANNED = ("cohort", "round", "clock", "participants", "samples", "bytes", "cpu_seconds")  # before a round is trained
ASSIGNMENTS = st.from_regex(r"[a-z_.]{1,12}=[\[{\"'0-9.:eE+-]{0,12}")
FUZZ = hypothesis.settings.get_profile("fuzz")


def is_sentence(text: str) -> None:
    """One short line."""
    assert text.strip()
    assert len(text.splitlines()) == 1, text[:2000]
    assert len(text) < LONGEST, text


@hypothesis.settings(FUZZ, max_examples=100 * TIMES)
@hypothesis.given(drawn=settings())
def test_refused_in_a_sentence_or_stored_unchanged(
    drawn: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, tally: Counter[str]
) -> None:
    tally["settings"] += 1
    try:
        chosen = experiment_file.load("digits", settings=drawn)
    except CpflError as refused:
        is_sentence(str(refused))
        tally["refused"] += 1
        return
    file = tmp_path_factory.getbasetemp() / "experiment.toml"
    file.write_text(experiment_file.to_toml(chosen), encoding="utf-8")
    assert experiment_file.read_stored(file) == chosen


@hypothesis.settings(FUZZ, max_examples=100 * TIMES)
@hypothesis.given(given=st.lists(st.text(max_size=30) | ASSIGNMENTS, max_size=3))
def test_any_words_of_a_command_line(given: list[str], tally: Counter[str]) -> None:
    tally["settings"] += 1
    try:
        experiment_file.load("digits", given)
    except CpflError as refused:
        is_sentence(str(refused))
        tally["refused"] += 1


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lanes import much of torch when they are first used: here, and not in every fork."""
    cpfl.run("digits", engine="lanes", device="cpu", out=tmp_path_factory.mktemp("warm") / "run", settings=SMALL)


@hypothesis.settings(FUZZ, max_examples=8 * TIMES)
@hypothesis.given(
    drawn=settings(running=True), engine=st.sampled_from(["reference 0", "workers 1", "workers 2", "lanes 0"])
)
def test_accepted_settings_run(
    warm: None, drawn: dict[str, Any], engine: str, tmp_path_factory: pytest.TempPathFactory, tally: Counter[str]
) -> None:
    """In a process with limits: two rounds and a distillation end, or one sentence says why not. Engines agree."""
    chosen = {key: value for key, value in SMALL.items() if key not in drawn} | drawn
    for idle in IDLE:  # a setting of the small runs may have no effect with what was drawn
        if idle not in drawn:
            chosen.pop(idle, None)
    tally["settings"] += 1
    try:
        experiment_file.load("digits", settings=chosen)
    except CpflError as refused:
        is_sentence(str(refused))
        tally["refused"] += 1
        hypothesis.reject()
    folder = tmp_path_factory.mktemp("fuzz")
    first = run(chosen, "reference 0", folder, tally)
    if engine != "reference 0":
        second = run(chosen, engine, folder, tally)
        if not (DIVERGED & {first, second}):
            assert first == second, "one engine says something else"
        if not first and not second:
            compare(folder / "reference 0", folder / engine)
    shutil.rmtree(folder)


def run(chosen: dict[str, Any], engine: str, folder: Path, tally: Counter[str]) -> str:
    """The sentence in which a run ended; empty: it finished."""
    tally["runs"] += 1
    name, workers = engine.split()
    options = ["--engine", name, "--device", "cpu", "--workers", workers, "--out", folder / engine]
    code, error = limited.run(["run", "digits", *words(chosen), *options], MEMORY, CPU_SECONDS)
    assert code in (0, 2), (code, error[-3000:])
    if not code:
        return ""
    tally["runs that ended in a sentence"] += 1
    sentence = small_runs.one_sentence(error)
    is_sentence(sentence)
    return "diverged" if any(word in sentence for word in ("became", "no longer a number")) else sentence


def compare(one: Path, other: Path) -> None:
    """Two engines planned the same rounds, and their losses agree up to rounding."""
    records = [cpfl.load_run(path).rounds for path in (one, other)]
    assert len(records[0]) == len(records[1])
    for mine, theirs in zip(*records, strict=True):
        for key in PLANNED:
            assert mine[key] == theirs[key], (key, mine, theirs)
        if mine["loss"] < 10:  # nothing explodes
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.05, abs=1e-3), (mine, theirs)
