"""The thread that writes a run: kills at any of its writes, slow and full disks, real time over several sittings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import small_runs
import torch
from small_runs import Unbroken

from cpfl import api
from cpfl.devices.fleet import Fleet
from cpfl.errors import RunFolderError
from cpfl.federation.session import ClientResult, ClosedRound, RoundResult, Session
from cpfl.runs import files, records, writer
from cpfl.runs.folder import RunFolder
from cpfl.runs.writer import RunWriter
from cpfl.settings import Experiment

# Long enough that the writer's thread writes several times.
SETTINGS = {"max_rounds": 40, "stopping.patience": 40, "snapshots": "10 rounds", "checkpoint_seconds": 0.02}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return small_runs.made_by_hand(tmp_path / "run")


def session(cohort: int = 0, **settings: Any) -> Session:
    experiment = Experiment(clients=2, cohorts=2, **settings)
    fleet = Fleet(np.ones(2), np.ones(2))
    return Session(cohort, [cohort], experiment, fleet, 16, {"w": torch.zeros(4)})


def close(one: Session) -> ClosedRound:
    work = one.open_round()
    results = [ClientResult(client, 10, 1, 1.0, 1.0 / work.round) for client in work.participants]
    return one.close_round(RoundResult({"w": torch.full((4,), float(work.round))}, results))


@pytest.mark.parametrize("operation", ["snapshots/:4", "rounds/:3", "checkpoints/:3", "models/.cohort:5"])
def test_killed_at_an_operation_of_the_writer(operation: str, tmp_path: Path, unbroken: Unbroken) -> None:
    """However fast the run is: every cohort has these operations, also where all is written at the end."""
    path = tmp_path / "run"
    dead = small_runs.cpfl(*small_runs.run_words(path, SETTINGS), driver=("at", operation))
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    api.resume(path, device="cpu", workers=1)
    assert small_runs.differing(path, unbroken(**SETTINGS)) == []


def test_closed_rounds_get_into_a_checkpoint_while_the_run_continues(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later kill does not train them again. A round takes half an interval here."""
    one = session(max_rounds=1000, stopping={"patience": 1000})
    monkeypatch.setattr(writer, "PAUSE", 0.001)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: one.round / 2))

    def newest() -> int:
        return max([0, *(int(file.stem[-6:]) for file in folder.path.glob("checkpoints/cohort-0000-*.safetensors"))])

    with RunWriter(folder, 1.0) as run_writer:
        for _ in range(10):
            closed = one.round + 1
            for _ in range(3):
                run_writer.write(one, close(one))
            while newest() < closed:  # no further round: the writer does it by itself
                time.sleep(0.001)


def test_a_checkpoint_is_made_in_every_interval(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances a second per round."""
    one, made, capture = session(max_rounds=1000), [], writer.capture

    def counted(session: Session, seconds: float) -> writer.Checkpoint:
        made.append(session.round)
        return capture(session, seconds)

    monkeypatch.setattr(writer, "capture", counted)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: float(one.round)))
    with RunWriter(folder, 5.0) as run_writer:
        for _ in range(30):
            run_writer.write(one, close(one))
    assert made == [6, 11, 16, 21, 26]
    assert [int(path.stem[-6:]) for path in sorted(folder.path.glob("checkpoints/*"))][-1] == 26


def test_rounds_are_on_disk_in_their_order(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAUSE", 0.001)
    one = session(max_rounds=400, snapshots="7 rounds", stopping={"patience": 1000})
    with RunWriter(folder, 0.002) as run_writer:
        while not one.stopped:
            run_writer.write(one, close(one))
            written = [line["round"] for line in records.read(folder.rounds(0))]
            assert written == list(range(1, len(written) + 1))
            snapshots = {int(path.stem[-6:]) for path in (folder.path / "snapshots").glob("cohort-0000-*")}
            assert {number for number in written if number % 7 == 0} <= snapshots
            assert not (written and written[-1] == 400) or folder.teacher(0).is_file()
            while one.round in (100, 300) and len(records.read(folder.rounds(0))) < one.round:
                time.sleep(0.001)  # so that the writer writes several times
    assert len(records.read(folder.rounds(0))) == 400
    again = session(max_rounds=400, snapshots="7 rounds", stopping={"patience": 1000})
    assert writer.restore(folder, again)[1] == []  # no checkpoint is damaged
    assert again.state()[1] == one.state()[1]
    assert torch.equal(again.model["w"], one.model["w"])
    assert len(list(folder.path.glob("checkpoints/*"))) == writer.KEPT


def test_ten_thousand_cohorts_keep_their_checkpoints(folder: RunFolder) -> None:
    """The name of cohort 1000 begins like those of 10000 and more: none may take the others' files for its own."""
    numbers = (1000, 10_000, 10_001, 100_000)
    experiment = Experiment(clients=100_001, cohorts=100_001, max_rounds=10, stopping={"patience": 100})
    fleet = Fleet(np.ones(100_001), np.ones(100_001))

    def opened() -> list[Session]:
        return [Session(n, [n], experiment, fleet, 16, {"w": torch.zeros(4)}) for n in numbers]

    sessions = opened()
    with RunWriter(folder, 0) as run_writer:
        for rounds in range(1, 5):
            for one in sessions[:rounds]:  # each is a round behind the one before it
                run_writer.write(one, close(one))
    found = sorted(path.stem for path in folder.path.glob("checkpoints/*"))
    expected = {1000: (3, 4), 10_000: (2, 3), 10_001: (1, 2), 100_000: (1,)}
    assert found == sorted(f"cohort-{n:04d}-round-{r:06d}" for n, kept in expected.items() for r in kept)
    for one, other in zip(sessions, opened(), strict=True):
        assert writer.restore(folder, other)[1:] == ([], 0)
        assert other.state()[1] == one.state()[1]


def test_what_is_synced_before_what(folder: RunFolder) -> None:
    """A power cut loses what is not synced: a file is before it gets its name, records before their checkpoint."""
    synced: dict[str, int] = {}  # sizes
    renamed = []
    sync, rename = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{handle}")] = os.fstat(handle).st_size
        sync(handle)

    def replace(path: Path, target: Path) -> Path:
        assert synced.pop(str(path)) == path.stat().st_size > 0
        if target.parent.name == "checkpoints":
            with safetensors.safe_open(path, "pt") as file:
                records_size = json.loads(file.metadata()[files.ENTRY].partition(" ")[2])["records_size"]
            assert synced[str(folder.rounds(0))] >= records_size > 0
        renamed.append(target)
        synced.pop(str(target.parent), None)
        return rename(path, target)

    one = session(max_rounds=5, snapshots="2 rounds", stopping={"patience": 100})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "replace", replace)
        with RunWriter(folder, 0) as run_writer:
            while not one.stopped:
                run_writer.write(one, close(one))
                for place in {path.parent for path in renamed}:  # names, too
                    assert str(place) in synced
    assert {path.parent.name for path in renamed} == {"snapshots", "models", "checkpoints"}


