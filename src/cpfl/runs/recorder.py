"""One run while it happens: resumes sessions, records rounds and epochs, selects teachers, saves results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpfl.callbacks import Callback
from cpfl.federation.session import ClosedRound, Session
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import Teachers, select_teachers
from cpfl.runs.writer import RunWriter, restore
from cpfl.settings import Distillation, Experiment

if TYPE_CHECKING:
    from cpfl.distillation.results import Distilled
    from cpfl.distillation.student import EpochRecord


class RunRecorder:
    """Keeps the run folder and the callbacks up to date; `results` is where the distillation's files go."""

    def __init__(
        self, folder: RunFolder, experiment: Experiment, callback: Callback, results: Path | None = None
    ) -> None:
        self.folder, self.callback, self._experiment = folder, callback, experiment
        self.results = results or folder.path
        self._written = folder if results is None else RunFolder(results)  # locked while it is written
        self._training: dict[str, float] = {}  # seconds, also before resumes, and samples trained on
        self._teachers: Teachers | None = None
        self._distilling_since = 0.0

    @contextmanager
    def training(self, sessions: Sequence[Session]) -> Iterator[Callable[[Session, ClosedRound], None]]:
        """Bring the sessions to where the run folder is, and record every round that is closed meanwhile."""
        spent = self._resume(sessions)
        self.callback.on_start(sessions)
        began = time.perf_counter()

        def on_round(session: Session, closed: ClosedRound) -> None:
            writer.write(session, closed)
            if self.callback.on_round(session, closed):
                for each in sessions:
                    each.stop_request = "callback"

        with RunWriter(self.folder, self._experiment.checkpoint_seconds, spent) as writer:
            yield on_round
        seconds = spent + time.perf_counter() - began
        self._training = {"seconds": seconds, "samples": sum(session.samples for session in sessions)}

    def _resume(self, sessions: Sequence[Session]) -> float:
        """The seconds of training until the newest checkpoint."""
        spent, rounds, again = 0.0, 0, list[dict[str, int]]()
        for session in sessions:
            seconds, damaged, repeated = restore(self.folder, session)
            spent, rounds = max(spent, seconds), rounds + repeated
            for damage in damaged:
                self.callback.on_message(f"{damage}; continuing from round {session.round}")
            if repeated:
                last = session.round + repeated
                again.append({"cohort": session.cohort, "first_round": session.round + 1, "last_round": last})
        if again:
            self.folder.log("run again", run_again=again)
            self.callback.on_message(
                f"closed after the last checkpoint and run again: {rounds} rounds of {len(again)} cohorts"
            )
        return spent

    def teachers(self, settings: Distillation, sessions: Sequence[Session] = ()) -> Teachers:
        """The cohort models that these settings select; old results of another distillation go."""
        self._distilling_since = time.perf_counter()
        self._teachers = chosen = select_teachers(self.folder, settings, sessions)
        if chosen.untrained:
            moment = f"{chosen.hours:.2f} h"
            self.callback.on_message(f"no cohort has a snapshot before {moment}: these teachers are untrained")
        with files.explained(self.results):
            (self.results / "models").mkdir(parents=True, exist_ok=True)
        if self._written is not self.folder:
            self._written.lock("distilled")
            self._written.remove_leftovers()
        (self.results / "summary.json").unlink(missing_ok=True)  # it must never describe another model
        records.truncate(self.results / "epochs.jsonl", 0)
        return chosen

    def unlock(self) -> None:
        """Let others write the results."""
        self._written.unlock()

    def on_epoch(self, record: EpochRecord) -> None:
        """Record an epoch of the student."""
        records.append(self.results / "epochs.jsonl", asdict(record))
        self.callback.on_epoch(record)

    def save(self, outcome: Distilled, **more: Any) -> dict[str, Any]:
        """Write the global model and what was measured of it; the summary comes last.

        It has accuracies in per cent, virtual hours, CPU hours, and GB of 10⁹ bytes.
        """
        assert self._teachers is not None, "teachers were selected"
        path = self.results / "models" / "global.safetensors"
        checksum = self.folder.save(path, outcome.student, {"accuracy": outcome.accuracies["student_accuracy"]})
        files.write_json(self.results / "clients.json", {"clients": outcome.client_accuracies})
        seconds = time.perf_counter() - self._distilling_since
        if trained := self._training:
            seconds += trained["seconds"]
            more["samples_per_second"] = round(trained["samples"] / trained["seconds"], 1)
        experiment, teachers, scores = self._experiment, self._teachers, outcome.accuracies
        summary = {
            "name": experiment.name,
            "cohorts": experiment.cohorts,
            "clients": experiment.clients,
            "seed": experiment.seed,
            **scores,
            "by_cohort": [{**a, **b} for a, b in zip(teachers.accounts, scores["by_cohort"], strict=True)],
            "teachers": teachers.cohorts,
            **teachers.costs,
            "distill_seconds": round(outcome.seconds, 3),
            "wall_seconds": round(seconds, 3),
            "model_checksum": checksum,
            "run": self.folder.identity,
            **more,
        }
        summary["checksum"] = files.checksum(summary)
        files.write_json(self.results / "summary.json", summary)
        return summary
