"""Trackers, with the real libraries: what was written is read back with their own readers."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cpfl
from cpfl import trackers
from cpfl.callbacks import Callback
from cpfl.runs import records
from cpfl.trackers import Point, Store

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

SETTINGS = {"max_rounds": 6, "distillation.epochs": 3, "checkpoint_seconds": 0}
Series = dict[str, dict[int, float]]


def tensorboard(path: Path) -> Series:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    found = events.EventAccumulator(str(path / "tracking" / "tensorboard"), {"scalars": 0, "tensors": 0})
    found.Reload()
    series: Series = {}
    for tag in found.Tags()["tensors"]:
        if tag != "experiment/text_summary":
            points = found.Tensors(tag)
            series[tag] = {point.step: float(point.tensor_proto.float_val[0]) for point in points}
            assert len(points) == len(series[tag]), "a step is there once"
    return series


def mlflow(path: Path) -> Series:
    client = pytest.importorskip("mlflow", reason="no mlflow").MlflowClient((path / "tracking/mlflow/store").as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "digits"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["federation.batch_size"] == str(cpfl.load_run(path).experiment.federation.batch_size)
    assert run.info.status == "FINISHED"
    series: Series = {}
    for key in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, key)
        series[key] = {point.step: point.value for point in points}
        assert len(points) == len(series[key]), "a step is there once"
    return series


def wandb(path: Path) -> Series:
    records_of = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="no wandb")
    (file,) = path.glob("tracking/wandb/offline-run-*/run-*.wandb")
    found: list[Any] = []
    while not any(record.HasField("exit") for record in found):  # a process of its own writes, a moment later
        time.sleep(0.1)
        found = [records_of.Record.FromString(content) for content in log_records(file.read_bytes())]
    series: Series = {}
    for record in found:
        if record.HasField("summary"):
            for item in record.summary.update:
                key = item.key or "/".join(item.nested_key)
                if "/" not in key and not key.startswith("_"):
                    series[f"summary/{key}"] = {0: json.loads(item.value_json)}
        if not record.HasField("history"):
            continue
        row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        step = next(value for key, value in row.items() if key.endswith(("/round", "/epoch")))
        for key, value in row.items():
            if "/" in key and not key.endswith(("/round", "/epoch")):
                assert step not in series.setdefault(key, {}), "a step is there once"
                series[key][step] = value
    return series


def log_records(content: bytes) -> Iterator[bytes]:
    """The library writes LevelDB's log format and no longer ships a reader: blocks of 32 KiB, records in pieces."""
    at, piece = 7, b""  # after its own header
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        if at + 7 + size > len(content):  # it is being written
            return
        piece += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield piece
            piece = b""


READERS: dict[str, Callable[[Path], Series]] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name, reason=f"{name} is not installed")
    return name


def expected(path: Path, every: int = 1) -> Series:
    """The series of the run folder."""
    series: Series = {}
    for line in cpfl.load_run(path).rounds:
        if line["round"] % every and not line["stop"]:
            continue
        for key in ("loss", "validation", "moving_average"):
            if line[key] is not None:
                series.setdefault(f"cohort-{line['cohort']:04d}/{key}", {})[line["round"]] = line[key]
        series.setdefault(f"cohort-{line['cohort']:04d}/hours", {})[line["round"]] = line["clock"] / 3600
    for line in records.read(path / "epochs.jsonl"):
        series.setdefault("distillation/loss", {})[line["epoch"]] = line["loss"]
        series.setdefault("distillation/accuracy", {})[line["epoch"]] = line["accuracy"]
    return series


def compare(found: Series, path: Path, every: int = 1) -> None:
    summary = cpfl.load_run(path).summary
    assert found.pop("summary/student_accuracy")[0] == pytest.approx(summary["student_accuracy"])
    assert found.pop("summary/hours")[0] == pytest.approx(summary["hours"])
    series = {key: points for key, points in found.items() if not key.startswith("summary/")}
    wanted = expected(path, every)
    assert series.keys() == wanted.keys()
    for key, points in wanted.items():
        assert series[key] == pytest.approx(points, rel=1e-6), key


def test_what_is_tracked_is_what_the_folder_holds(tracker: str, tmp_path: Path) -> None:
    run = cpfl.run("digits", settings=SETTINGS, out=tmp_path / "run", track=[tracker])
    compare(READERS[tracker](run.path), run.path)


def test_a_killed_run_is_tracked_once_and_without_a_gap(tracker: str, tmp_path: Path, interrupter: Any) -> None:
    path = tmp_path / "run"
    with pytest.raises(interrupter.Enough):
        cpfl.run("digits", settings=SETTINGS, out=path, track=[tracker], callback=interrupter(13))
    cpfl.resume(path, track=[tracker])
    compare(READERS[tracker](path), path)


def test_a_tracker_may_be_added_later(tracker: str, unfinished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(unfinished, path)
    cpfl.resume(path, track=[tracker])
    compare(READERS[tracker](path), path)


def test_with_many_cohorts_only_some_rounds(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    settings = {"cohorts": 20, "max_rounds": 23, "distillation.epochs": 1}
    run = cpfl.run("digits", settings=settings, out=tmp_path / "run", track=["tensorboard"])
    found = tensorboard(run.path)
    assert set(found["cohort-0007/loss"]) == {10, 20, 23}
    compare(found, run.path, trackers.EVERY)


def test_several_in_one_command(cpfl_command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    words = ("--set", "max_rounds=3", "--set", "distillation.epochs=1", "--track", "tensorboard")
    cpfl_command("sweep", "digits", *words, "--cohorts", "1,2", "--jobs", "2", "--out", "s").good()
    for name in ("n001-seed90", "n002-seed90"):
        compare(tensorboard(tmp_path / "s" / name), tmp_path / "s" / name)


@pytest.mark.parametrize("name", trackers.STORES.names)
def test_a_missing_package_is_named_with_its_extra(
    name: str, cpfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda wanted: None)
    for words in (("run", "digits"), ("sweep", "digits", "--cohorts", "1")):
        answer = cpfl_command(*words, "--track", name, "--out", "run")
        assert answer.code == 2
        assert (
            answer.err == f"cpfl: track = '{name}' needs a package that is not installed: pip install 'cpfl[{name}]'\n"
        )
    assert not (tmp_path / "run").exists()
    extras = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f"\n{name} = [" in extras


def test_an_unknown_tracker(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", "--track", "mlflaw", "--out", "run")
    assert answer.code == 2
    known = "Known: tensorboard, mlflow, wandb, or module:Class"
    assert answer.err == f"cpfl: track = 'mlflaw' is unknown; did you mean mlflow? {known}\n"
    assert not (tmp_path / "run").exists()


class Broken(Store):
    """A user's store that fails after some points."""

    left = 1

    def write(self, points: Sequence[Point]) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the server is gone")

    def end(self, summary: object) -> None:
        raise AssertionError("a broken store is not ended")


def test_a_broken_tracker_does_not_break_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "FLUSH_SECONDS", -1.0)
    name, messages = f"{__name__}:Broken", []

    class Listener(Callback):
        def on_message(self, text: str) -> None:
            messages.append(text)

    run = cpfl.run("digits", settings=SETTINGS, out=tmp_path / "run", track=[name], callback=Listener())
    assert run.summary["student_accuracy"] > 0
    assert [text for text in messages if "Broken" in text] == [
        f"{name} does not track this run any more: OSError: the server is gone"
    ]