def write_on(folder: RunFolder, one: Session) -> None:
    with RunWriter(folder, 5.0) as run_writer:
        while True:
            run_writer.write(one, close(one))
            time.sleep(0.01)


def raise_meanwhile(folder: RunFolder, one: Session) -> None:
    with RunWriter(folder, 5.0) as run_writer:
        run_writer.write(one, close(one))
        raise ZeroDivisionError


def test_errors_of_the_writer_are_raised_where_rounds_are_closed(folder: RunFolder) -> None:
    shutil.rmtree(folder.path / "rounds")  # no file can be made there
    one = session(max_rounds=10**6)
    with pytest.raises(RunFolderError, match="cannot write"):
        write_on(folder, one)
    with pytest.raises(RunFolderError, match="cannot write"), RunWriter(folder, 5.0) as run_writer:
        run_writer.write(one, close(one))  # at the latest when the writer is closed
    assert not list(folder.path.glob("checkpoints/*"))


def test_an_error_in_training_is_raised_before_one_in_writing(folder: RunFolder) -> None:
    shutil.rmtree(folder.path / "rounds")
    with pytest.raises(ZeroDivisionError):
        raise_meanwhile(folder, session())
    assert "run-writer" not in {thread.name for thread in threading.enumerate()}


def test_training_waits_for_a_slow_disk_before_memory_is_full(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_QUEUED", 4)
    monkeypatch.setattr(writer, "PAUSE", 0.001)
    written: list[Path] = []

    def slow(path: Path, *rest: Any, **more: Any) -> None:
        time.sleep(0.01)
        written.append(path)
        files_save(path, *rest, **more)

    files_save = files.save_tensors
    monkeypatch.setattr(files, "save_tensors", slow)
    one = session(max_rounds=60, snapshots="1 rounds", stopping={"patience": 1000})
    with RunWriter(folder, 100.0) as run_writer:
        while not one.stopped:
            run_writer.write(one, close(one))
            waiting = one.round - len(written)
            assert waiting <= 10  # those in the queue, those being written, and the current one
    assert len(list((folder.path / "snapshots").glob("cohort-0000-*"))) == 60


def test_real_time_covers_all_sittings(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    first = json.loads((path / "summary.json").read_text())
    (path / "summary.json").unlink()
    for file in path.glob("checkpoints/*.safetensors"):  # as if the first sitting had taken 10,000 s
        tensors, numbers = files.load_tensors(file)
        assert 0 < numbers["wall_seconds"] <= first["wall_seconds"]
        files.save_tensors(file, tensors, {**numbers, "wall_seconds": 10_000.0})
    began = time.perf_counter()
    api.resume(path, device="cpu", workers=1)
    longest = 10_001 + time.perf_counter() - began
    second = json.loads((path / "summary.json").read_text())
    assert 10_000 <= second["wall_seconds"] <= longest
    assert second["samples"] / longest <= second["samples_per_second"] <= second["samples"] / 10_000 + 0.1


def test_real_time_accumulates_over_sittings(tmp_path: Path, interrupter: Any) -> None:
    """Killed three times: checkpoints carry the time from one sitting to the next."""
    path, spent = tmp_path / "run", []
    settings = small_runs.SETTINGS | {"max_rounds": 40, "stopping.patience": 40}
    for attempt in range(3):
        words: dict[str, Any] = {"device": "cpu", "callback": interrupter(25)}
        call = partial(api.resume, path) if attempt else partial(api.run, "digits", settings=settings, out=path)
        with pytest.raises(interrupter.Enough):
            call(**words)
        spent.append(
            max(files.load_tensors(file)[1]["wall_seconds"] for file in path.glob("checkpoints/*.safetensors"))
        )
    assert 0 < spent[0] < spent[1] < spent[2]
    assert api.resume(path, device="cpu").summary["wall_seconds"] > spent[2]
