"""Whole runs with meetings: traffic and waits by hand, later distillations, kills, damage, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_runs
import torch
from small_runs import Unbroken

import cpfl
from cpfl import api
from cpfl.data.given import Given
from cpfl.errors import CpflError, RunFolderError
from cpfl.meetings.rules import Contribution, Mean, MeetingRule
from cpfl.models import State
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.teachers import select_teachers
from cpfl.settings import Distillation
from cpfl.task.task import build_task

if TYPE_CHECKING:
    from conftest import Command

MEET = {
    "max_rounds": 12,
    "stopping.rule": "budget",
    "stopping.max_hours": 1,
    "meetings.rule": "mean",
    "meetings.interval": "30s",
    "snapshots": "5s",
    "distillation.epochs": 1,
}
ALONE = MEET | {"meetings.rule": "asynchronous"}
SPARSE = {"checkpoint_seconds": 1000}  # checkpoints at stops only: a resume repeats many phases


class First(MeetingRule):
    """A user's: the model of the first cohort."""

    def merge(self, contributions: Any, start: State, number: int) -> State:
        return dict(contributions[0].model)


def rounds(path: Path) -> list[list[dict[str, Any]]]:
    folder = RunFolder.open(path)
    return [records.read(folder.rounds(cohort)) for cohort in range(len(folder.about()["cohorts"]))]


def meetings(path: Path) -> list[dict[str, Any]]:
    return records.read(path / "meetings.jsonl")


def test_waits_and_traffic_by_hand(unbroken: Unbroken) -> None:
    """Nobody begins a round that would end after the next multiple of 30 s; all begin anew there. A cohort that has
    stopped sends its last model once more."""
    path = unbroken(**MEET)
    size, held, summary = RunFolder.open(path).about()["model_bytes"], meetings(path), _summary(path)
    assert len(held) > 2
    here, before = {0, 1, 2}, 0.0
    for number, one in enumerate(held, 1):
        waiting = set(one["cohorts"])
        assert (one["meeting"], one["clock"]) == (number, 30 * number)
        assert one["bytes"] == size * (2 * len(waiting) + len(here - waiting))
        for cohort, last in zip(one["cohorts"], one["rounds"], strict=True):
            own = [r for r in rounds(path)[cohort] if before < r["clock"] <= one["clock"]]
            assert own[-1]["round"] == last
            assert own[0]["clock"] == pytest.approx(before + own[0]["seconds"])
            following = rounds(path)[cohort][last]
            assert own[-1]["clock"] + following["seconds"] > one["clock"]
        here, before = waiting, one["clock"]
    assert len(held[-1]["cohorts"]) < 3
    every = [r for cohort in rounds(path) for r in cohort]
    sent = sum(r["bytes"] for r in every) + sum(one["bytes"] for one in held) + 3 * size
    assert summary["comm_gb"] == pytest.approx(sent / 1e9)


def _summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def test_the_mean_by_hand(unbroken: Unbroken) -> None:
    """Of what all cohorts had, from their snapshots; the weights are the samples trained on since the last meeting."""
    chosen = MEET | {"meetings.interval": "3 rounds", "snapshots": "3 rounds", "meetings.rule_args.weights": "work"}
    path = unbroken(**chosen)
    folder, before = RunFolder.open(path), [0, 0, 0]
    assert len(meetings(path)) == 3
    for one in meetings(path):
        states = [load_state(folder.snapshot(cohort, 3 * one["meeting"])) for cohort in range(3)]
        work = [now - then for now, then in zip(one["samples"], before, strict=True)]
        assert work == [
            sum(r["samples"] for r in own[3 * one["meeting"] - 3 : 3 * one["meeting"]]) for own in rounds(path)
        ]
        for name, value in load_state(folder.meeting_model(one["meeting"])).items():
            mean = sum(w * state[name].double() for w, state in zip(work, states, strict=True)) / sum(work)
            torch.testing.assert_close(value, mean.float())
        before = one["samples"]


def test_between_two_meetings_a_cohort_has_the_merged_model(unbroken: Unbroken) -> None:
    """At 30.1 s, before anybody has closed a round since; at 29.9 s all have their own."""
    path = unbroken(**(MEET | {"snapshots": "1 rounds"}))
    folder = RunFolder.open(path)
    late = select_teachers(folder, Distillation(at="30.1s"))
    assert late.sources == [folder.meeting_model(1)] * 3
    sent = sum(r["bytes"] for own in rounds(path) for r in own if r["clock"] <= 30.1)
    assert late.costs["comm_gb"] == pytest.approx((sent + 9 * folder.about()["model_bytes"]) / 1e9)
    early = select_teachers(folder, Distillation(at="29.9s"))
    for cohort, source in enumerate(early.sources):
        assert source == folder.snapshot(cohort, meetings(path)[0]["rounds"][cohort])
    assert api.distill(path, at="30.1s", name="merged", device="cpu")["teacher_accuracy_std"] == 0


