"""Files that decide the outcome of a run are vouched for: a changed one is refused in a sentence, or made again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small_runs
from small_runs import Unbroken
from torch import nn

from cpfl import Callback, api, method
from cpfl.data.given import Given
from cpfl.engines.base import Engine
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import CpflError, DamagedError, RunFolderError
from cpfl.inference.global_model import export
from cpfl.reports.content import content
from cpfl.reports.tables import overview
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.reload import reload_task
from cpfl.sweeps import sweep

NEW_RUN = "cpfl run {}/experiment.toml --out NEW"
# The same outcome as ever, faster: two cohorts, two rounds.
FEW = small_runs.SETTINGS | {"cohorts": 2, "max_rounds": 2, "distillation.epochs": 1, "snapshots": "1 rounds"}
JOINT = {"stopping.rule": "joint", "stopping.eval_interval": 1, "stopping.eval_window": 4, "stopping.keep": "last"}
MEET = {"meetings.rule": "mean", "meetings.interval": "1 rounds"}


class Dies(Exception):
    """Takes the place of a kill."""


@pytest.fixture
def run(tmp_path: Path, unbroken: Unbroken) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(unbroken(**FEW), tmp_path / "run"))


@pytest.fixture
def trained(run: Path) -> Path:
    """The same, killed before its distillation."""
    (run / "summary.json").unlink()
    return run


def refusal(use: Callable[[], object], *words: str) -> None:
    with pytest.raises(CpflError) as refused:
        use()
    said = str(refused.value)
    assert "\n" not in said
    assert len(said) < 500 + 4 * 120, "paths of tests are long"
    for word in words:
        assert word in said


def edit(path: Path, change: Callable[[dict[str, Any]], object], sealed: bool = False) -> None:
    """Change a JSON file by hand; `sealed`: with a checksum that fits, so that only its shape is wrong."""
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree | ({"checksum": files.checksum(tree)} if sealed else {})))


# The engine.


def test_a_kill_before_the_engine_is_built_keeps_its_name(
    tmp_path: Path, unbroken: Unbroken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: object) -> None:
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr("cpfl.engines.create.ReferenceEngine.__init__", dies)
        with pytest.raises(Dies):
            api.run("digits", settings=FEW, out=tmp_path / "run", device="cpu", engine="reference")
    assert not (tmp_path / "run" / "log.jsonl").exists()
    resumed = api.resume(tmp_path / "run", device="cpu")
    assert resumed.summary["engine"] == "reference"


def test_auto_is_resolved_when_the_run_is_created(run: Path) -> None:
    assert json.loads((run / "run.json").read_text())["engine"] == "workers"


@pytest.mark.parametrize("content", [b"", b'{"event":"started","engine":"reference"}\n', b'[1]\n{"en\xff', b"[" * 9999])
def test_the_log_decides_nothing(content: bytes, trained: Path) -> None:
    (trained / "log.jsonl").write_bytes(content)
    assert api.resume(trained, device="cpu").summary["engine"] == "workers"


def test_an_engine_of_ones_own_must_be_given_again(tmp_path: Path, unbroken: Unbroken) -> None:
    class Mine(Engine):
        name = "mine"

        def train_cohorts(self, sessions: Any, on_round: Any) -> None:
            raise Dies

    with pytest.raises(Dies):
        api.run("digits", settings=FEW, out=tmp_path / "run", device="cpu", engine=Mine())
    refusal(lambda: api.resume(tmp_path / "run", device="cpu"), "'mine'", "resume it from Python with engine=")
    assert api.resume(tmp_path / "run", device="cpu", engine="reference").summary["engine"] == ReferenceEngine.name


def test_a_fleet_continues_its_run_itself(trained: Path) -> None:
    edit(trained / "run.json", lambda about: about.update(engine="flower"), sealed=True)
    refusal(lambda: api.resume(trained, device="cpu"), "'flower'", "start the Flower app again with the same out")


# Changed text.


def swap_clients(about: dict[str, Any]) -> None:
    first, second = about["cohorts"][:2]
    first[0], second[0] = second[0], first[0]


def count_one_more(about: dict[str, Any]) -> None:
    about["label_counts"][0][0] += 1


@pytest.mark.parametrize("change", [swap_clients, count_one_more, lambda about: about.update(engine="reference")])
def test_changed_facts_are_refused(change: Callable[[dict[str, Any]], object], trained: Path) -> None:
    edit(trained / "run.json", change)
    for use in (api.resume, api.distill):
        refusal(lambda use=use: use(trained, device="cpu"), "run.json was changed", NEW_RUN.format(trained))  # type: ignore[misc]
    assert not (trained / "summary.json").exists()


def test_changed_facts_of_a_finished_run_are_blamed(run: Path) -> None:
    """Not its outcome, which carries the identity that they change."""
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "lanes"}))
    done = small_runs.cpfl("resume", run)
    assert done.returncode == 2
    assert "run.json was changed after it was written" in small_runs.one_sentence(done.stderr)
    assert not done.stdout


def test_changed_settings_are_refused_and_make_a_new_run(run: Path, tmp_path: Path) -> None:
    settings = (run / "experiment.toml").read_text()
    assert "lr = 0.05" in settings
    (run / "experiment.toml").write_text(settings.replace("lr = 0.05", "lr = 0.06", 1))
    for use in (api.resume, api.distill, export):
        refusal(lambda use=use: use(run), "experiment.toml was changed", NEW_RUN.format(run))  # type: ignore[misc]
    new = api.run(run / "experiment.toml", out=tmp_path / "new", device="cpu")
    assert new.experiment.federation.lr == 0.06


def test_a_changed_record_is_refused(trained: Path) -> None:
    path = RunFolder.open(trained).rounds(1)
    before = path.read_bytes()
    changed = before.replace(b'"loss":2', b'"loss":1', 1)
    assert changed != before
    path.write_bytes(changed)
    kept = sorted((trained / "checkpoints").iterdir())
    for use in (api.resume, api.distill):
        refusal(lambda use=use: use(trained, device="cpu"), f"{path} was changed", NEW_RUN.format(trained))  # type: ignore[misc]
    assert sorted((trained / "checkpoints").iterdir()) == kept  # nothing is lost: the user may restore the file
    path.write_bytes(before)
    api.resume(trained, device="cpu")


def test_records_are_vouched_for_without_checkpoints(run: Path) -> None:
    """A user may delete checkpoints to save disk: the teachers vouch for the records of their cohorts, too."""
    shutil.rmtree(run / "checkpoints")
    api.distill(run, device="cpu")
    path = RunFolder.open(run).rounds(0)
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[-1])
    refusal(lambda: api.distill(run, device="cpu"), f"{path} was changed")


def test_a_resumed_run_vouches_for_all_records(tmp_path: Path, interrupter: Any, unbroken: Unbroken) -> None:
    """The running checksum continues where the records ended."""
    path = tmp_path / "run"
    with pytest.raises(interrupter.Enough):
        api.run("digits", settings=FEW, out=path, device="cpu", callback=interrupter(3))
    api.resume(path, device="cpu")
    assert small_runs.differing(path, unbroken(**FEW)) == []
    api.distill(path, device="cpu")


@pytest.mark.parametrize("changed", ["accuracy", "order", "said twice", "not a number"])
def test_changed_evaluations_are_refused(changed: str, tmp_path: Path, unbroken: Unbroken) -> None:
    run = Path(shutil.copytree(unbroken(**(FEW | JOINT | {"max_rounds": 3})), tmp_path / "run"))
    (run / "summary.json").unlink()
    path = run / "evaluations.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    if changed == "order":
        lines.reverse()
    elif changed == "said twice":  # the same content in other bytes
        lines[0] = lines[0].replace(b'"phase":1,', b'"phase":1,"phase":1,', 1)
    elif changed == "not a number":
        lines[0] = lines[0].replace(b'"accuracy":', b'"accuracy":NaN,"was":', 1)
    else:
        lines[-1] = lines[-1].replace(b'"accuracy":', b'"accuracy":1', 1)
    path.write_bytes(b"".join(lines))
    for use in (api.resume, api.distill):
        refusal(lambda use=use: use(run, device="cpu"), f"{path} was changed", NEW_RUN.format(run))  # type: ignore[misc]


# Models in the place of others.


@pytest.mark.parametrize("kind", ["teacher", "snapshot", "checkpoint"])
def test_files_of_other_cohorts_are_refused(kind: str, run: Path) -> None:
    folder = RunFolder.open(run)
    names = {"teacher": folder.teacher, "snapshot": lambda cohort: folder.snapshot(cohort, 1)}
    names["checkpoint"] = lambda cohort: sorted(run.glob(f"checkpoints/cohort-{cohort:04d}-*"))[-1]
    first, second = names[kind](0), names[kind](1)
    held = first.read_bytes(), second.read_bytes()
    first.write_bytes(held[1])
    second.write_bytes(held[0])
    with pytest.raises(DamagedError, match=f"it was written as {second.name}"):
        files.load_tensors(first)
    if kind == "teacher":
        refusal(lambda: api.distill(run, device="cpu"), "cohort-0000", f"it was written as {second.name}")
    if kind == "snapshot":
        clock = records.read(folder.rounds(0))[0]["clock"]
        refusal(lambda: api.distill(run, at=f"{clock + 1}s", device="cpu"), first.name, "written as")


def test_a_missing_snapshot_is_not_replaced_by_an_older_one(run: Path) -> None:
    folder = RunFolder.open(run)
    moment = f"{records.read(folder.rounds(0))[0]['clock'] + 1}s"
    api.distill(run, at=moment, device="cpu")
    folder.snapshot(0, 1).unlink()
    refusal(lambda: api.distill(run, at=moment, device="cpu"), "cohort-0000-round-000001", "is missing", "at")


def test_a_teacher_of_another_run_is_refused(run: Path, unbroken: Unbroken) -> None:
    other = RunFolder.open(unbroken(**(FEW | {"seed": 7}))).teacher(0)
    shutil.copyfile(other, RunFolder.open(run).teacher(0))
    refusal(lambda: api.distill(run, device="cpu"), "cohort-0000")


OTHERS = {  # files of another run: (patterns, is the run finished, what is refused)
    "start": (("models/start.*",), False, "start.safetensors"),
    "checkpoints and records": (("checkpoints/*", "rounds/*"), False, "cohort-0000-round-000002"),
    "facts and settings": (("run.json", "experiment.toml"), False, "start.safetensors"),
    "teachers and records": (("models/cohort-*", "rounds/*"), True, "cohort-0000.safetensors"),
    "snapshots": (("snapshots/*",), True, "cohort-0000-round-000001"),
    "outcome": (("summary.json", "models/global.*"), True, "summary.json"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_files_of_another_run_are_refused(kind: str, run: Path, unbroken: Unbroken) -> None:
    """They are whole and fit together, but they are not those of this run."""
    patterns, finished, name = OTHERS[kind]
    other = unbroken(**(FEW | {"seed": 7}))
    if not finished:
        (run / "summary.json").unlink()
    for pattern in patterns:
        found = list(other.glob(pattern))
        assert found
        for path in found:
            shutil.copyfile(path, run / path.relative_to(other))
    if kind == "outcome":
        for use in (api.resume, export, lambda path: api.load_run(path).model):
            refusal(lambda use=use: use(run), name, "belongs to another run")  # type: ignore[misc]
        return
    clock = records.read(RunFolder.open(run).rounds(0))[0]["clock"] + 1
    again = {"at": f"{clock}s"} if kind == "snapshots" else {}
    use = partial(api.distill, run, device="cpu", **again) if finished else partial(api.resume, run, device="cpu")
    refusal(use, name, "belongs to another run")


def test_files_of_other_cohorts_under_the_same_settings_are_refused(tmp_path: Path) -> None:
    """The settings name a csv file, which may have had another content."""
    plan = tmp_path / "plan.csv"
    given = {"assignment.rule": "csv", "assignment.rule_args.file": str(plan), "max_rounds": 1}
    runs = []
    for half in ("001011", "010101"):
        plan.write_text("client,cohort\n" + "".join(f"{client},{own}\n" for client, own in enumerate(half)))
        runs.append(api.run("digits", settings=FEW | given, out=tmp_path / half, device="cpu", engine="reference").path)
    assert (runs[0] / "experiment.toml").read_bytes() == (runs[1] / "experiment.toml").read_bytes()
    for name in ("models/cohort-0000.safetensors", "rounds/cohort-0000.jsonl"):
        shutil.copyfile(runs[1] / name, runs[0] / name)
    refusal(lambda: api.distill(runs[0], device="cpu"), "cohort-0000.safetensors", "belongs to another run")


def test_records_that_name_no_identity_are_read(tmp_path: Path) -> None:
    """Those of results/ are older than the cohorts' place in it."""
    with tarfile.open(Path(__file__).parents[2] / "results/paper/records-alpha-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.glob("n*"):
        assert RunFolder.open(path).verify().summary()


def test_a_missing_start_is_made_again(trained: Path) -> None:
    start = RunFolder.open(trained).model("start")
    whole = start.read_bytes()
    start.unlink()
    api.resume(trained, device="cpu")
    assert start.read_bytes() == whole


def test_a_missing_start_that_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    """A model of one's own need not have the same weights twice."""
    weight = [1.0]

    def build() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        nn.init.constant_(model[1].weight, weight[0])
        return model

    settings = {key: value for key, value in FEW.items() if not key.startswith("model.")}
    run = api.run("digits", settings=settings, model=build, out=tmp_path / "run", device="cpu", engine="reference")
    (run.path / "summary.json").unlink()
    RunFolder.open(run.path).model("start").unlink()
    weight[0] = 0.5
    refusal(lambda: api.resume(run.path, model=build, device="cpu"), "start.safetensors is missing", "other weights")


@pytest.mark.parametrize("kind", ["evaluations.jsonl", "meetings.jsonl"])
@pytest.mark.parametrize("damage", ["deleted", "cut", "another run's"])
def test_evaluations_and_meetings_are_vouched_for(damage: str, kind: str, tmp_path: Path, unbroken: Unbroken) -> None:
    """Their costs are the run's: a distillation must not find fewer of them than there were."""
    joint = FEW | {"evaluations.jsonl": JOINT, "meetings.jsonl": MEET}[kind] | {"max_rounds": 3}
    run = Path(shutil.copytree(unbroken(**joint), tmp_path / "run"))
    path = run / kind
    if damage == "deleted":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    else:
        shutil.copyfile(unbroken(**(joint | {"seed": 7})) / path.name, path)
    refusal(lambda: api.distill(run, device="cpu"), kind)
    (damaged,) = content([run])["damaged"]
    assert kind in damaged["reason"]


def test_records_of_unfinished_cohorts_are_vouched_for(tmp_path: Path, interrupter: Any) -> None:
    """By the newest checkpoint, as far as it reaches."""
    path = tmp_path / "run"
    with pytest.raises(interrupter.Enough):
        api.run("digits", settings=FEW | {"max_rounds": 4}, out=path, device="cpu", callback=interrupter(5))
    at = {"at": f"{records.read(RunFolder.open(path).rounds(0))[0]['clock'] + 1}s", "device": "cpu"}
    api.distill(path, **at)
    lines = RunFolder.open(path).rounds(0)
    changed = lines.read_bytes().replace(b'"cpu_seconds":', b'"cpu_seconds":1', 1)
    lines.write_bytes(changed)
    refusal(lambda: api.distill(path, **at), f"{lines} was changed", NEW_RUN.format(path))


@pytest.mark.parametrize("gone", ["deleted", "damaged"])
def test_records_that_nothing_vouches_for_are_refused(gone: str, tmp_path: Path, interrupter: Any) -> None:
    """Checkpoints may be deleted after training; a resume makes them again."""
    path = tmp_path / "run"
    with pytest.raises(interrupter.Enough):
        api.run("digits", settings=FEW | {"max_rounds": 4}, out=path, device="cpu", callback=interrupter(5))
    at = {"at": f"{records.read(RunFolder.open(path).rounds(0))[0]['clock'] + 1}s", "device": "cpu"}
    for checkpoint in (path / "checkpoints").glob("cohort-0001-*"):
        checkpoint.unlink() if gone == "deleted" else checkpoint.write_bytes(b"{}")
    refusal(lambda: api.distill(path, **at), "no checkpoint vouches", "cohort-0001.jsonl", f"cpfl resume {path}")
    api.resume(path, device="cpu")
    api.distill(path, **at)


def test_a_teacher_vouches_for_records_that_do_not_say_stopped(trained: Path) -> None:
    folder = RunFolder.open(trained)
    lines = folder.rounds(0)
    lines.write_bytes(lines.read_bytes().replace(b'"stop":"max rounds"', b'"stop":""'))
    shutil.rmtree(trained / "checkpoints")
    at = f"{records.read(lines)[0]['clock'] + 1}s"
    refusal(lambda: api.distill(trained, at=at, device="cpu"), f"{lines} is damaged")


def test_a_kill_between_a_teacher_and_the_last_record(tmp_path: Path, unbroken: Unbroken) -> None:
    """The cohort has not stopped yet; it trains again, and with it its teacher goes."""
    run = Path(shutil.copytree(unbroken(**FEW), tmp_path / "run"))
    (run / "summary.json").unlink()
    folder = RunFolder.open(run)
    for cohort in (0, 1):
        folder.checkpoints(cohort)[0].unlink()
        records.truncate(folder.rounds(cohort), folder.numbers(folder.checkpoints(cohort)[0])["records_size"])
    api.distill(run, at=f"{records.read(folder.rounds(0))[0]['clock'] / 2}s", device="cpu")
    recorder = RunRecorder(folder, folder.experiment(), Callback())
    sessions = method.open_sessions(reload_task(folder, None, None, Given(), print))
    with recorder.training(sessions):
        assert not any(folder.teacher(cohort).exists() for cohort in (0, 1))
    api.resume(run, device="cpu")
    assert small_runs.differing(run, unbroken(**FEW)) == []


@pytest.mark.parametrize("finished", [True, False])
def test_a_cut_record_of_a_stopped_cohort_is_damage(finished: bool, run: Path) -> None:
    """Nobody has to wait for it."""
    if not finished:
        (run / "summary.json").unlink()
    lines = RunFolder.open(run).rounds(0)
    lines.write_bytes(lines.read_bytes()[:-9])
    refusal(lambda: api.distill(run, device="cpu"), f"{lines} is damaged", "shorter than it was")


def test_a_resumed_sweep_verifies_its_finished_runs(tmp_path: Path) -> None:
    few = {key: value for key, value in FEW.items() if key != "cohorts"} | {"max_rounds": 1}
    (finished,) = sweep("digits", cohorts=[1], settings=few, out=tmp_path, device="cpu")
    edit(finished.path / "run.json", count_one_more)
    refusal(lambda: sweep(tmp_path, device="cpu"), "run.json was changed")


@pytest.mark.parametrize("name", ["summary.json", "run.json", "rounds/cohort-0000.jsonl", "experiment.toml"])
def test_lists_and_reports_show_no_changed_value(name: str, run: Path, tmp_path: Path) -> None:
    key = {"summary.json": b'"rounds": ', "rounds/cohort-0000.jsonl": b'"samples":', "run.json": b'"classes": '}
    path, first = run / name, key.get(name, b"lr = 0.0")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(first, first + b"1", 1))
    assert path.read_bytes() != whole
    (damaged,) = content([run])["damaged"]
    assert Path(name).name in damaged["reason"]
    (row,) = overview(tmp_path)
    assert "damaged" in row["state"] or name.startswith("rounds")  # which a list does not show


