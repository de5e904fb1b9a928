"""A stopping rule of the user's own: refused in one sentence, run to its end, and continued from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cpfl
from cpfl.errors import SettingError


class BelowTarget(cpfl.StoppingRule):
    """Stop when the validation loss was below a target in several rounds."""

    def __init__(self, stopping: Any, target: float, times: int = 2) -> None:
        super().__init__(stopping)
        self.target, self.times, self.rounds = target, times, list[int]()

    def update(self, round: int, loss: float | None, clock: float, cpu_seconds: float) -> Any:
        if loss is not None and loss < self.target:
            self.rounds.append(round)
        decision = super().update(round, loss, clock, cpu_seconds)
        return decision._replace(stop="target" if len(self.rounds) >= self.times else "")

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.rounds = state["rounds"]


SETTINGS: dict[str, Any] = {
    "clients": 6, "cohorts": 2, "max_rounds": 40, "checkpoint_seconds": 0, "data.train_limit": 300,
    "data.public_limit": 60, "model.args.hidden": 8, "federation.lr": 0.05, "distillation.epochs": 1,
    "stopping.rule": f"{__name__}:BelowTarget", "stopping.rule_args": {"target": 2.29, "times": 3},
}  # fmt: skip


class Interrupt(cpfl.Callback):
    """Ends the process's work in the middle of training."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, *_: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def run(out: Path, **more: Any) -> Any:
    return cpfl.run("digits", settings=SETTINGS, out=out, engine="reference", device="cpu", **more)


def test_a_run_ends_by_it_and_continues_after_an_interruption(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    ends = {line["cohort"]: line for line in whole.rounds if line["stop"]}
    assert [line["stop"] for line in ends.values()] == ["target"] * 2
    for cohort in ends:
        lines = [line for line in whole.rounds if line["cohort"] == cohort]
        assert sum(line["validation"] < 2.29 for line in lines) == 3
        assert lines[-1]["validation"] < 2.29
    total = len(whole.rounds)
    assert total > 10
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", callback=Interrupt(total - 1))  # in some of its three rounds below the target
    again = cpfl.resume(tmp_path / "broken", device="cpu")
    key = ("cohort", "round")
    assert sorted(again.rounds, key=lambda line: [line[k] for k in key]) == sorted(
        whole.rounds, key=lambda line: [line[k] for k in key]
    )
    for model in (tmp_path / "whole" / "models").glob("*.safetensors"):
        assert (tmp_path / "broken" / "models" / model.name).read_bytes() == model.read_bytes()


def test_limits_apply_with_it(tmp_path: Path) -> None:
    limited = cpfl.run(
        "digits", settings=SETTINGS | {"max_rounds": 2}, out=tmp_path / "run", engine="reference", device="cpu"
    )
    assert {line["stop"] for line in limited.rounds} == {"", "max rounds"}


@pytest.mark.parametrize(
    ("rule", "args", "words"),
    [
        ("plateu", {}, "rule = 'plateu' is unknown; did you mean plateau. Known: plateau, rounds, budget, joint, or"),
        ("os:getcwd", {}, "stopping.rule = 'os:getcwd' is no subclass of cpfl.StoppingRule"),
        (f"{__name__}:BelowTarget", {}, "needs stopping.rule_args.target; known: target, times"),
        (f"{__name__}:BelowTarget", {"target": "low"}, "stopping.rule_args.target = 'low' is not allowed: a number"),
        (f"{__name__}:BelowTarget", {"target": 1, "time": 2}, "stopping.rule_args.time; did you mean times?"),
        ("plateau", {"patience": 3}, "'plateau' does not take stopping.rule_args.patience; it takes no arguments"),
    ],
)
def test_refused_before_anything_is_written(rule: str, args: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = SETTINGS | {"stopping.rule": rule, "stopping.rule_args": args}
    with pytest.raises(SettingError) as error:
        cpfl.run("digits", settings=settings, out=tmp_path / "run", engine="reference", device="cpu")
    assert words.replace("plateau. Known", "plateau? Known") in str(error.value)
    assert not (tmp_path / "run").exists()
