"""Writes a run while it trains: records, snapshots, teachers, checkpoints. Restores a session from a checkpoint.

The training thread only hands over the results of a round; another thread writes them, several rounds at a time, so
that training never waits for a disk. A kill costs nothing more: resume truncates the records to the last checkpoint
anyway, and rounds are written in their order. With `checkpoint_seconds` = 0 a round is on disk when it is closed.
"""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from cpfl.errors import DamagedError
from cpfl.federation.session import ClosedRound, Session
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder

KEPT = 2  # checkpoints of a cohort: the newest may be damaged
PAUSE = 0.25  # seconds between writes: readers are at most so far behind
MAX_QUEUED = 256  # models that may wait for a slow disk before training does: they hold memory
FACTS = ("_size", "_checksum")  # how names of numbers end that say what a file was
RARE = ("excluded", "repeats", "stale", "wasted_cpu_seconds", "wasted_bytes")  # left out of records where they are 0

StoredModel = tuple[Path, State, Mapping[str, Any]]
"""The file of a model, the model, and the numbers that are stored with it."""

Checkpoint = tuple[State, dict[str, Any]]
"""A session's tensors and numbers after a round, in host memory; later rounds do not change them."""


class _Round(NamedTuple):
    """The results of one round, in host memory."""

    cohort: int
    record: Mapping[str, Any]
    models: Sequence[StoredModel]
    checkpoint: Checkpoint | None