def test_the_global_model_is_that_of_its_summary(run: Path) -> None:
    api.distill(run, name="other", device="cpu", epochs=2)
    shutil.copyfile(run / "distillations/other/models/global.safetensors", run / "models/global.safetensors")
    for use in (lambda: api.load_run(run).model, lambda: export(run, onnx=False)):
        refusal(use, "global.safetensors is damaged", "another distillation")
    assert export(run, distillation="other", onnx=False)


# Shapes.

DEEP = "[" * 100_000
SHAPES: dict[str, tuple[str, Any]] = {
    "cohorts are numbers": ("cohorts", [1, 2]),
    "no cohorts": ("cohorts", []),
    "a client below 0": ("cohorts", [[-1], [2]]),
    "a client of 30 digits": ("cohorts", [[10**30], [2]]),
    "counts of too few cohorts": ("label_counts", [[1] * 10]),
    "counts of too few classes": ("label_counts", [[1], [2]]),
    "counts are text": ("label_counts", "many"),
    "shape of 0": ("shape", [0]),
    "classes in words": ("classes", "ten"),
    "model_bytes negative": ("model_bytes", -1),
    "engine missing": ("engine", None),
    "fingerprint is a list": ("fingerprint", []),
    "identity is text": ("identity", "engine"),
    "samples are text": ("samples", {"train": "x"}),
    "cohort_model_bytes is a list": ("cohort_model_bytes", [1]),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_the_shape_of_run_json(kind: str, run: Path) -> None:
    key, value = SHAPES[kind]
    edit(run / "run.json", lambda about: about.update({key: value}), sealed=True)
    for use in (api.load_run, api.resume, api.distill, export):
        refusal(lambda use=use: use(run), f"run.json is damaged: {key}")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value"),
    [("student_accuracy", None), ("teachers", "all"), ("by_cohort", [1]), ("hours", 1e999), ("cohorts", "4")],
)
def test_the_shape_of_summary_json(key: str, value: object, run: Path) -> None:
    edit(run / "summary.json", lambda summary: summary.update({key: value}))
    for use in (api.resume, export):
        refusal(lambda use=use: use(run), "summary.json is damaged", key)  # type: ignore[misc]


