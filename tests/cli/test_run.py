"""cpfl run: what a user asks for, and what lies in the folder afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from forked import Forked
from safetensors.torch import load_file
from tests.hold import PATH, Hold

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")


PROMISED = {
    "cohorts", "clients", "student_accuracy", "teacher_accuracy_mean", "teacher_accuracy_std", "ensemble_accuracy",
    "hours", "cpu_hours", "comm_gb", "rounds", "distill_seconds", "wall_seconds", "samples_per_second", "seed",
    "engine", "device",
}  # fmt: skip

OWN_FILE = """
name = "mine"
cohorts = 3
clients = 12
seed = 7
[data]
split = "iid"
[model]
name = "mlp"
args = {hidden = 16}
[federation]
lr = 0.1
participants = 2
[stopping]
rule = "rounds"
rounds = 3
[distillation]
epochs = 2
"""

OWN_MODEL = """
from torch import nn

class Small(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.body(x)
"""


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_folder_of_a_run(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary) >= PROMISED
    assert (summary["cohorts"], summary["clients"], summary["seed"]) == (4, 40, 90)
    assert (summary["engine"], summary["device"]) == ("workers", "cpu")
    assert 0 <= summary["student_accuracy"] <= 100
    assert len(summary["by_cohort"]) == 4

    about = json.loads((finished / "run.json").read_text())
    assert sorted(client for cohort in about["cohorts"] for client in cohort) == list(range(40))
    assert set(about["fingerprint"]) == {"train", "test", "public", "clients'", "device"}
    assert {"cpfl", "torch", "numpy", "python"} <= set(about["versions"])

    rounds = [lines(finished / "rounds" / f"cohort-{i:04d}.jsonl") for i in range(4)]
    assert [len(cohort) for cohort in rounds] == [5, 5, 5, 5]
    assert summary["rounds"] == 20
    assert summary["hours"] == pytest.approx(max(cohort[-1]["clock"] for cohort in rounds) / 3600)
    assert summary["cpu_hours"] == pytest.approx(sum(r["cpu_seconds"] for c in rounds for r in c) / 3600)
    sent = sum(r["bytes"] for c in rounds for r in c) + 4 * about["model_bytes"]
    assert summary["comm_gb"] == pytest.approx(sent / 1e9)
    assert all(cohort[-1]["stop"] == "max rounds" for cohort in rounds)

    epochs = lines(finished / "epochs.jsonl")
    assert [e["epoch"] for e in epochs] == [1, 2]
    assert epochs[-1]["accuracy"] == pytest.approx(summary["student_accuracy"])
    assert len(json.loads((finished / "clients.json").read_text())["clients"]) == 40
    models = {file.stem for file in (finished / "models").iterdir()}
    assert models == {"start", "global", *(f"cohort-{i:04d}" for i in range(4))}
    assert [entry["event"] for entry in lines(finished / "log.jsonl")] == ["started", "finished"]


def test_experiment_toml_repeats_the_run(cpfl_command: Command, finished: Path) -> None:
    resolved = tomllib.loads((finished / "experiment.toml").read_text())
    assert resolved["max_rounds"] == 5
    assert resolved["distillation"]["epochs"] == 2
    again = cpfl_command("run", finished / "experiment.toml", "--out", "again", "--json").good().json
    before = json.loads((finished / "summary.json").read_text())
    timed = {"wall_seconds", "samples_per_second", "distill_seconds", "checksum"}
    assert {k: v for k, v in again.items() if k not in timed | {"path"}} == {
        k: v for k, v in before.items() if k not in timed
    }


def test_what_a_person_reads(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", *QUICK, "--out", "here").good()
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert f"{summary['student_accuracy']:.2f} % on the test set" in answer.out
    assert f"{summary['teacher_accuracy_mean']:.2f} ± {summary['teacher_accuracy_std']:.2f} %" in answer.out
    assert "cohort 3 stopped after 5 rounds" in answer.out
    *_, folder, _, _, command = answer.out.rstrip().splitlines()
    assert folder.split() == ["run", "folder", "here"]
    assert command.startswith("next: cpfl sweep digits --set max_rounds=5 ")
    assert answer.err == ""


def test_estimate_speaks_of_this_run(cpfl_command: Command) -> None:
    """A run of at most 5 rounds is not announced as one of 100."""
    answer = cpfl_command("run", "digits", *QUICK, "--out", "here").good()
    assert "100 rounds" not in answer.out
    assert "5 rounds" in answer.out.splitlines()[0]


def test_json_is_alone_on_stdout(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", *QUICK, "--out", "here", "--json").good()
    assert set(answer.json) >= PROMISED
    assert answer.json["path"] == "here"
    assert "cohort 0 stopped" in answer.err


def test_a_folder_is_named_where_none_is_given(cpfl_command: Command, tmp_path: Path) -> None:
    path = cpfl_command("run", "digits", *QUICK, "--json").good().json["path"]
    assert path.startswith("runs/")
    assert "digits-n4-seed90" in path
    assert (tmp_path / path / "summary.json").is_file()


def test_two_runs_in_one_second_do_not_collide(cpfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two terminals, or a loop in a shell, start the same experiment in the same second."""
    moment, strftime = time.localtime(), time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, at=moment: strftime(form, at))
    short = ("--set", "clients=4", "--set", "cohorts=1", "--set", "max_rounds=1", "--set", "data.train_limit=200")
    paths = [cpfl_command("run", "digits", *short, "--json").good().json["path"] for _ in range(3)]
    assert len(set(paths)) == 3
    assert len({re.search(r"\d{8}-\d{6}", path)[0] for path in paths}) == 1  # type: ignore[index]


