"""What is searched: settings with values or ranges. The default space follows from the experiment and its fleet."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from cpfl.errors import SettingError, first_line, quoted
from cpfl.federation.selection.base import round_seconds
from cpfl.settings import Experiment, effects, experiment_file
from cpfl.settings.describe import find
from cpfl.settings.experiment import fields, unknown_key
from cpfl.task.task import Task
from cpfl.user_files import check_readable, expanded

COHORTS = (1, 2, 4, 8, 16)
QUANTILES = (0.5, 0.75, 0.9)  # of the clients' round times: deadlines
MEETINGS = (40, 10)  # meetings within the hours that are allowed
MAX_BYTES = 1_000_000  # of a file
Choose = Callable[["Dimension"], Any]


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched: its values, or a range of numbers."""

    key: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    when: str = ""  # a condition as of `settings.When`; else the value has no effect

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if self.values:
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high

    def tree(self) -> dict[str, Any]:
        """As tune.json has it."""
        if self.values:
            return {"key": self.key, "values": self.values, "low": None, "high": None, "log": None, "when": self.when}
        return {**vars(self), "values": None}


Space = Sequence[Dimension]


def settings_of(space: Space, base: Experiment, choose: Choose) -> dict[str, Any]:
    """The settings of a trial, each chosen value that has an effect beside the earlier ones."""
    settings: dict[str, Any] = {}
    current = base
    for one in space:
        value = choose(one)  # always, so that all trials have the same parameters
        needs = [*filter(None, [one.when]), *effects.conditions(one.key)]
        if all(map(current.holds, needs)):
            settings[one.key] = value
            current = _with(current, one.key, value)
    if settings.get("meetings.rule", "none") != "none":
        settings["meetings.final"] = "merge"  # what meets is one model already
    return settings


def _with(experiment: Experiment, key: str, value: Any) -> Experiment:
    """The experiment with another value, not checked: what belongs to it may be chosen later."""
    section, _, leaf = key.rpartition(".")
    if "." in section or section.endswith("_args"):  # no condition speaks of arguments
        return experiment
    if section:
        key, value = section, getattr(experiment, section).model_copy(update={leaf: value})
    return experiment.model_copy(update={key: value})