@pytest.mark.parametrize("content", [DEEP, '{"schema": ' + "9" * 5000 + "}", '{"a":' * 100_000])
@pytest.mark.parametrize("name", ["run.json", "summary.json", "rounds/cohort-0000.jsonl"])
def test_runaway_json(name: str, content: str, run: Path) -> None:
    (run / name).write_text(content + "\n")
    refusal(lambda: export(run) if name == "summary.json" else api.distill(run), Path(name).name, "damaged")


@pytest.mark.parametrize("line", [b"[1]\n", b'{"round":1}\n', b'{"round":1,"clock":"x","stop":""}\n'])
def test_the_shape_of_records(line: bytes, trained: Path) -> None:
    path = RunFolder.open(trained).rounds(0)
    path.write_bytes(line)
    refusal(lambda: api.distill(trained, at="1s"), f"{path} is damaged")


def test_sweep_json(tmp_path: Path) -> None:
    few = FEW | {"cohorts": 1, "max_rounds": 1}
    sweep("digits", cohorts=[1], settings={k: v for k, v in few.items() if k != "cohorts"}, out=tmp_path, device="cpu")
    path = tmp_path / "sweep.json"
    whole = path.read_text()
    (name,) = json.loads(whole)["runs"]
    edit(path, lambda tree: tree["runs"][name].update(cohorts=2))
    refusal(lambda: sweep(tmp_path), "sweep.json was changed", "--out")
    for key, value in (("runs", {name: 3}), ("given", []), ("engine", 1), ("experiment", "digits"), ("data", 3)):
        path.write_text(whole)
        edit(path, lambda tree, key=key, value=value: tree.update({key: value}), sealed=True)  # type: ignore[misc]
        refusal(lambda: sweep(tmp_path), "sweep.json is damaged", key)
    path.write_text(DEEP)
    refusal(lambda: sweep(tmp_path), "sweep.json is damaged")
    path.write_text(whole)
    left = tmp_path / ".trade-off.png.part"  # of a sweep that was killed while it drew
    left.write_bytes(b"half")
    assert [run.path.name for run in sweep(tmp_path)] == [name]
    assert not left.exists()