def test_one_cohort_is_plain_federated_learning(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", *QUICK, "--set", "cohorts=1", "--out", "one").good()
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert set(summary) >= PROMISED
    assert summary["student_accuracy"] == summary["teacher_accuracy_mean"] == summary["ensemble_accuracy"]
    assert (summary["teacher_accuracy_std"], summary["distill_seconds"]) == (0, 0)
    student, teacher = (load_file(tmp_path / "one" / "models" / f"{n}.safetensors") for n in ("global", "cohort-0000"))
    assert all(student[name].equal(teacher[name]) for name in teacher)
    assert "not distilled" in answer.out


def test_every_client_alone(cpfl_command: Command, tmp_path: Path) -> None:
    summary = cpfl_command("run", "digits", *QUICK, "--set", "cohorts=40", "--out", "alone", "--json").good().json
    about = json.loads((tmp_path / "alone" / "run.json").read_text())
    assert summary["rounds"] == 200
    assert len(summary["by_cohort"]) == 40
    assert summary["comm_gb"] == pytest.approx(40 * about["model_bytes"] / 1e9)  # models at the end, nothing before
    assert summary["distill_seconds"] > 0
    records = [lines(tmp_path / "alone" / "rounds" / f"cohort-{i:04d}.jsonl") for i in range(40)]
    assert all(r["participants"] == about["cohorts"][i] for i, cohort in enumerate(records) for r in cohort)
    assert any(cohort[-1]["reporting"] == 0 for cohort in records)  # clients with fewer than ten samples


def test_a_client_without_signal_stops_by_patience(cpfl_command: Command, tmp_path: Path) -> None:
    words = ("--set", "cohorts=40", "--set", "stopping.patience=2", "--set", "distillation.epochs=1")
    cpfl_command("run", "digits", *words, "--set", "max_rounds=30", "--out", "alone").good()
    last = [lines(tmp_path / "alone" / "rounds" / f"cohort-{i:04d}.jsonl")[-1] for i in range(40)]
    silent = [record for record in last if record["validation"] is None]
    assert silent
    assert all(record["stop"] == "no validation signal" and record["round"] == 2 for record in silent)


def test_a_file_of_ones_own(cpfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN_FILE)
    summary = cpfl_command("run", "mine.toml", "--set", "seed=8", "--out", "here", "--json").good().json
    assert (summary["name"], summary["cohorts"], summary["clients"], summary["seed"]) == ("mine", 3, 12, 8)
    assert summary["rounds"] == 9
    assert load_file(tmp_path / "here" / "models" / "global.safetensors")["1.weight"].shape == (16, 64)
    records = lines(tmp_path / "here" / "rounds" / "cohort-0000.jsonl")
    assert all(len(record["participants"]) == 2 for record in records)
    assert records[-1]["stop"] == "rounds"


def test_a_preset_and_what_a_seed_changes(cpfl_command: Command, tmp_path: Path, finished: Path) -> None:
    cpfl_command("run", "digits", *QUICK, "--set", "seed=91", "--out", "other").good()
    plans = [json.loads((path / "run.json").read_text())["cohorts"] for path in (finished, tmp_path / "other")]
    assert plans[0] != plans[1]


def test_a_model_of_ones_own_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes: the module is found through PYTHONPATH, at the run and at the export."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mymodels.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        process = Forked("cpfl.cli:main", ["cpfl", *words], os.environ | {"PYTHONPATH": str(tmp_path / "models")})
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    words = ("--set", "model.name=mymodels:Small", "--set", "model.args={width = 12}", "--set", "cohorts=2")
    assert json.loads(call("run", "digits", *QUICK, *words, "--out", "here", "--json"))["cohorts"] == 2
    assert load_file(tmp_path / "here" / "models" / "global.safetensors")["body.1.weight"].shape == (12, 64)
    call("export", "here", "--no-onnx")
    exported = load_file(tmp_path / "here" / "export" / "model.safetensors")
    assert set(exported) == {f"body.{part}.{kind}" for part in (1, 3) for kind in ("weight", "bias")}


def test_a_module_beside_the_experiment_needs_no_path(cpfl_command: Command, tmp_path: Path) -> None:
    """`cpfl run` from a folder that holds mynets.py, as `python -m cpfl` there would find it."""
    (tmp_path / "mynets.py").write_text(OWN_MODEL)
    before = list(sys.path)
    try:
        answer = cpfl_command("run", "digits", *QUICK, "--set", "model.name=mynets:Small", "--out", "here")
    finally:
        sys.path[:] = before
    assert answer.code == 0, answer.err


def test_killed_and_resumed(cpfl_command: Command, tmp_path: Path) -> None:
    """Killed without warning, resumed, and in the end the same records as an unbroken run."""
    hold = Hold(tmp_path, 10)  # it does not end before it is killed
    chosen = hold.settings({"max_rounds": 40, "distillation.epochs": 1, "checkpoint_seconds": 0})
    words = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    command = ["cpfl", "run", "digits", *words, "--out", str(tmp_path / "killed")]
    killed = Forked("cpfl.cli:main", command, os.environ | PATH)
    try:
        while len(list((tmp_path / "killed" / "checkpoints").glob("cohort-*.safetensors"))) < 4:
            assert killed.poll() is None, "the run ended before it was killed"
            time.sleep(0.01)
    finally:
        killed.kill()
        killed.communicate()
    hold.end()
    ended = cpfl_command("resume", "killed", "--json").good().json
    whole = cpfl_command("run", "digits", *words, "--out", "whole", "--json").good().json
    for cohort in range(4):
        name = f"cohort-{cohort:04d}.jsonl"
        assert lines(tmp_path / "killed" / "rounds" / name) == lines(tmp_path / "whole" / "rounds" / name)
    assert ended["student_accuracy"] == whole["student_accuracy"]
    reported = [e["event"] for e in lines(tmp_path / "killed" / "log.jsonl")]
    assert [event for event in reported if event != "run again"] == ["started", "resumed", "finished"]


def test_resume_of_a_finished_run_says_so(cpfl_command: Command, finished: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in finished.rglob("*")}
    answer = cpfl_command("resume", finished).good()
    assert "finished already" in answer.out
    assert "global model" in answer.out
    assert {file: file.stat().st_mtime_ns for file in finished.rglob("*")} == before


def test_the_program_as_a_process(cpfl_process: Command) -> None:
    answer = cpfl_process("--help").good()
    for command in ("run", "sweep", "resume", "distill", "list", "data", "export", "predict", "doctor"):
        assert command in answer.out


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "sweep",
        "resume",
        "distill",
        "list",
        "settings",
        "cohorts",
        "export",
        "predict",
        "doctor",
        "dashboard",
        "data get",
        "data import",
    ],
)
def test_every_command_shows_an_example(cpfl_command: Command, command: str) -> None:
    assert f"Example: cpfl {command}" in cpfl_command(*command.split(), "--help").good().out


