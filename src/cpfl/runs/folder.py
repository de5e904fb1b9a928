"""The run folder: where the files of a run are, and who may write them.

run.json            schema, versions, engine, cohorts' clients and label counts, fingerprints of the data, published
                    figures; the checksums of itself and of experiment.toml
experiment.toml     every setting, resolved
rounds/             cohort-0003.jsonl: one line per round
models/             the initial model, every cohort's teacher, and the global model (safetensors)
snapshots/          cohort models at regular intervals
checkpoints/        the last two states of every cohort, from which a run is resumed
evaluations.jsonl   stopping rule joint: one line per evaluation of the ensemble of all cohorts
meetings.jsonl      one line per meeting of the cohorts; the merged models are in models/
epochs.jsonl        the distillation, one line per epoch
clients.json        the global model's accuracy for each client
summary.json        the outcome; exists when the run is finished
distillations/      later distillations of the same run
workers.json        engine ray: the workers, their cohorts and their load
log.jsonl           starts and resumes with their machines; rounds that were run again
"""

import fcntl
import hashlib
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cpfl.errors import ChangedError, DamagedError, RunFolderError
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.outcome import read_summary
from cpfl.settings import Experiment, experiment_file
from cpfl.settings.types import is_text
from cpfl.user_files import check_readable, expanded

SCHEMA = 3
# Of run.json: what makes a run this one. It names them itself; those of results/ are older and have the first four.
IDENTITY = ("experiment_checksum", "engine", "fingerprint", "start", "cohorts", "label_counts")
READERS = {1: "install cpfl 0.1 to read it", 2: "begin a new run: cpfl run {}/experiment.toml --out NEW"}
FOLDERS = ("rounds", "models", "snapshots", "checkpoints", "distillations")

_LOCKS: set[int] = set()  # handles of folders that this process trains into


def _release_locks() -> None:
    """A forked worker must not hold its parent's locks: it may outlive it by a moment."""
    for handle in _LOCKS:
        os.close(handle)
    _LOCKS.clear()


os.register_at_fork(after_in_child=_release_locks)


Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, lt=2**63)]


class About(BaseModel):
    """The shape of run.json."""

    model_config = ConfigDict(strict=True)
    engine: str
    model_bytes: Count
    cohort_model_bytes: dict[str, Count]
    fingerprint: dict[str, str]
    start: dict[str, str] = {}
    shape: list[Size]
    inputs: str = "numbers"
    fields: list[dict[str, Any]] = []
    objective: str = "classification"
    metric: str = "accuracy"
    answer: list[Size] = []  # its shape for one sample; empty: one number for each class
    classes: Size
    labels_of_a_sample: Size = 1
    class_names: list[str] | None
    data_folder: str | None
    samples: dict[str, Count]
    cohorts: Annotated[list[list[Count]], Field(min_length=1)]
    label_counts: list[list[int] | None]
    identity: list[str] = list(IDENTITY[:4])

    @model_validator(mode="after")
    def _check(self) -> Self:
        rows = [row for row in self.label_counts if row is not None]
        if self.label_counts and len(self.label_counts) != len(self.cohorts):
            raise ValueError(f"label_counts are of {len(self.label_counts)} cohorts, not of {len(self.cohorts)}")
        if any(len(row) != self.classes for row in rows):
            raise ValueError(f"label_counts are not of {self.classes} classes")
        return self


