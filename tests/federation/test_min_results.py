"""A server optimizer gets as many results as it needs, or the run does not begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command
from tests.federation.cohorts import close, session

import cpfl
from cpfl.devices.availability import AvailabilitySchedule
from cpfl.errors import CpflError, SettingError
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.federation.selection.base import Selection

SAMPLES, SPEEDS = [3] * 9, [1000.0 + 100 * k for k in range(9)]
KRUM = {"federation__server": "krum", "federation__server_args": {"num_byzantine": 2}}
LOSING: dict[str, dict[str, Any]] = {
    "crashes": {"devices__crash_rate": 0.2},
    "deadline": {"federation__deadline": 17.0},
    "partial work": {"federation__deadline": 17.0, "federation__straggler_policy": "partial"},
}


@pytest.mark.parametrize("case", LOSING)
def test_where_clients_are_lost_a_minimum_is_needed(case: str) -> None:
    settings = KRUM | LOSING[case]
    with pytest.raises(SettingError, match=r"federation\.min_results = 1 .* cohort 0 .* 7 results .*'krum'.* 7 to 9"):
        session(SAMPLES, SPEEDS, **settings)
    with pytest.raises(SettingError, match=r"federation\.min_results = 6 .* 7 to 9"):
        session(SAMPLES, SPEEDS, **settings, federation__min_results=6)
    one = session(SAMPLES, SPEEDS, **settings, federation__min_results=7)
    found = [len(close(one, SAMPLES).record.participants) for _ in range(20)]
    assert min(found) >= 7
    assert case == "partial work" or min(found) < 9  # somebody was lost


def test_absence_loses_clients_too() -> None:
    weeks = [AvailabilitySchedule((0.0,), (500.0 + k,), 1000.0) for k in range(9)]
    with pytest.raises(SettingError, match=r"federation\.min_results = 1 .* 7 to 9"):
        session(SAMPLES, SPEEDS, weeks, **KRUM)
    assert session(SAMPLES, SPEEDS, weeks, **KRUM, federation__min_results=7)


def test_nothing_is_asked_where_nobody_is_lost_or_nobody_is_bad() -> None:
    assert session(SAMPLES, SPEEDS, **KRUM)
    assert session(SAMPLES, SPEEDS, federation__server="krum", **LOSING["crashes"])
    assert session(SAMPLES, SPEEDS, federation__server="median", **LOSING["crashes"])
    with pytest.raises(SettingError, match=r"federation\.min_results = 1 .* 3 results"):
        session(
            SAMPLES, SPEEDS, federation__server="krum", federation__server_args={"num_selected": 3}, **LOSING["crashes"]
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["federation.server_args.num_byzantine=2"],
            ("num_byzantine = 2", "7 participants", "cohort 1 has 6", "0 to 1"),
        ),
        (
            ["federation.server_args.num_byzantine=1", "federation.server_args.num_selected=6"],
            ("num_selected = 6", "num_byzantine = 1", "cohort 1 has 6", "1 to 5"),
        ),
        (
            ["federation.participation=0.5", "federation.server_args.num_byzantine=1"],
            ("5 participants", "cohort 1 has 3", "0 to 0"),
        ),
    ],
)
def test_an_assignment_with_a_small_cohort(
    settings: list[str], words: tuple[str, ...], cpfl_command: Command, tmp_path: Path
) -> None:
    """Forty clients in three cohorts would do; a table makes one of them smaller."""
    rows = [f"{client},{1 if client < 6 else 2 * (client % 2)}" for client in range(40)]
    (tmp_path / "plan.csv").write_text("\n".join(["client,cohort", *rows]))
    plan = ["cohorts=3", "assignment.rule=csv", "assignment.rule_args.file=plan.csv", "federation.server=krum"]
    flat = [word for pair in plan + settings for word in ("--set", pair)]
    answer = cpfl_command("run", "digits", *flat, "--out", "run")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    for word in words:
        assert word in answer.err
    assert not (tmp_path / "run").exists()


class Pairs(Selection):
    """Two at a time, however many are wanted."""

    def select(self, available: Any, count: int, round: int, rng: np.random.Generator, clock: float) -> list[int]:
        return [available[0], available[-1]]


@pytest.mark.parametrize("engine", ["reference", "workers", "lanes"])
def test_a_selection_that_takes_too_few(engine: str, tmp_path: Path) -> None:
    """What no setting says, the optimizer itself says, on every engine."""
    settings = {
        "cohorts": 1, "federation.server": "krum", "federation.server_args.num_byzantine": 1, "max_rounds": 2,
        "federation.selection": f"{__name__}:Pairs",
    }  # fmt: skip
    with pytest.raises(CpflError, match=r"num_byzantine = 1.* needs 5 results, and a round returned 2"):
        cpfl.run("digits", out=tmp_path / "run", engine=engine, device="cpu", settings=settings)


class Quorate(ServerOptimizer):
    """An own optimizer that needs five results."""

    min_results = 5


def test_an_own_optimizer_says_what_it_needs() -> None:
    name = f"{__name__}:Quorate"
    assert session(SAMPLES, SPEEDS, federation__server=name)
    with pytest.raises(SettingError, match=r"Quorate' needs 5 participants in every round, and cohort 0 has 4"):
        session(SAMPLES, SPEEDS, federation__server=name, federation__participants=4)
    with pytest.raises(SettingError, match=r"federation\.min_results = 4 .* 5 to 9"):
        session(SAMPLES, SPEEDS, federation__server=name, federation__min_results=4, devices__crash_rate=0.1)
    with pytest.raises(SettingError, match="needs 5 participants"):
        session(SAMPLES, SPEEDS, federation__server=name, federation__buffer_size=4)
    assert session(SAMPLES, SPEEDS, federation__server=name, federation__buffer_size=5, devices__crash_rate=0.1)
