"""Settings of rounds that are wrong or contradict each other: one sentence, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Command

REFUSED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("federation.selection=randm",): ("federation.selection = 'randm'", "did you mean random?", "power-of-choice"),
    ("federation.selection=os:getcwd",): ("os:getcwd", "no subclass of cpfl.Selection"),
    ("federation.selection=nowhere:Rule",): ("nowhere:Rule", "cannot be loaded"),
    ("federation.selection=oort", "federation.participants=2", "federation.selection_args.alfa=2"): ("oort", "alfa"),
    ("federation.selection=oort", "federation.selection_args=3"): ("federation.selection_args = 3",),
    ("federation.selection=refl",): ("refl", "devices.availability"),
    ("federation.selection=oort",): ("oort", "federation.participation", "federation.participants"),
    ("federation.selection=all", "federation.participation=0.5"): ("all", "participation"),
    ("federation.over_selection=-1",): ("federation.over_selection = -1", "0"),
    ("federation.over_selection=0.5",): ("over_selection", "participation"),
    ("federation.deadline=soon",): ("federation.deadline = 'soon'", "number"),
    ("federation.straggler_policy=partial",): ("partial", "deadline"),
    ("federation.straggler_policy=stale",): ("stale", "deadline or over_selection"),
    ("federation.straggler_policy=never",): ("federation.straggler_policy = 'never'", "'drop'", "'partial'", "'stale'"),
    ("federation.min_results=0",): ("federation.min_results = 0", "1"),
    ("federation.min_results=11", "devices.crash_rate=0.1"): ("federation.min_results = 11", "1 to 10"),
    ("federation.min_results=2",): ("federation.min_results has no effect here", "devices.crash_rate"),
    ("federation.warmup_rounds=1",): ("warmup_rounds = 1 has no effect", "2 or more, or 0"),
    ("federation.concurrency=5",): ("concurrency", "buffer"),
    ("federation.buffer_size=3", "federation.deadline=10"): ("buffer", "deadline"),
    ("federation.buffer_size=3", "federation.selection=oort"): ("buffer", "selection"),
    ("federation.buffer_size=3", "stopping.rule=joint"): ("federation.buffer_size", "joint"),
    ("federation.buffer_size=11",): ("federation.buffer_size = 11", "10 clients"),
    ("devices.crash_rate=1",): ("devices.crash_rate = 1", "less than 1"),
    ("devices.availability=sometimes",): ("devices.availability = 'sometimes'", "fedscale, synthetic or always"),
    ("devices.availability=fedscale",): ("devices.availability = 'fedscale'", "client_behave_trace"),
    ("devices.online_hours=0",): ("devices.online_hours = 0", "greater than or equal to 0.01"),
}


@pytest.mark.parametrize("settings", REFUSED, ids=" ".join)
def test_refused(cpfl_command: Command, tmp_path: Path, settings: tuple[str, ...]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    answer = cpfl_command("run", "digits", "--set", "max_rounds=2", *words, "--out", "run")
    assert answer.code == 2, answer
    assert answer.err.startswith("cpfl: ")
    assert len(answer.err.splitlines()) == 1, answer.err
    for word in REFUSED[settings]:
        assert word in answer.err, f"{word!r} is not in: {answer.err}"
    assert not (tmp_path / "run").exists()