class RunFolder:
    """Paths and contents of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._about: dict[str, Any] | None = None

    @classmethod
    def create(cls, path: Path, experiment: Experiment, about: Mapping[str, Any]) -> "RunFolder":
        """A new run folder; one that already holds something is never touched."""
        cls.check_free(path)
        folder = cls(path)
        folder.make_folders()
        folder.lock()  # two runs may have found it free at once
        if (path / "run.json").exists():
            folder.unlock()
            cls.check_free(path)
        settings = experiment_file.to_toml(experiment).encode()
        files.write_atomic(path / "experiment.toml", settings)
        digest = hashlib.sha256(settings).hexdigest()
        tree = {"schema": SCHEMA, "versions": versions(), **about, "experiment_checksum": digest, "identity": IDENTITY}
        # run.json comes last: a folder without it never became a run.
        files.write_json(path / "run.json", {**tree, "checksum": files.checksum(tree)})
        return folder

    @staticmethod
    def check_free(path: Path) -> None:
        """Whether a run could be made here, before any work is done for it."""
        name = str(path)
        if not is_text(name):
            raise RunFolderError(f"cannot write {name!r}: a name is text without the character NUL")
        with files.explained(path):
            taken = path.exists() and not (path.is_dir() and all(map(_is_leftover, path.iterdir())))
            longest = os.pathconf(next(p for p in path.absolute().parents if p.is_dir()), "PC_NAME_MAX")
        check_outside(path)
        if taken:
            remedy = "cpfl resume it" if (path / "run.json").is_file() else "move it away"
            raise RunFolderError(f"{path} exists and is not an empty folder: choose another folder, or {remedy}")
        if any(len(os.fsencode(part)) > longest for part in path.parts):
            raise RunFolderError(f"cannot write {path}: a name in it is longer than {longest} bytes")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder of a schema that we can read."""
        path = expanded(path, "the run folder")
        if not (path / "run.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no run.json")
        folder = cls(path)
        folder.about()
        return folder

    def verify(self) -> Self:
        """Refuse settings and facts that were changed after the run was created: they decide its outcome."""
        about, settings = self.about(), self.path / "experiment.toml"
        try:
            check_readable(settings)
            found = hashlib.sha256(settings.read_bytes()).hexdigest()
        except OSError as error:
            raise RunFolderError(f"cannot read {settings}: {error.strerror}") from None
        for path, same in (
            (settings, about.get("experiment_checksum") == found),
            (self.path / "run.json", about.get("checksum") == files.checksum(about)),
        ):
            if not same:
                raise ChangedError(path, self.path)
        return self

    def lock(self, use: str = "trained") -> None:
        """Be the only process that writes into this folder, for as long as this process lives."""
        if self._handle is not None:
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise RunFolderError(f"{self.path} is being {use} by another process") from None
        self._handle = handle
        _LOCKS.add(handle)

    def unlock(self) -> None:
        """Let others train into it."""
        if self._handle is not None:
            _LOCKS.discard(self._handle)
            os.close(self._handle)
            self._handle = None

    def make_folders(self) -> None:
        """Make its folders that are not there: copies made by git and by some archives lack empty ones."""
        with files.explained(self.path):
            for name in FOLDERS:
                if not (self.path / name).is_dir():
                    (self.path / name).mkdir(parents=True, exist_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what a killed process left half-written, also in later distillations; the folder is locked."""
        for folder in (".", *FOLDERS):
            for part in (self.path / folder).glob(".*.part"):
                if part.name != ".report.html.part":  # a report is written without a lock
                    part.unlink(missing_ok=True)
        for other in (self.path / "distillations").glob("*/"):
            with suppress(RunFolderError, OSError):  # it is being distilled, or not ours to write
                later = RunFolder(other)
                later.lock()
                try:
                    later.remove_leftovers()
                finally:
                    later.unlock()

    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return experiment_file.read_stored(self.path / "experiment.toml")

    def about(self) -> dict[str, Any]:
        """What run.json says: engine, cohorts, fingerprints. It never changes, so it is read and checked once."""
        if self._about is None:
            path = self.path / "run.json"
            tree = files.read_json(path)
            schema = tree.get("schema")
            if type(schema) is not int:
                raise DamagedError(f"{path} is damaged: it names no schema")
            if schema != SCHEMA:
                reader = READERS.get(schema, "a newer cpfl wrote it").format(self.path)
                raise RunFolderError(
                    f"{self.path} has schema {schema}; this version of cpfl reads schema {SCHEMA}: {reader}"
                )
            files.check_shape(path, About, tree)
            self._about = tree
        return self._about

    @cached_property
    def identity(self) -> str:
        """What its files carry, so that those of another run are noticed; equal runs have the same one."""
        about = self.about()
        return files.checksum({key: about.get(key) for key in about.get("identity", IDENTITY[:4])})

    def save(self, path: Path, tensors: State, numbers: Mapping[str, Any], lasting: bool = True) -> str:
        """Write tensors and numbers as a file of this run; its checksum."""
        return files.save_tensors(path, tensors, {**numbers, "run": self.identity}, lasting)

    def load(self, path: Path, checksum: str = "") -> tuple[State, dict[str, Any]]:
        """Tensors and numbers of a file of this run; `checksum` is the one that another file says it has."""
        tensors, numbers = files.load_tensors(path, checksum)
        return tensors, self._own(path, numbers)

    def numbers(self, path: Path) -> dict[str, Any]:
        """The numbers of a file of this run, without its tensors."""
        return self._own(path, files.read_numbers(path))

    def _own(self, path: Path, numbers: dict[str, Any]) -> dict[str, Any]:
        if numbers.pop("run", "") != self.identity:
            raise ChangedError(path, self.path, "belongs to another run")
        return numbers

    def log(self, event: str, **facts: Any) -> None:
        """Append to the log of starts and resumes."""
        machine = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": platform.machine()}
        records.repair(self.path / "log.jsonl")
        records.append(self.path / "log.jsonl", {"event": event, **machine, "versions": versions(), **facts})

    def engine(self) -> str:
        """The engine that the run began with."""
        return str(self.about()["engine"])

    def rounds(self, cohort: int) -> Path:
        """A cohort's records."""
        return self.path / "rounds" / f"cohort-{cohort:04d}.jsonl"

    def evaluations(self) -> Path:
        """Evaluations of the ensemble of all cohorts, phase after phase."""
        return self.path / "evaluations.jsonl"

    def meetings(self) -> Path:
        """Meetings of the cohorts, one after the other."""
        return self.path / "meetings.jsonl"

    @property
    def shared(self) -> dict[str, Path]:
        """Records of all cohorts together, by what they are of."""
        return {"evaluations": self.evaluations(), "meetings": self.meetings()}

    def meeting_model(self, number: int, cohort: int | None = None) -> Path:
        """The model that cohorts continued from after a meeting; of a `cohort` that trains a model of its own, that."""
        return self.model(f"meeting-{number:04d}" + ("" if cohort is None else f"-cohort-{cohort:04d}"))

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

    def checkpoints(self, cohort: int) -> list[Path]:
        """A cohort's checkpoints, the newest first."""
        return sorted((self.path / "checkpoints").glob(f"cohort-{cohort:04d}-round-*.safetensors"), reverse=True)

    def summary(self) -> dict[str, Any] | None:
        """The outcome, or None while the run is unfinished."""
        path = self.path / "summary.json"
        return read_summary(path, self.identity) if path.is_file() else None

    def global_state(self, results: Path | None = None) -> State:
        """The global model of the run or of a later distillation: the one that its summary is about."""
        results = results or self.path
        summary = read_summary(results / "summary.json", self.identity)
        return self.load(results / "models" / "global.safetensors", summary["model_checksum"])[0]


def check_outside(path: Path) -> None:
    """Refuse a path in a run folder, also one through a link: all that is there is the run's."""
    for above in Path(os.path.realpath(expanded(path, "out"))).parents:
        if (above / "run.json").is_file():
            raise RunFolderError(f"{path} lies in the run folder {above}: choose a folder outside of it")


def _is_leftover(path: Path) -> bool:
    """Whether a run that was killed before it had a run.json left this; such a folder is free."""
    if path.name in FOLDERS:
        return path.is_dir() and not any(path.iterdir())
    return path.name in {"experiment.toml", ".experiment.toml.part", ".run.json.part"}


def load_state(path: Path) -> State:
    """A model from any run folder."""
    return files.load_tensors(path)[0]


@cache
def versions() -> dict[str, str]:
    """What the run was made with; read once, since every entry is a file to parse."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy")}
    try:
        own = metadata.version("cpfl")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "source"
    return {"cpfl": own, "python": platform.python_version(), **packages}