# Two at once, interrupts, leftovers, names.


def test_two_distillations_of_one_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused while the first one trains; other names are free, and so is this one afterwards."""
    first: list[str] = []
    on_epoch = RunRecorder.on_epoch

    def meanwhile(self: RunRecorder, record: Any) -> None:
        on_epoch(self, record)
        if not first:
            first.append("running")
            refusal(lambda: api.distill(run, name="one", device="cpu"), "distillations/one", "distilled by another")
            api.distill(run, name="two", device="cpu")

    monkeypatch.setattr(RunRecorder, "on_epoch", meanwhile)
    api.distill(run, name="one", device="cpu")
    assert first
    assert len(records.read(run / "distillations/one/epochs.jsonl")) == 1
    api.distill(run, name="one", device="cpu")


class AtFork:
    """Sends Ctrl-C to the process that forks, from a function that Python calls then; it cannot be taken back."""

    armed = False

    @classmethod
    def interrupt(cls) -> None:
        if cls.armed:
            cls.armed = False
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):  # it is raised between two instructions
                pass


os.register_at_fork(after_in_parent=AtFork.interrupt)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_during_a_fork(tmp_path: Path) -> None:
    AtFork.armed = True
    with pytest.raises(KeyboardInterrupt):
        api.run("digits", settings=FEW, out=tmp_path / "run", device="cpu", engine="workers", workers=2)
    assert not AtFork.armed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    api.resume(tmp_path / "run", device="cpu", workers=2)


def test_half_written_files_go(trained: Path) -> None:
    left = [trained / ".run.json.part", trained / "models" / ".start.safetensors.part"]
    left += [trained / "checkpoints" / ".x.part", trained / "distillations" / "again" / ".summary.json.part"]
    left += [trained / "distillations" / "again" / "models" / ".global.safetensors.part"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    busy = RunFolder(trained / "distillations" / "busy")
    busy.path.mkdir()
    busy.lock()
    (busy.path / ".epochs.jsonl.part").write_bytes(b"half")
    api.resume(trained, device="cpu")
    assert list(trained.rglob("*.part")) == [busy.path / ".epochs.jsonl.part"]  # its process may still need it
    busy.unlock()


def test_a_report_that_is_being_written_stays_whole(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report writes into the run folder without its lock, while the run is resumed."""
    replace = Path.replace

    def meanwhile(self: Path, target: Path) -> Path:
        if target.suffix == ".html":
            api.resume(trained, device="cpu")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    files.write_atomic(trained / "report.html", b"whole")
    assert (trained / "report.html").read_bytes() == b"whole"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "\udcff"])
def test_names_that_are_no_text(name: str, tmp_path: Path) -> None:
    refusal(lambda: api.run("digits", out=tmp_path / name), "cannot write", "NUL")
    refusal(lambda: sweep("digits", cohorts=[1], out=tmp_path / name), "cannot write", "NUL")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        api.resume(tmp_path / name)