def test_a_limit_that_the_wait_has_used_up(unbroken: Unbroken) -> None:
    """A cohort's next round would have fitted before it waited for the others, and does not fit after 30 s: the merged
    model is its teacher."""
    free = rounds(unbroken(**MEET))
    seconds = [max(r["seconds"] for r in own) for own in free]
    quick = seconds.index(min(seconds))
    limit = 30 + 0.9 * seconds[quick]
    path = unbroken(**(MEET | {"stopping.max_hours": limit / 3600}))
    folder, one = RunFolder.open(path), _summary(path)["by_cohort"][quick]
    assert quick in meetings(path)[0]["cohorts"]
    assert (one["stop"], one["hours"]) == ("hours", pytest.approx(30 / 3600))
    merged = load_state(folder.meeting_model(1))
    for name, value in load_state(folder.teacher(quick)).items():
        assert torch.equal(value, merged[name])


def test_a_moving_average_begins_anew(unbroken: Unbroken) -> None:
    """After a meeting the merged model is the first of the average, the next one the second."""
    chosen = {"meetings.interval": "2 rounds", "stopping.keep": "ema", "snapshots": "1 rounds", "max_rounds": 3}
    path = unbroken(**(MEET | chosen))
    newest = unbroken(**(MEET | chosen | {"stopping.keep": "last"}))
    folder = RunFolder.open(path)
    merged = load_state(folder.meeting_model(1))
    for cohort in range(3):
        last = load_state(RunFolder.open(newest).teacher(cohort))
        for name, value in load_state(folder.teacher(cohort)).items():
            torch.testing.assert_close(value, (merged[name] + last[name]) / 2)


def test_all_wait_for_a_round_that_is_longer(tmp_path: Path, cpfl_command: Command) -> None:
    words = small_runs.run_words(tmp_path / "run", MEET | {"meetings.interval": "2s", "max_rounds": 4})
    out = cpfl_command(*words).good().out
    assert out.count("which is longer than meetings.interval = 2s") == 1
    assert "meeting 1 at 0.01 virtual h" in out
    for one in meetings(tmp_path / "run"):
        ends = [r["clock"] for cohort in one["cohorts"] for r in rounds(tmp_path / "run")[cohort][: one["meeting"]]]
        assert one["clock"] >= max(ends)


def test_a_rule_of_ones_own(unbroken: Unbroken) -> None:
    path = unbroken(
        **(
            MEET
            | {"meetings.rule": "test_meeting_runs:First", "meetings.interval": "4 rounds", "snapshots": "4 rounds"}
        )
    )
    folder = RunFolder.open(path)
    for name, value in load_state(folder.meeting_model(1)).items():
        assert torch.equal(value, load_state(folder.snapshot(0, 4))[name])


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_outer_optimizer_by_hand(nesterov: bool, unbroken: Unbroken) -> None:
    """DiLoCo's algorithm 1 on what all cohorts had at each meeting; torch's SGD takes the same steps."""
    chosen = {"meetings.rule": "outer", "meetings.interval": "3 rounds", "snapshots": "3 rounds"}
    path = unbroken(**(MEET | chosen | {"meetings.rule_args.nesterov": nesterov}))
    folder = RunFolder.open(path)
    model = {name: torch.nn.Parameter(value.clone()) for name, value in load_state(folder.model("start")).items()}
    sgd = torch.optim.SGD(model.values(), lr=0.7, momentum=0.9, nesterov=nesterov)
    assert len(meetings(path)) == 3
    for one in meetings(path):
        states = [load_state(folder.snapshot(cohort, 3 * one["meeting"])) for cohort in range(3)]
        for name, value in model.items():
            value.grad = value.detach() - torch.stack([state[name] for state in states]).mean(0)
        sgd.step()
        for name, value in load_state(folder.meeting_model(one["meeting"])).items():
            torch.testing.assert_close(value, model[name].detach(), rtol=1e-5, atol=1e-6)


def test_a_student_is_the_one_that_a_distillation_makes(unbroken: Unbroken) -> None:
    """With the models of the first meeting as teachers: those of a run that ends there."""
    chosen = {"meetings.rule": "distill", "meetings.interval": "3 rounds", "stopping.keep": "last"}
    ended = unbroken(**{key: value for key, value in (MEET | chosen | {"max_rounds": 3}).items() if "meet" not in key})
    student = load_state(ended / "models" / "global.safetensors")
    for name, value in load_state(RunFolder.open(unbroken(**(MEET | chosen))).meeting_model(1)).items():
        torch.testing.assert_close(value, student[name])


