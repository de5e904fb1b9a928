"""The run folder: where the files of a run are, and who may write them.

run.json            schema, versions, cohorts' clients and label counts, fingerprints of the data, published figures
experiment.toml     every setting, resolved
rounds/             cohort-0003.jsonl: one line per round
models/             the initial model, every cohort's teacher, and the global model (safetensors)
snapshots/          cohort models at regular intervals
checkpoints/        the last two states of every cohort, from which a run is resumed
evaluations.jsonl   stopping rule joint: one line per evaluation of the ensemble of all cohorts
epochs.jsonl        the distillation, one line per epoch
clients.json        the global model's accuracy for each client
summary.json        the outcome; exists when the run is finished
distillations/      later distillations of the same run
workers.json        engine ray: the workers, their cohorts and their load
log.jsonl           starts and resumes with their machines; rounds that were run again
"""

import fcntl
import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from cpfl.errors import RunFolderError
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.settings import Experiment, experiment_file

SCHEMA = 2
READERS = {1: "0.1"}  # versions of cpfl that read older schemas
ABOUT = ("cohorts", "model_bytes", "fingerprint", "shape", "classes", "data_folder")  # keys that every run.json has
FOLDERS = ("rounds", "models", "snapshots", "checkpoints", "distillations")

_LOCKS: set[int] = set()  # handles of folders that this process trains into


def _release_locks() -> None:
    """A forked worker must not hold its parent's locks: it may outlive it by a moment."""
    for handle in _LOCKS:
        os.close(handle)
    _LOCKS.clear()


os.register_at_fork(after_in_child=_release_locks)


class RunFolder:
    """Paths and contents of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, experiment: Experiment, about: Mapping[str, Any]) -> "RunFolder":
        """A new run folder; one that already holds something is never touched."""
        cls.check_free(path)
        with files.explained(path):
            for name in FOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        folder.lock()  # two runs may have found it free at once
        if (path / "run.json").exists():
            folder.unlock()
            cls.check_free(path)
        files.write_atomic(path / "experiment.toml", experiment_file.to_toml(experiment).encode())
        # run.json comes last: a folder without it never became a run.
        files.write_json(path / "run.json", {"schema": SCHEMA, "versions": versions(), **about})
        return folder

    @staticmethod
    def check_free(path: Path) -> None:
        """Whether a run could be made here, before any work is done for it."""
        with files.explained(path):
            taken = path.exists() and not (path.is_dir() and all(map(_is_leftover, path.iterdir())))
            longest = os.pathconf(next(p for p in path.absolute().parents if p.is_dir()), "PC_NAME_MAX")
        if taken:
            raise RunFolderError(f"{path} exists and is not an empty folder: choose another folder, or cpfl resume it")
        if any(len(os.fsencode(part)) > longest for part in path.parts):
            raise RunFolderError(f"cannot write {path}: a name in it is longer than {longest} bytes")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder of a schema that we can read."""
        if not (path / "run.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no run.json")
        folder = cls(path)
        about = folder.about()
        schema = about.get("schema")
        if not isinstance(schema, int):
            raise RunFolderError(f"{path / 'run.json'} is damaged: it names no schema")
        if schema != SCHEMA:
            reader = f"install cpfl {READERS[schema]} to read it" if schema in READERS else "a newer cpfl wrote it"
            raise RunFolderError(f"{path} has schema {schema}; this version of cpfl reads schema {SCHEMA}: {reader}")
        if lacking := [key for key in ABOUT if key not in about]:
            raise RunFolderError(f"{path / 'run.json'} is damaged: it lacks {', '.join(lacking)}")
        return folder

    def lock(self) -> None:
        """Be the only process that trains into this folder, for as long as this process lives."""
        if self._lock is not None:
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise RunFolderError(f"{self.path} is being trained by another process") from None
        self._lock = handle
        _LOCKS.add(handle)

    def unlock(self) -> None:
        """Let others train into it."""
        if self._lock is not None:
            _LOCKS.discard(self._lock)
            os.close(self._lock)
            self._lock = None

    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return experiment_file.read_stored(self.path / "experiment.toml")

    def about(self) -> dict[str, Any]:
        """Versions, cohorts, fingerprints."""
        return files.read_json(self.path / "run.json")

    def log(self, event: str, **facts: Any) -> None:
        """Append to the log of starts and resumes."""
        machine = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": platform.machine()}
        records.repair(self.path / "log.jsonl")
        records.append(self.path / "log.jsonl", {"event": event, **machine, "versions": versions(), **facts})

    def engine(self) -> str:
        """The engine the run began with; empty before it has."""
        began = [line["engine"] for line in records.read(self.path / "log.jsonl") if "engine" in line]
        return str(began[0]) if began else ""

    def rounds(self, cohort: int) -> Path:
        """A cohort's records."""
        return self.path / "rounds" / f"cohort-{cohort:04d}.jsonl"

    def evaluations(self) -> Path:
        """Evaluations of the ensemble of all cohorts, phase after phase."""
        return self.path / "evaluations.jsonl"

    def model(self, name: str) -> Path:
        """start, global, or a cohort's teacher."""
        return self.path / "models" / f"{name}.safetensors"

    def own_start(self, cohort: int) -> Path:
        """Where a cohort that trains another model than the experiment's began."""
        return self.model(f"start-{cohort:04d}")

    def start(self, cohort: int) -> Path:
        """Where a cohort began: the common start, or that of its own model."""
        own = self.own_start(cohort)
        return own if own.is_file() else self.model("start")

    def teacher(self, cohort: int) -> Path:
        """A stopped cohort's model."""
        return self.model(f"cohort-{cohort:04d}")

    def snapshot(self, cohort: int, round: int) -> Path:
        """A cohort's model as it was after a round."""
        return self.path / "snapshots" / f"cohort-{cohort:04d}-round-{round:06d}.safetensors"

    def snapshots(self, cohort: int) -> list[Path]:
        """A cohort's snapshots, oldest first."""
        return sorted((self.path / "snapshots").glob(f"cohort-{cohort:04d}-round-*.safetensors"))

    def summary(self) -> dict[str, Any] | None:
        """The outcome, or None while the run is unfinished."""
        path = self.path / "summary.json"
        return files.read_json(path) if path.is_file() else None


def _is_leftover(path: Path) -> bool:
    """Whether a run that was killed before it had a run.json left this; such a folder is free."""
    if path.name in FOLDERS:
        return path.is_dir() and not any(path.iterdir())
    return path.name in {"experiment.toml", ".experiment.toml.part", ".run.json.part"}


def load_state(path: Path) -> State:
    """A model from a run folder."""
    return files.load_tensors(path)[0]


def versions() -> dict[str, str]:
    """What the run was made with."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy")}
    try:
        own = metadata.version("cpfl")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "source"
    return {"cpfl": own, "python": platform.python_version(), **packages}
