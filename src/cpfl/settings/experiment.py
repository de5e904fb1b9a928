"""One experiment: every setting once, checked as a whole.

The names are what `--set` takes: `--set cohorts=16 --set data.alpha=1`. `cpfl settings` lists them.
"""

import re
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from cpfl.errors import SettingError, quoted, shortened
from cpfl.registry import did_you_mean
from cpfl.settings.distillation import Distillation
from cpfl.settings.meetings import Meetings
from cpfl.settings.sections import Assignment, Data, Devices, Federation, Model, Privacy, Stopping
from cpfl.settings.types import Count, NoBool, NotNegative, Section, interval, not_in_a_file

GIVEN = "(given)"
"""Stands in a stored experiment for a model or arrays that were given in Python."""


DISTILLATION: dict[str, dict[str, Any]] = {"regression": {"aggregation": "logits", "loss": "mse"}}
"""Defaults of [distillation] where the recipe cpfl has none: by model.objective."""


def _given(section: Any) -> dict[str, Any]:
    """What was given of a section; of what is no section, which is refused later, nothing."""
    if isinstance(section, Section):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, dict) else {}


class Experiment(Section):
    """One experiment, whole."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=100)] = "experiment"
    """Part of the names of run folders."""
    cohorts: Count = 4
    """Number of cohorts n: 1 is plain federated learning, as many as clients is one-shot FedKD."""
    clients: Count = 40
    """Number of clients M."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), NoBool] = 90
    """Seed of every random choice; the authors' seeds are 90 to 94."""
    max_rounds: Count = 5000
    """Rounds of a cohort after which it stops at the latest."""
    snapshots: str = ""
    """Keep cohort models every "5h" of virtual time or every "50 rounds", for later distillation; empty: none."""
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] = "auto"
    """Arithmetic of training and distillation; parameters stay in float32, or float64. auto: tf32 on a GPU, float32
    elsewhere, chosen when a run begins and stored with it."""
    checkpoint_seconds: NotNegative = 5.0
    """Seconds between checkpoints: a kill costs at most so much work; 0: a checkpoint after every round."""
    data: Data = Data()
    model: Model = Model()
    assignment: Assignment = Assignment()
    federation: Federation = Federation()
    stopping: Stopping = Stopping()
    meetings: Meetings = Meetings()
    devices: Devices = Devices()
    distillation: Distillation = Distillation()
    privacy: Privacy = Privacy()

    def resolved(self, device: str) -> "Experiment":
        """The same experiment with the arithmetic that auto means on this kind of device."""
        if self.precision != "auto":
            return self
        return self.model_copy(update={"precision": "tf32" if device == "cuda" else "float32"})

    def with_precision_of(self, begun: "Experiment") -> "Experiment":
        """The same experiment where another one that has begun says what auto means."""
        return self.model_copy(update={"precision": begun.precision}) if self.precision == "auto" else self

    @property
    def meets(self) -> bool:
        """Whether cohorts meet; one alone does not."""
        return self.meetings.rule != "none" and self.cohorts > 1

    @property
    def merges(self) -> bool:
        """Whether the mean of the cohort models becomes the global model, instead of a student."""
        return self.meetings.final == "merge" and self.cohorts > 1

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

    @model_validator(mode="before")
    @classmethod
    def _apply_objective(cls, tree: Any) -> Any:
        """Defaults of [distillation] that another objective has."""
        if not isinstance(tree, dict):
            return tree
        model, distillation = (_given(tree.get(name)) for name in ("model", "distillation"))
        own = DISTILLATION.get(str(model.get("objective")))
        if own is None or str(distillation.get("recipe", "cpfl")) != "cpfl":
            return tree
        return {**tree, "distillation": {**own, **distillation}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in fields():
            value = attrgetter(key)(self)
            if not isinstance(value, Section | None) and (problem := not_in_a_file(key, value)):
                raise ValueError(problem)
        if self.snapshots:
            interval(self.snapshots)
        if self.cohorts > self.clients:
            raise ValueError(f"cohorts = {self.cohorts} is more than clients = {self.clients}: 1 to {self.clients}")
        if self.federation.participants > self.clients:
            raise ValueError(
                f"federation.participants = {self.federation.participants} is more than clients = {self.clients}"
            )
        for name in self.model.by_cohort:
            if not (re.fullmatch("0|[1-9][0-9]{0,8}", name) and int(name) < self.cohorts):
                raise ValueError(f"model.by_cohort names cohort {quoted(name)}: cohorts are 0 to {self.cohorts - 1}")
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
    shown = shortened(key, 80) if key.isprintable() else quoted(key, 80)
    return f"there is no setting {shown}; {hint or 'known here: ' + shortened(', '.join(siblings), 300)}"


def sentence(error: ValidationError) -> str:
    """The first mistake: its key, the given value and what is allowed."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_key(key)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{key}: {message}" if key and not message.startswith(f"{key}.") else message
    if first["type"] == "string_pattern_mismatch":  # of a name
        message = "letters, digits, '_', '.' and '-' are allowed, and it begins with a letter, a digit or '_'"
    if first["type"] == "model_type":
        message = "a table of settings is needed"
    return f"{key or 'a key'} = {quoted(first['input'])} is not allowed: {message[0].lower()}{message[1:]}"
