"""tune.json, what a tune leaves: trials with their curves, fronts, importances, finalists, the recommendation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from cpfl.errors import RunFolderError
from cpfl.runs import files
from cpfl.tuning.goal import COSTS, Curve, Goal, Point, front
from cpfl.user_files import expanded

FILE = "tune.json"
SCHEMA = 1
ENDED = ("complete", "pruned", "failed", "repeated")


@dataclass(frozen=True)
class Trial:
    """One run of a tune."""

    number: int
    settings: Mapping[str, Any]  # what is searched of them
    reference: str = ""
    state: str = "running"  # or one of ENDED
    curve: Curve = ()
    error: str = ""
    same_as: int | None = None  # the trial with the same experiment
    experiment: str = ""  # the checksum of its experiment, by which equal ones are found

    @property
    def path(self) -> str:
        """Its run folder in the tune's."""
        return f"trials/{self.number:04d}"

    @property
    def cohorts(self) -> int:
        """n, where it is searched."""
        return int(self.settings.get("cohorts", 0))

    @property
    def text(self) -> str:
        """Its settings in words."""
        return words(self.settings)

    def tree(self, goal: Goal) -> dict[str, Any]:
        """As tune.json has it."""
        best = goal.best(self.curve)
        own = {key: value for key, value in vars(self).items() if key != "curve"}
        return {
            **own,
            "path": self.path,
            "text": self.text,
            "cohorts": self.cohorts,
            "curve": [asdict(point) for point in self.curve],
            "best": None if best is None else asdict(best),
            "value": None if best is None else goal.value(self.curve),
            "feasible": best is not None,
        }

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Trial":
        """From tune.json."""
        names = {name for name in cls.__dataclass_fields__ if name != "curve"}
        own = {name: tree[name] for name in names}
        return cls(**own, curve=[Point(**point) for point in tree["curve"]])


WORDS = {
    "cohorts": "n = {}",
    "assignment.rule": "cohorts by {}",
    "meetings.rule": "meetings {}",
    "meetings.interval": "every {}",
    "federation.deadline": "deadline {} s",
    "federation.straggler_policy": "stragglers {}",
    "federation.participation": "participation {}",
    "federation.server": "server {}",
    "federation.server_args.lr": "server lr {}",
    "federation.local_epochs": "local epochs {}",
    "federation.local_steps": "local steps {}",
    "distillation.weights": "teacher weights {}",
}
SILENT = {"federation.deadline": 0, "meetings.rule": "none", "federation.participation": 1.0, "meetings.final": "merge"}


def words(settings: Mapping[str, Any]) -> str:
    """Settings for a person, without those that leave something out."""
    told = {key: value for key, value in settings.items() if SILENT.get(key) != value}
    return ", ".join(WORDS.get(key, f"{key} = {{}}").format(_plain(value)) for key, value in told.items())


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Outcome:
    """All of a tune so far."""

    state: str
    request: Mapping[str, Any]  # what the tune was started with, by which another one is told apart
    goal: Goal
    trials: Mapping[int, Trial]
    space: Sequence[Mapping[str, Any]]
    planned: int
    name: str
    metric: str
    importances: Sequence[Mapping[str, Any]] = ()
    finalists: Sequence[Mapping[str, Any]] = ()
    recommendation: Mapping[str, Any] | None = None
    paragraph: str = ""
    tests: Sequence[Mapping[str, Any]] = field(default_factory=list)

    def with_trial(self, trial: Trial) -> "Outcome":
        """With a trial added or replaced."""
        return replace(self, trials={**self.trials, trial.number: trial})

    def write(self, folder: Path) -> None:
        """tune.json, whole or not at all."""
        curves = {number: trial.curve for number, trial in self.trials.items() if trial.state in ("complete", "pruned")}
        tree = {
            "schema": SCHEMA,
            "state": self.state,
            "name": self.name,
            "metric": self.metric,
            **self.goal.tree(),
            "trials_planned": self.planned,
            "request": self.request,
            "space": self.space,
            "trials": [self.trials[number].tree(self.goal) for number in sorted(self.trials)],
            "front": {cost: front(curves, cost) for cost in COSTS},
            "importances": self.importances,
            "finalists": self.finalists,
            "recommendation": self.recommendation,
            "paragraph": self.paragraph,
            "tests": self.tests,
        }
        tree["checksum"] = files.checksum(json.loads(json.dumps(tree, default=list)))
        files.write_json(folder / FILE, tree)


class _Shape(BaseModel):
    """Keys of tune.json that others read."""

    model_config = ConfigDict(strict=True)
    state: str
    name: str
    metric: str
    goal: dict[str, str]
    limits: dict[str, float | None]
    trials_planned: int
    space: list[dict[str, Any]]
    trials: list[dict[str, Any]]
    front: dict[str, list[dict[str, Any]]]
    importances: list[dict[str, Any]]
    finalists: list[dict[str, Any]]
    recommendation: dict[str, Any] | None
    paragraph: str
    tests: list[dict[str, Any]]
    request: dict[str, Any]
    checksum: str


def read(folder: Path) -> dict[str, Any]:
    """The content of tune.json in a folder, its shape and checksum checked."""
    path = folder / FILE
    if not path.is_file():
        raise RunFolderError(f"{folder} is no tune: it has no {FILE}")
    tree = files.read_json(path)
    if tree.get("schema") != SCHEMA:
        raise RunFolderError(f"{path} has schema {tree.get('schema')}; this version of cpfl reads {SCHEMA}")
    files.check_shape(path, _Shape, tree)
    if tree["checksum"] != files.checksum(tree):
        raise RunFolderError(f"{path} was changed after it was written: restore it, or choose another folder")
    return tree


@dataclass(frozen=True)
class TuneResult:
    """A tune's folder, opened for reading."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> "TuneResult":
        """An existing tune."""
        found = cls(expanded(Path(path), "the folder"))
        read(found.path)
        return found

    @property
    def tree(self) -> dict[str, Any]:
        """All of tune.json."""
        return read(self.path)

    @property
    def recommended(self) -> Path:
        """The recommended experiment, which `cpfl run` takes."""
        return self.path / "recommended.toml"

    @property
    def paragraph(self) -> str:
        """What to do with this fleet, and how sure that is."""
        return str(self.tree["paragraph"])

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Every trial with its curve."""
        return list(self.tree["trials"])

    @property
    def finalists(self) -> list[dict[str, Any]]:
        """The trials whose result was made: a student, a merged model or the only cohort's model."""
        return list(self.tree["finalists"])

    @property
    def tests(self) -> list[dict[str, Any]]:
        """Test accuracy of the recommended experiment and of the references, over fresh seeds."""
        return list(self.tree["tests"])
