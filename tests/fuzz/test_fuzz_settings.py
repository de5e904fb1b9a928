"""Any settings are refused in one short sentence, or they run."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import small_runs
from forked import Forked
from hypothesis import strategies as st
from strategies import settings, words

from cpfl.errors import CpflError
from cpfl.settings import experiment_file

TIMES = int(os.environ.get("FUZZ", "1"))
LONGEST = 500  # characters of a sentence
MEMORY, CPU_SECONDS = 4 << 30, 60  # of a run that should take one second
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


@hypothesis.settings(FUZZ, max_examples=5 * TIMES)
@hypothesis.given(drawn=settings(running=True), engine=st.sampled_from(["reference", "workers", "lanes"]))
def test_accepted_settings_run(
    drawn: dict[str, Any], engine: str, tmp_path_factory: pytest.TempPathFactory, tally: Counter[str]
) -> None:
    """In a process with limits: two rounds and a distillation end, or one sentence says why not."""
    small = small_runs.SETTINGS | {"max_rounds": 2, "distillation.epochs": 1}
    chosen = {key: value for key, value in small.items() if key not in drawn} | drawn
    try:
        experiment_file.load("digits", settings=chosen)
    except CpflError:
        hypothesis.reject()
    tally["runs"] += 1
    out = tmp_path_factory.mktemp("fuzz") / "run"
    command = ["run", "digits", *words(chosen), "--engine", engine, "--device", "cpu", "--workers", "1", "--out", out]
    limits = [str(MEMORY), str(CPU_SECONDS)]
    process = Forked("limited:main", ["cpfl", *limits, *map(str, command)], small_runs.environment())
    _, error = process.communicate()
    assert process.returncode in (0, 2), (process.returncode, error[-3000:])
    if process.returncode == 2:
        tally["runs that ended in a sentence"] += 1
        is_sentence(small_runs.one_sentence(error))
    shutil.rmtree(Path(out).parent)