def test_accounts_by_cohort_add_up(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command("run", "digits", *QUICK, "--out", "run").good()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    rows = summary["by_cohort"]
    assert [row["cohort"] for row in rows] == list(range(summary["cohorts"]))
    assert sum(row["rounds"] for row in rows) == summary["rounds"]
    assert max(row["hours"] for row in rows) == pytest.approx(summary["hours"])
    assert sum(row["cpu_hours"] for row in rows) == pytest.approx(summary["cpu_hours"])
    to_the_server = len(rows) * about["model_bytes"] / 1e9
    assert sum(row["comm_gb"] for row in rows) + to_the_server == pytest.approx(summary["comm_gb"])
    assert np.mean([row["accuracy"] for row in rows]) == pytest.approx(summary["teacher_accuracy_mean"])
    assert all(row["stop"] for row in rows)


def test_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    endless = ("max_rounds=1000000", "stopping.rule=rounds", "stopping.rounds=1000000")
    words = ["cpfl", "run", "digits", *(f"--set={word}" for word in endless), "--out", str(tmp_path / "run")]
    process = Forked("cpfl.cli:main", words, os.environ)
    try:
        while not list(tmp_path.glob("run/rounds/*.jsonl")) and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, reported = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    assert "cpfl resume" in reported
    assert "Traceback" not in reported