def test_cohorts_that_are_drawn_anew(unbroken: Unbroken) -> None:
    """Who trains in a round is in the cohort's clients of that time; label counts at the end are theirs."""
    path = unbroken(**(MEET | {"meetings.redraw": True, "meetings.interval": "3 rounds", "stopping.keep": "last"}))
    folder, held = RunFolder.open(path), meetings(path)
    groups = [set(own) for own in folder.about()["cohorts"]]
    assert len(held) == 3
    for number in range(4):
        for cohort, own in enumerate(rounds(path)):
            trained = {client for r in own[3 * number : 3 * number + 3] for client in r["participants"]}
            assert trained == groups[cohort]
        if number < 3:
            groups = [set(own) for own in held[number]["clients"]]
            assert sorted(client for own in groups for client in own) == list(range(6))
    late, early = (select_teachers(folder, Distillation(at=at)) for at in ("1h", "1s"))
    assert (late.clients, early.clients) == (held[-1]["clients"], None)
    task = build_task(folder.experiment(), [], Given())
    counts = task.regrouped(late.clients).label_counts
    assert counts.tolist() == [task.data.counts[own].sum(axis=0).tolist() for own in held[-1]["clients"]]
    of_client = {one["client"]: one["cohort"] for one in json.loads((path / "clients.json").read_text())["clients"]}
    assert of_client == {client: cohort for cohort, own in enumerate(held[-1]["clients"]) for client in own}


def test_nobody_waits_for_the_global_model(unbroken: Unbroken) -> None:
    """A cohort comes at the end of the first round after its interval, and begins the next one at once."""
    path = unbroken(**(ALONE | {"assignment.rule": "speed"}))
    held, size, folder = meetings(path), RunFolder.open(path).about()["model_bytes"], RunFolder.open(path)
    assert [one["clock"] for one in held] == sorted(one["clock"] for one in held)
    before = dict.fromkeys(range(3), 0.0)
    for one in held:
        (cohort,), (last,) = one["cohorts"], one["rounds"]
        own = rounds(path)[cohort]
        assert one["clock"] == own[last - 1]["clock"] >= before[cohort] + 30
        assert own[last - 1]["clock"] - own[last - 1]["seconds"] < before[cohort] + 30
        assert own[last]["clock"] == pytest.approx(one["clock"] + own[last]["seconds"])
        assert one["bytes"] == 2 * size
        before[cohort] = one["clock"]
    late = select_teachers(folder, Distillation(at=f"{held[0]['clock'] + 1e-3:.4f}s"))
    assert late.sources[held[0]["cohorts"][0]] == folder.meeting_model(1)


def test_weights() -> None:
    """Counters are the first model's; the mean of equal numbers is that number."""
    models = [{"x": torch.tensor([float(k)]), "count": torch.tensor(k)} for k in (1, 5)]
    facts = zip(models, (3, 1), (0, 7), strict=True)
    given = [Contribution(k, model, samples, work) for k, (model, samples, work) in enumerate(facts)]
    found = {}
    for weights in ("equal", "samples", "work"):
        rule = Mean.__new__(Mean)
        rule.weights = weights
        found[weights] = rule.merge(given, {}, 1)["x"].item()
        assert rule.merge(given, {}, 1)["count"] == 1
    assert found == {"equal": 3.0, "samples": 2.0, "work": 5.0}