class RunWriter:
    """Takes every closed round; after a kill, resume continues from what it wrote."""

    def __init__(self, folder: RunFolder, seconds: float, spent: float = 0.0) -> None:
        """A checkpoint every so many `seconds`; `spent` is the training time before this resume."""
        self._folder, self._seconds = folder, seconds
        self._began = time.monotonic() - spent
        self._saved: dict[int, float] = {}
        self._digests: dict[int, records.RunningDigest] = {}  # of the records, by cohort
        self._queue: list[_Round] = []
        self._models = 0  # in the queue or being written
        self._error: BaseException | None = None
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # started with the first round: engines may fork before it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Write all that is left."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error is None:  # else the first error is the one to report
            raise self._error

    def write(self, session: Session, closed: ClosedRound) -> None:
        """Take the results of this round; errors in writing earlier rounds are raised here."""
        now = time.monotonic()
        due = now - self._saved.setdefault(session.cohort, now if self._seconds else 0.0) >= self._seconds
        models, state = list[StoredModel](), None
        for one in closed.snapshots:
            path = self._folder.snapshot(one.cohort, one.round)
            models.append((path, files.on_host(one.model), {"round": one.round, "clock": one.clock}))
        if due or session.stopped:
            shared = records.shared_facts(self._folder.shared, session.phases)
            tensors, numbers = capture(session, now - self._began)
            state = tensors, {**numbers, **shared}
            self._saved[session.cohort] = now
        if session.stopped:
            model, stored = _teacher(session)
            models.append((self._folder.teacher(session.cohort), model, {**stored, **shared}))
        record = {key: value for key, value in vars(closed.record).items() if value or key not in RARE}
        if closed.snapshots:  # records are vouched for: a snapshot that is missing later is noticed
            record["snapshots"] = [one.round for one in closed.snapshots]
        item = _Round(session.cohort, record, models, state)
        if not self._seconds:
            self._write([item])
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="run-writer", daemon=True)
            self._thread.start()
        with self._changed:
            while self._models + len(models) > MAX_QUEUED and self._models and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._queue.append(item)
            self._models += len(models)

    def _work(self) -> None:
        try:
            ending = False
            while not ending:
                ending = self._ending.wait(PAUSE)
                with self._changed:
                    taken, self._queue = self._queue, []
                self._write(taken)
                with self._changed:
                    self._models -= sum(len(item.models) for item in taken)
                    self._changed.notify_all()
        except BaseException as error:  # the training thread raises it, whatever it is
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _write(self, rounds: Sequence[_Round]) -> None:
        """First the models, then the records that mention them, and last the checkpoints, which confirm both."""
        lines: dict[int, list[bytes]] = {}
        checkpoints: dict[int, Checkpoint] = {}  # by cohort; of several, the newest
        for item in rounds:
            line = records.encode(item.record)
            lines.setdefault(item.cohort, []).append(line)
            if item.cohort not in self._digests:
                self._digests[item.cohort] = records.RunningDigest(self._folder.rounds(item.cohort))
            facts = self._digests[item.cohort].add(line)
            for path, model, numbers in item.models:
                # A teacher vouches for all records of its cohort: checkpoints may be deleted.
                own = facts if path == self._folder.teacher(item.cohort) else {}
                self._folder.save(path, model, {**numbers, **own})
            if item.checkpoint:
                tensors, numbers = item.checkpoint
                checkpoints[item.cohort] = tensors, {**numbers, **facts}
        for cohort, new in lines.items():
            records.append_lines(self._folder.rounds(cohort), new)
        if checkpoints:
            self._save_checkpoints(checkpoints)

    def _save_checkpoints(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Each cohort keeps the one before it; older ones go."""
        for cohort in checkpoints:
            files.sync(self._folder.rounds(cohort))
        for cohort, (tensors, numbers) in checkpoints.items():
            path = self._folder.path / "checkpoints" / f"cohort-{cohort:04d}-round-{numbers['round']:06d}.safetensors"
            self._folder.save(path, tensors, numbers, lasting=False)
        files.sync(self._folder.path / "checkpoints")  # once for all of them
        there = sorted((self._folder.path / "checkpoints").glob("cohort-*.safetensors"), reverse=True)
        for _, paths in itertools.groupby(there, lambda path: path.name.partition("-round-")[0]):
            for old in list(paths)[KEPT:]:
                old.unlink(missing_ok=True)


def capture(session: Session, wall_seconds: float) -> Checkpoint:
    """The session's state now, so many real seconds after training began."""
    states, numbers = session.state()
    tensors = {f"{kind}/{name}": value for kind, state in states.items() for name, value in state.items()}
    return files.on_host(tensors), {**numbers, "wall_seconds": round(wall_seconds, 3)}


def _teacher(session: Session) -> tuple[State, dict[str, Any]]:
    """A stopped cohort's model in host memory, and the numbers that are stored with it."""
    numbers = {"cohort": session.cohort, "round": session.round, "best_round": session.best_round}
    return files.on_host(session.teacher()), numbers


def restore(folder: RunFolder, session: Session) -> tuple[float, list[str], int]:
    """Bring a new session to its newest sound checkpoint, or leave it at the start.

    Returns the real seconds of training so far, errors of damaged checkpoints, and the number of rounds that were
    recorded after the checkpoint and are run again.
    """
    damaged = []
    for path in folder.checkpoints(session.cohort):
        try:
            tensors, numbers = folder.load(path)
            records.check(folder.path, folder.rounds(session.cohort), numbers)
        except DamagedError as error:
            damaged.append(str(error))
            path.unlink(missing_ok=True)  # or it would be taken for the newest again
            continue
        states: dict[str, dict[str, object]] = {}
        for name, value in tensors.items():
            kind, _, key = name.partition("/")
            states.setdefault(kind, {})[key] = value
        session.restore(states, numbers)  # type: ignore[arg-type]
        if session.stopped:  # its file may be damaged, and later distillations will read it
            model, stored = _teacher(session)
            facts = {key: value for key, value in numbers.items() if key.endswith(FACTS)}
            folder.save(folder.teacher(session.cohort), model, {**stored, **facts})
        else:
            folder.teacher(session.cohort).unlink(missing_ok=True)  # of rounds that are run again
        return (
            numbers["wall_seconds"],
            damaged,
            records.truncate(folder.rounds(session.cohort), numbers["records_size"]),
        )
    folder.teacher(session.cohort).unlink(missing_ok=True)
    return 0.0, damaged, records.truncate(folder.rounds(session.cohort), 0)
