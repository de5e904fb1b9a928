"""Which runs a sweep is made of, what their folders are called, and the file from which it goes on.

sweep.json holds the experiment, what of it was given where a recipe or a server would say otherwise, and, for every
run's folder, the settings in which it differs. The same command again, or one over more values into the same folder,
adds to it; `cpfl resume DIR` needs nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpfl import api, experiment_file
from cpfl.errors import RunFolderError, SettingError
from cpfl.experiment import Experiment
from cpfl.runs import files

FILE = "sweep.json"
SCHEMA = 1
LONGEST = 40  # characters of a value in a folder's name
LONGEST_NAME = 120


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep: folder names, and what each sets."""

    base: Experiment
    runs: Mapping[str, Mapping[str, Any]]
    engine: str = "auto"
    data: str | None = None  # the folder of data sets, if one was named
    given: Mapping[str, Any] = field(default_factory=dict)  # of the base: holds with every recipe and server

    def experiment(self, name: str) -> Experiment:
        """One run's experiment."""
        return experiment_file.with_settings(self.base, {**self.given, **self.runs[name]})

    def varied(self, name: str) -> dict[str, Any]:
        """What a run sets beside n and the seed."""
        return {key: value for key, value in self.runs[name].items() if key not in ("cohorts", "seed")}


def default_folder(base: Experiment) -> Path:
    """A new folder in runs/ that sorts by time."""
    return api.RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{base.name}-sweep"


def grid(
    base: Experiment,
    cohorts: Sequence[int] | None,
    seeds: Sequence[int] | None,
    over: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Every combination, each one checked; equal ones count once. `settings` were given and are in the base already:
    they outlast a recipe or a server that a combination takes."""
    values: dict[str, Sequence[Any]] = {**over}
    for key, option, given in (("seed", "seeds", seeds), ("cohorts", "cohorts", cohorts)):
        if given is not None and key in over:
            raise SettingError(f"{key} is given twice: take --{option} or --over {key}, not both")
        values[key] = given if given is not None else over.get(key, [getattr(base, key)])
    for key, some in values.items():
        if isinstance(some, str) or not some:
            raise SettingError(f"a sweep over {key} needs at least one value")
    if cohorts is None and seeds is None and not over:
        raise SettingError("a sweep needs something to vary: --cohorts 1,2,4, --seeds 90,91 or --over KEY=VALUE,VALUE")
    # n varies fastest: the trade-off over n is there after the first few runs.
    keys = [*sorted(over.keys() - {"cohorts", "seed"}), "seed", "cohorts"]
    named, tree = _leaves(settings or {}), base.model_dump(mode="json")
    kept = {key: at(tree, key) for key in experiment_file.FOLLOWING if key in named}
    runs: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*(values[key] for key in keys)):
        chosen = experiment_file.with_settings(base, {**kept, **dict(zip(keys, combination, strict=True))})
        tree = chosen.model_dump(mode="json")
        own = {key: at(tree, key) for key in keys}  # as they are stored: 1 and 1.0 are one value
        runs[folder_name(own)] = own
    return Plan(base, runs, given=kept)


def folder_name(settings: Mapping[str, Any]) -> str:
    """Tells what is varied; the same settings always give the same name, others another."""
    name = f"n{settings['cohorts']:03d}-seed{settings['seed']}"
    for key in sorted(settings.keys() - {"cohorts", "seed"}):
        name += f"-{key}-{_word(settings[key])}"
    safe = re.sub(r"[^\w.+=-]", "_", name, flags=re.ASCII)
    if safe != name or len(name) > LONGEST_NAME:
        safe = f"{safe[:LONGEST_NAME]}-{_digest(name)}"
    return safe


def stored(where: Path) -> Plan | None:
    """The plan of the sweep in a folder; None: there is none."""
    if not (where / FILE).is_file():
        return None
    tree = files.read_json(where / FILE)
    if tree.get("schema") != SCHEMA:
        raise RunFolderError(f"{where / FILE} has schema {tree.get('schema')}; this version of cpfl reads {SCHEMA}")
    if not isinstance(tree.get("runs"), dict) or not isinstance(tree.get("experiment"), dict):
        raise RunFolderError(f"{where / FILE} is damaged: it lacks its experiment or its runs")
    base, given = Experiment(**tree["experiment"]), tree.get("given", {})
    return Plan(base, tree["runs"], tree.get("engine", "auto"), tree.get("data"), given)


def store(where: Path, plan: Plan) -> None:
    """Write the plan down, together with what the folder already held."""
    with files.explained(where):
        where.mkdir(parents=True, exist_ok=True)
    tree = {
        "schema": SCHEMA,
        "engine": plan.engine,
        "data": plan.data,
        "runs": plan.runs,
        "given": plan.given,
        "experiment": plan.base.model_dump(mode="json"),
    }
    if not (where / FILE).is_file() or files.read_json(where / FILE) != tree:  # what is done is not touched again
        files.write_json(where / FILE, tree)


def joined(plan: Plan, where: Path) -> Plan:
    """The plan with the runs that the folder already holds; they must be of the same experiment."""
    before = stored(where)
    if before is None:
        return plan
    tree = before.base.model_dump(mode="json")
    keys = {key for p in (plan, before) for settings in p.runs.values() for key in settings}
    same = experiment_file.with_settings(plan.base, {**plan.given, **{key: at(tree, key) for key in keys}})
    _check_equal(same, before.base, where)
    both = replace(plan, base=before.base, given=before.given, runs={**before.runs, **plan.runs})
    for name in plan.runs:  # as going on with the folder will make it
        _check_equal(plan.experiment(name), both.experiment(name), where)
    return both


def _check_equal(wanted: Experiment, held: Experiment, where: Path) -> None:
    if wanted != held:
        one, other = wanted.model_dump(mode="json"), held.model_dump(mode="json")
        differs = next(key for key in _leaves(other) if at(one, key) != at(other, key))
        raise RunFolderError(
            f"{where} holds a sweep with other settings ({differs} = {at(other, differs)!r}): choose another --out"
        )


def at(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _leaves(tree: Mapping[str, Any], above: str = "") -> list[str]:
    found: list[str] = []
    for key, value in tree.items():
        found += _leaves(value, f"{above}{key}.") if isinstance(value, dict) and value else [f"{above}{key}"]
    return found


def _word(value: Any) -> str:
    """A value in a folder's name; where it had to be changed to fit, a digest tells it from its like."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True).removesuffix(".0")
    word = re.sub(r"[^\w.+=-]+", "_", text, flags=re.ASCII)
    if word == text and 0 < len(word) <= LONGEST and not (isinstance(value, str) and _is_json(text)):
        return word
    return f"{word[:LONGEST]}-{_digest(json.dumps(value, sort_keys=True))}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
