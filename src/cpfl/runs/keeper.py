"""Writes a run down as it goes: records, snapshots, teachers, checkpoints."""

from __future__ import annotations

import time

from cpfl.federation.session import Closed, Session
from cpfl.runs import checkpoint, files, records
from cpfl.runs.folder import RunFolder


class Keeper:
    """Told of every closed round; after a kill, resume goes on from what it wrote."""

    def __init__(self, folder: RunFolder, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._saved: dict[int, float] = {}

    def keep(self, session: Session, closed: Closed) -> None:
        """Write what this round brought: first its models, so that whoever reads of them finds them, then the record,
        and last a checkpoint, which vouches for all before it."""
        for snapshot in closed.snapshots:
            path = self._folder.snapshot(snapshot.cohort, snapshot.round)
            files.save_tensors(path, snapshot.model, {"round": snapshot.round, "clock": snapshot.clock})
        if session.stopped:
            numbers = {"cohort": session.cohort, "round": session.round, "best_round": session.best_round}
            files.save_tensors(self._folder.teacher(session.cohort), session.teacher(), numbers)
        size = records.append(self._folder.rounds(session.cohort), closed.record.as_dict())
        now = time.monotonic()
        due = now - self._saved.setdefault(session.cohort, now if self._seconds else 0.0) >= self._seconds
        if due or session.stopped:
            checkpoint.save(self._folder, session, size)
            self._saved[session.cohort] = time.monotonic()
