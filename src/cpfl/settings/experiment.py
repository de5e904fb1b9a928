"""One experiment: every setting once, checked as a whole.

The names are what `--set` takes: `--set cohorts=16 --set data.alpha=1`. `cpfl settings` lists them.
"""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from cpfl.errors import SettingError
from cpfl.registry import did_you_mean
from cpfl.settings.distillation import Distillation
from cpfl.settings.federation import Federation
from cpfl.settings.sections import Assignment, Data, Devices, Model, Privacy, Stopping
from cpfl.settings.types import Count, NotNegative, OptionalCount, Section, interval

GIVEN = "(given)"
"""Stands in a stored experiment for a model or arrays that were given in Python."""


class Experiment(Section):
    """One experiment, whole."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = "experiment"
    """Part of the names of run folders."""
    cohorts: Count = 4
    """Number of cohorts n: 1 is plain federated learning, as many as clients is one-shot FedKD."""
    clients: Count = 40
    """Number of clients M."""
    seed: OptionalCount = 90
    """Seed of every random choice; the authors' seeds are 90 to 94."""
    max_rounds: Count = 5000
    """Rounds of a cohort after which it stops at the latest."""
    snapshots: str = ""
    """Keep cohort models every "5h" of virtual time or every "50 rounds", for later distillation; empty: none."""
    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"
    """Arithmetic of training and distillation; parameters stay in float32, or float64."""
    checkpoint_seconds: NotNegative = 5.0
    """Seconds between checkpoints: a kill costs at most so much work; 0: a checkpoint after every round."""
    data: Data = Data()
    model: Model = Model()
    assignment: Assignment = Assignment()
    federation: Federation = Federation()
    stopping: Stopping = Stopping()
    devices: Devices = Devices()
    distillation: Distillation = Distillation()
    privacy: Privacy = Privacy()

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """What inputs and models are stored as."""
        return "float64" if self.precision == "float64" else "float32"

    def __init__(self, /, **tree: Any) -> None:
        """A mistake in any setting becomes one sentence, from Python as from a file."""
        try:
            super().__init__(**tree)
        except ValidationError as error:
            raise SettingError(sentence(error)) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.snapshots:
            interval(self.snapshots)
        if conflict := next(_conflicts(self), ""):
            raise ValueError(conflict)
        return self


@cache
def fields() -> dict[str, FieldInfo]:
    """Every section and every setting by its dotted key."""
    found: dict[str, FieldInfo] = {}
    for name, field in Experiment.model_fields.items():
        found[name], kind = field, field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= {f"{name}.{key}": inner for key, inner in kind.model_fields.items()}
    return found


def unknown_key(key: str) -> str:
    """The sentence that there is no such key, with the nearest one that exists."""
    known = list(fields())
    same_leaf = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    hint = did_you_mean(key, same_leaf or known, 0.5).strip() or (f"did you mean {same_leaf[0]}?" if same_leaf else "")
    siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]] or known
    return f"there is no setting {key}; {hint or 'known here: ' + ', '.join(siblings)}"


def sentence(error: ValidationError) -> str:
    """The first mistake: its key, the given value and what is allowed."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_key(key)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{key}: {message}" if key and not message.startswith(f"{key}.") else message
    if first["type"] == "model_type":
        message = "a table of settings is needed"
    return f"{key} = {first['input']!r} is not allowed: {message[0].lower()}{message[1:]}"


def _conflicts(experiment: Experiment) -> Iterator[str]:
    """Settings of different sections that do not fit together, each conflict in one sentence."""
    cohorts, clients, stopping = experiment.cohorts, experiment.clients, experiment.stopping
    if cohorts > clients:
        yield f"cohorts = {cohorts} is more than clients = {clients}: 1 to {clients}"
    if experiment.model.by_cohort and experiment.distillation.student_init == "mean":
        yield 'distillation.student_init = "mean" needs one model for all cohorts: model.by_cohort must be empty'
    for cohort in experiment.model.by_cohort:
        if not (cohort.isascii() and cohort.isdigit() and str(int(cohort)) == cohort and int(cohort) < cohorts):
            yield f"model.by_cohort names cohort {cohort!r}: cohorts are 0 to {cohorts - 1}"
    if experiment.federation.selection == "refl" and experiment.devices.availability == "always":
        yield 'federation.selection = "refl" needs clients that are not always available: set devices.availability'
    if stopping.rule == "joint":
        if experiment.federation.buffer_size:
            yield 'federation.buffer_size replaces rounds, and stopping.rule = "joint" waits after rounds'
        if stopping.metric == "public-agreement" and cohorts < 2:
            yield 'stopping.metric = "public-agreement" compares two halves of the cohorts: cohorts must be 2 or more'
        if stopping.metric == "ensemble-accuracy" and not experiment.data.validation:
            yield 'stopping.metric = "ensemble-accuracy" needs validation samples: data.validation must be above 0'