# What is refused, in one sentence and before anything is written.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"meetings.rule": "mean"}, 'needs interval, such as "2.5h"'),
        ({"meetings.rule": "mean", "meetings.interval": "often"}, "write 5h, 30m or 50 rounds"),
        ({"meetings.interval": "1h"}, "meetings.interval has no effect here: it needs meetings.rule != none"),
        ({"meetings.rule": "mena"}, "did you mean mean?"),
        (MEET | {"meetings.rule_args.weights": "some"}, "equal, samples or work"),
        (MEET | {"meetings.rule": "outer", "meetings.rule_args.momentum": 1.0}, "0 or more, below 1"),
        (MEET | {"meetings.rule": "outer", "meetings.rule_args.momentum": 0.0}, "momentum must be above 0"),
        (MEET | {"meetings.rule": "distill", "meetings.rule_args.epochs": -1}, "0 or more"),
        (
            MEET | {"meetings.rule": "distill", "data.public": "none", "meetings.final": "merge"},
            'meetings.rule = "distill" needs public samples',
        ),
        (MEET | {"meetings.rule_args.wait": 1}, "does not take meetings.rule_args.wait"),
        (MEET | {"cohorts": 1}, "it needs cohorts != 1"),
        (MEET | {"meetings.server_state": "reset"}, "meetings.server_state has no effect here"),
        (MEET | {"model.by_cohort": {"1": "mlp"}}, "needs one model for all cohorts"),
        (
            MEET | {"meetings.redraw": True, "federation.client": "scaffold", "federation.momentum": 0},
            "clients that keep",
        ),
        (MEET | {"meetings.redraw": True, "federation.buffer_size": 2}, "rounds without work left over"),
        (MEET | {"meetings.redraw": True, "meetings.rule": "distill"}, "meet together and are merged"),
        (MEET | {"meetings.redraw": True, "privacy.epsilon": 1}, "leave one out"),
        (MEET | {"meetings.redraw": True, "assignment.rule": "speed"}, "it needs assignment.rule = random"),
        (ALONE | {"meetings.rule_args.damping": -1}, "0 or more"),
        (ALONE | {"stopping.rule": "joint"}, "lets every cohort come alone"),
        (ALONE | {"federation.server": "fedavgm", "meetings.server_state": "average"}, "the state of all servers"),
        (MEET | {"stopping.rule": "joint", "stopping.eval_interval": 2}, "stopping.eval_interval has no effect here"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    chosen = {key: value for key, value in settings.items() if "max_hours" not in key or "joint" not in str(settings)}
    with pytest.raises(CpflError) as refused:
        api.run("digits", settings=small_runs.settings_with(chosen), out=tmp_path / "run", device="cpu")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


# Kills; test_every_operation.py has them at every operation.


@pytest.mark.parametrize(("k", "settings", "engine"), [(60, {}, "reference"), (40, SPARSE, "workers")])
def test_a_process_that_dies(k: int, settings: dict[str, Any], engine: str, tmp_path: Path) -> None:
    path, chosen = tmp_path / "run", MEET | settings
    dead = small_runs.cpfl(*small_runs.run_words(path, chosen), "--engine", engine, driver=("kill", str(k)))
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    api.resume(path, device="cpu", workers=1)
    whole = tmp_path / "whole"
    api.run("digits", settings=small_runs.settings_with(chosen), out=whole, device="cpu", engine=engine, workers=1)
    assert small_runs.differing(path, whole) == []


@pytest.mark.parametrize("chosen", [MEET, ALONE, MEET | {"meetings.redraw": True}])
def test_an_incomplete_meeting_is_held_again(chosen: dict[str, Any], tmp_path: Path, unbroken: Unbroken) -> None:
    path, whole = tmp_path / "run", unbroken(**(chosen | SPARSE))
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    for name in ("checkpoints", "rounds"):
        for file in (path / name).iterdir():
            file.unlink()
    lines = (path / "meetings.jsonl").read_bytes().splitlines(keepends=True)
    (path / "meetings.jsonl").write_bytes(lines[0] + lines[1][:40])
    (path / "models" / "meeting-0002.safetensors").write_bytes(b"half")
    api.resume(path, device="cpu")
    assert small_runs.differing(path, whole) == []


def test_damaged_meetings_are_refused(tmp_path: Path, unbroken: Unbroken) -> None:
    for content, words in ((b"", "lacks meetings"), (b'{"meeting":1}\n', "was changed")):
        path = tmp_path / str(len(content))
        shutil.copytree(unbroken(**MEET), path)
        (path / "summary.json").unlink()
        for newest in path.glob("checkpoints/*-round-000012.safetensors"):  # each resumes before its end
            newest.unlink()
        (path / "meetings.jsonl").write_bytes(content)
        with pytest.raises(RunFolderError, match=words):
            api.resume(path, device="cpu")


def test_a_merged_model_of_another_run_is_refused(tmp_path: Path, unbroken: Unbroken) -> None:
    path, other = tmp_path / "run", unbroken(**(MEET | {"seed": 7} | SPARSE))
    shutil.copytree(unbroken(**(MEET | SPARSE)), path)
    (path / "summary.json").unlink()
    for file in (*path.glob("checkpoints/*"), *path.glob("rounds/*")):
        file.unlink()
    shutil.copyfile(other / "models" / "meeting-0001.safetensors", path / "models" / "meeting-0001.safetensors")
    with pytest.raises(RunFolderError, match=r"meeting-0001\.safetensors"):
        api.resume(path, device="cpu")


def test_commands_that_read_such_a_run(cpfl_command: Command, unbroken: Unbroken, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(**MEET), path)
    cpfl_command("report", path, "--out", tmp_path / "report").good()
    cpfl_command("list", tmp_path).good()
    assert cpfl.load_run(path).summary["student_accuracy"] > 0