def default_space(base: Experiment, task: Task, hours: float | None) -> list[Dimension]:
    """Cohorts, who is with whom, meetings, stragglers, participation, the server, local work, teacher weights."""
    own = base.federation
    counts = tuple(n for n in COHORTS if n == 1 or 2 * n <= base.clients)
    found = [Dimension("cohorts", counts)]
    rules = ("random", "speed", "label-balanced") if task.data.objective.has_classes else ("random", "speed")
    found.append(Dimension("assignment.rule", rules, when="cohorts != 1"))
    if not base.model.by_cohort:
        found.append(Dimension("meetings.rule", ("none", "mean", "outer")))
        intervals: tuple[str, ...] = ("5 rounds", "25 rounds")
        if hours is not None:
            intervals = tuple(seconds_text(hours * 3600 / count) for count in MEETINGS)
        found.append(Dimension("meetings.interval", intervals))
    if not own.buffer_size:
        found.append(Dimension("federation.deadline", (0, *deadlines(base, task))))
        found.append(Dimension("federation.straggler_policy", ("drop", "partial")))
    if not own.participants and own.selection != "all":
        found.append(Dimension("federation.participation", (0.25, 0.5, 1.0)))
    found.append(Dimension("federation.server", ("mean", "fedavgm", "fedadam")))
    found.append(Dimension("federation.server_args.lr", (0.3, 1.0), when="federation.server = fedavgm"))
    key = "federation.local_steps" if own.local_steps else "federation.local_epochs"
    work = own.local_steps or own.local_epochs
    found.append(Dimension(key, tuple(sorted({max(1, work // 2), work, 2 * work, 4 * work}))))
    found.append(Dimension("distillation.weights", ("labels", "uniform"), when="cohorts != 1"))
    return found


def deadlines(base: Experiment, task: Task) -> list[float]:
    """Seconds within which half of the clients, three quarters and nine tenths end a round."""
    seconds = round_seconds(base.federation, task.fleet, task.data.clients.training_sizes, task.model_bytes)
    return sorted({_rounded(float(np.quantile(seconds, share))) for share in QUANTILES})


def references(base: Experiment, task: Task, fixed: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Plain federated learning, beside which every trial is shown; what is not named here is as in the experiment."""
    own = base.federation
    plain: dict[str, Any] = {"cohorts": 1, "federation.server": "mean"}
    if own.buffer_size:
        plain["federation.buffer_size"] = 0
    if own.over_selection:
        plain["federation.over_selection"] = 0
    plain["federation.deadline"] = 0
    if not own.participants and own.selection == "random":
        plain["federation.participation"] = 1.0
    plain = {key: value for key, value in plain.items() if key in ("cohorts", "federation.server") or key not in fixed}
    momentum = {**plain, "federation.server": "fedavgm"}
    seconds = deadlines(base, task)
    late = {"federation.deadline": seconds[min(1, len(seconds) - 1)], "federation.straggler_policy": "drop"}
    return {"FedAvg": plain, "FedAvgM": momentum, "FedAvgM with a deadline": {**momentum, **late}}


def changed_space(base: Experiment, space: Space, search: Mapping[str, Any], fixed: Sequence[str]) -> list[Dimension]:
    """The space with settings that are `fixed` taken out, and with what `search` gives in their place or beside it.

    A value of `search` is a list of values, or {"low", "high", "log", "when"}, or a text: a,b,c or low..high or
    low..high:log.
    """
    own = {key: dimension(key, value) for key, value in search.items()}
    for one in space:  # values in place of the default ones have an effect where those have
        if one.key in own and not own[one.key].when:
            own[one.key] = replace(own[one.key], when=one.when)
    for key in fixed:
        if key in own:
            raise SettingError(f"{key} is given twice: with one value, and in search")
    if "cohorts" in own and 1 not in (values := own["cohorts"].values or (1,)):
        own["cohorts"] = Dimension("cohorts", (1, *values))
    if "cohorts" in own and not own["cohorts"].values and own["cohorts"].low > 1:
        own["cohorts"] = Dimension("cohorts", (1, *range(int(own["cohorts"].low), int(own["cohorts"].high) + 1)))
    for key in own.keys() & {"cohorts", "federation.participants"}:  # whose limit is the number of clients
        for value in own[key].values or (own[key].low, own[key].high):
            experiment_file.with_settings(base, {key: value}, strict=False)
    kept = [own.pop(one.key, one) for one in space if one.key not in fixed]
    return [*kept, *own.values()]


def dimension(key: str, given: Any) -> Dimension:
    """One entry of `search`, checked against what the setting takes."""
    if isinstance(given, str):
        given = _parsed(key, given)
    if isinstance(given, Mapping):
        known = {"low", "high", "log", "when", "values"}
        if given.keys() - known or not (("values" in given) != ("low" in given or "high" in given)):
            raise SettingError(f"search.{key} takes values, or low and high (and log, when), not {quoted(given)}")
        when = str(given.get("when", ""))
        if "values" not in given:
            return _range(key, given.get("low"), given.get("high"), bool(given.get("log")), when)
        given, condition = given["values"], when
    else:
        condition = ""
    if not isinstance(given, list | tuple) or not given:
        raise SettingError(f"search.{key} needs a list of values or a range, not {quoted(given)}")
    _check(key, given, ", ".join(map(str, given)))
    return Dimension(key, tuple(given), when=condition)


def _range(key: str, low: Any, high: Any, log: bool, when: str) -> Dimension:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (low, high))
    if not numbers or not low < high or (log and low <= 0):
        needed = "numbers, low below high, and above 0 with log, are needed"
        raise SettingError(f"search.{key}: low = {quoted(low)}, high = {quoted(high)}: {needed}")
    _check(key, [low, high], f"{low:g} to {high:g}")
    if _is_whole(key):
        if not (isinstance(low, int) and isinstance(high, int)):
            raise SettingError(f"search.{key}: {low:g} to {high:g} must be whole numbers")
        return Dimension(key, (), low, high, log, when)
    return Dimension(key, (), float(low), float(high), log, when)


def read_space(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A TOML file with [search] (a list, or a table of low, high, log and when) and [fixed] (one value), by setting."""
    file = expanded(Path(path), "space")
    try:
        check_readable(file, MAX_BYTES)
        tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingError(f"cannot read the space {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{file} is not valid TOML: {first_line(error)}") from None
    for key in tree.keys() - {"search", "fixed"}:
        raise SettingError(f"{file} has {quoted(key)}: a space has the tables [search] and [fixed]")
    if not all(isinstance(table, dict) for table in tree.values()):
        raise SettingError(f"{file}: [search] and [fixed] are tables")
    return _flat(tree.get("search", {})), effects.leaves(tree.get("fixed", {}))


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Entries by dotted key; a table with low, high or values is one."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and not value.keys() & {"low", "high", "values"}:
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _parsed(key: str, text: str) -> Any:
    whole, _, mode = text.partition(":") if ".." in text else (text, "", "")
    if ".." in whole and mode in ("", "log"):
        low, high = (experiment_file.parse_list(part)[0] if part.strip() else None for part in whole.split("..", 1))
        return {"low": low, "high": high, "log": mode == "log"}
    return experiment_file.parse_list(text)


def _field(key: str) -> Any:
    known = fields()
    if key in known:
        return known[key]
    parent = known.get(key.rpartition(".")[0])
    if parent is None or not key.rpartition(".")[0].endswith("_args"):
        raise SettingError(unknown_key(key))
    return None  # an argument of a class, which checks it itself


def _is_whole(key: str) -> bool:
    field = _field(key)
    return field is not None and field.annotation is int


def _check(key: str, values: Sequence[Any], shown: str) -> None:
    """Refuse what a setting does not take, naming both."""
    field = _field(key)
    if field is None:
        return
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated.__class_getitem__((field.annotation, *field.metadata)))  # type: ignore[attr-defined]
    for value in values:
        try:
            adapter.validate_python(value)
        except (ValidationError, SettingError):
            allowed = find(key)[0].allowed or find(key)[0].type
            raise SettingError(f"search.{key} = {shown} is outside of what {key} takes: {allowed}") from None


def seconds_text(seconds: float) -> str:
    """An interval as settings take it."""
    return f"{max(seconds, 0.001):.3f}s"


def _rounded(seconds: float) -> float:
    """To two digits, upwards: a deadline is a round number."""
    digits = 10 ** (math.floor(math.log10(max(seconds, 1e-6))) - 1)
    return float(f"{math.ceil(seconds / digits) * digits:.6g}")
