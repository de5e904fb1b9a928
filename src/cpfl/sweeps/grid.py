"""The grid of a sweep: its runs, the names of their folders, and the file sweep.json.

sweep.json holds the base experiment, the settings that were given for all runs, and the settings of each run. The same
command again, or one over more values into the same folder, adds to it. `cpfl resume DIR` needs nothing else.
"""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from cpfl import api
from cpfl.errors import RunFolderError, SettingError
from cpfl.runs import files
from cpfl.settings import Experiment, effects, experiment_file
from cpfl.task.loading import absolute

FILE = "sweep.json"
SCHEMA = 3
MAX_VALUE = 40  # characters of a value in a folder's name
MAX_NAME = 120
JSON_WORD = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null|NaN|-?Infinity", re.ASCII)


class SweepFile(BaseModel):
    """The shape of sweep.json."""

    model_config = ConfigDict(strict=True)
    engine: str
    data: str | None
    runs: dict[str, dict[str, Any]]
    given: dict[str, Any]
    experiment: dict[str, Any]
    checksum: str


@dataclass(frozen=True)
class SweepGrid:
    """All runs of a sweep: their folders' names, and the settings of each."""

    base: Experiment
    runs: Mapping[str, Mapping[str, Any]]
    engine: str = "auto"
    data: str | None = None  # the folder of data sets, if one was given
    given: Mapping[str, Any] = field(default_factory=dict)  # settings of all runs, whatever recipe or server they use

    @classmethod
    def from_values(
        cls,
        base: Experiment,
        cohorts: Sequence[int] | None,
        seeds: Sequence[int] | None,
        over: Mapping[str, Sequence[Any]],
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """Every combination of the values, each one checked; equal ones count once.

        `settings` are those of the base that were given explicitly: they stay where a combination takes another recipe
        or server.
        """
        values: dict[str, Sequence[Any]] = {**over}
        for key, argument, given in (("seed", "seeds", seeds), ("cohorts", "cohorts", cohorts)):
            if given is not None and key in over:
                raise SettingError(f"{key} is given twice: in {argument} and in over")
            values[key] = given if given is not None else over.get(key, [getattr(base, key)])
        for key, some in values.items():
            if isinstance(some, str) or not some:
                raise SettingError(f"a sweep over {key} needs at least one value")
        if cohorts is None and seeds is None and not over:
            raise SettingError("a sweep needs something to vary: several values of cohorts, seeds or over")
        # n varies fastest: the trade-off over n is known after the first few runs.
        keys = [*sorted(over.keys() - {"cohorts", "seed"}), "seed", "cohorts"]
        tree = base.model_dump(mode="json")
        held = effects.given(base)  # the others have no effect there, but may have one in a combination
        kept = {k: value_of(tree, k) if k in held else value for k, value in effects.leaves(settings or {}).items()}
        runs: dict[str, dict[str, Any]] = {}
        experiments = []
        for combination in itertools.product(*(values[key] for key in keys)):
            own = {**kept, **dict(zip(keys, combination, strict=True))}
            experiments.append(experiment_file.with_settings(base, own, strict=False))
            tree = experiments[-1].model_dump(mode="json")
            own = {key: value_of(tree, key) for key in keys}  # as they are stored: 1 and 1.0 are one value
            runs[folder_name(own)] = own
        effects.check(experiments, [*kept, *over])  # a setting may have no effect in some runs, but not in all
        return cls(base, runs, given=kept)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The grid of the sweep in a folder; None: there is none."""
        path = folder / FILE
        if not path.is_file():
            return None
        tree = files.read_json(path)
        if tree.get("schema") != SCHEMA:
            raise RunFolderError(f"{path} has schema {tree.get('schema')}; this version of cpfl reads {SCHEMA}")
        files.check_shape(path, SweepFile, tree)
        if tree["checksum"] != files.checksum(tree):
            raise RunFolderError(
                f"{path} was changed after it was written: restore it, or give the settings to cpfl sweep with another "
                "--out"
            )
        base = Experiment(**tree["experiment"])
        return cls(base, tree["runs"], tree["engine"], tree["data"], tree["given"])

    def write(self, folder: Path) -> None:
        """Write sweep.json, unless it holds the same already."""
        with files.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for part in folder.glob(".*.png.part"):  # a sweep that was killed while it drew its pictures
                part.unlink(missing_ok=True)
        tree = {"schema": SCHEMA, "engine": self.engine, "data": self.data, "runs": self.runs, "given": self.given}
        tree["experiment"] = self.base.model_dump(mode="json")
        tree["checksum"] = files.checksum(tree)
        if not (folder / FILE).is_file() or files.read_json(folder / FILE) != tree:
            files.write_json(folder / FILE, tree)

    def merged(self, folder: Path) -> "SweepGrid":
        """The grid with the runs that the folder already has, which must be of the same experiment."""
        before = SweepGrid.read(folder)
        if before is None:
            return self
        tree = before.base.model_dump(mode="json")
        varied = {key for grid in (self, before) for settings in grid.runs.values() for key in settings}
        # Arguments that only its runs set are not there.
        same = {**self.given, **{key: value for key in varied if (value := value_of(tree, key)) is not None}}
        _check_equal(experiment_file.with_settings(self.base, same, strict=False), before.base, folder)
        both = replace(self, base=before.base, given=before.given, runs={**before.runs, **self.runs})
        for name in self.runs:  # as resuming the sweep would run it
            _check_equal(self.experiment(name), both.experiment(name), folder)
        return both

    def experiment(self, name: str) -> Experiment:
        """One run's experiment."""
        return absolute(experiment_file.with_settings(self.base, {**self.given, **self.runs[name]}, strict=False))

    def resolved(self, folder: Path, device: str) -> "SweepGrid":
        """The grid with the arithmetic that auto meant when the sweep in the folder began, or means on this device."""
        before = SweepGrid.read(folder)
        base = self.base.resolved(device) if before is None else self.base.with_precision_of(before.base)
        return replace(self, base=base)

    def varied(self, name: str) -> dict[str, Any]:
        """What a run sets beside n and the seed."""
        return {key: value for key, value in self.runs[name].items() if key not in ("cohorts", "seed")}


def default_folder(base: Experiment) -> Path:
    """A new folder in runs/ that sorts by time."""
    return api.RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{base.name}-sweep"


def folder_name(settings: Mapping[str, Any]) -> str:
    """A folder's name from what is varied: the same settings give the same name, others another."""
    name = f"n{settings['cohorts']:03d}-seed{settings['seed']}"
    for key in sorted(settings.keys() - {"cohorts", "seed"}):
        name += f"-{key}-{_value_name(settings[key])}"
    safe = re.sub(r"[^\w.+=-]", "_", name, flags=re.ASCII)
    return safe if safe == name and len(name) <= MAX_NAME else f"{safe[:MAX_NAME]}-{_digest(name)}"


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _check_equal(wanted: Experiment, found: Experiment, folder: Path) -> None:
    wanted = wanted.with_precision_of(found)
    if wanted != found:
        one, other = effects.leaves(wanted.model_dump(mode="json")), effects.leaves(found.model_dump(mode="json"))
        differs = next(key for key in [*other, *one] if one.get(key) != other.get(key))
        setting = f"{differs} = {other.get(differs)!r}"
        raise RunFolderError(f"{folder} holds a sweep with other settings ({setting}): choose another folder")


def _value_name(value: Any) -> str:
    """A value in a folder's name; where it does not fit as it is, a digest makes it unique."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True).removesuffix(".0")
    word = re.sub(r"[^\w.+=-]+", "_", text, flags=re.ASCII)
    if word == text and 0 < len(word) <= MAX_VALUE and not (isinstance(value, str) and JSON_WORD.fullmatch(text)):
        return word
    return f"{word[:MAX_VALUE]}-{_digest(json.dumps(value, sort_keys=True))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
