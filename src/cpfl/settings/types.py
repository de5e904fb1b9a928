"""Kinds of values that settings take, and the base class of every section."""

import math
import re
import tomllib
from datetime import date, datetime, time
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cpfl.errors import quoted

_CONFLICTS = tomllib.loads(resources.files("cpfl.settings").joinpath("conflicts.toml").read_text(encoding="utf-8"))


def _no_bool(value: Any) -> Any:
    """Refuse true and false where a number is needed: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("bool", "input should be a valid number or integer")
    return value


def not_in_a_file(key: str, value: Any, depth: int = 0) -> str:
    """What of a value an experiment file cannot hold, in a sentence; empty: nothing."""
    if value is None:
        return f"{key} is None, which a file cannot hold: leave it out"
    if isinstance(value, str):
        return "" if is_text(value) else f"{key} = {quoted(value)} is not allowed: it has characters that are no text"
    if isinstance(value, int):
        return "" if abs(value) < 2**63 else f"{key} = {quoted(value)} is not allowed: it has more than 64 bits"
    if isinstance(value, float):  # JSON has no others
        return "" if math.isfinite(value) else f"{key} = {value} is not allowed: a finite number is needed"
    if isinstance(value, dict | list | tuple):
        if depth == DEEPEST:
            return f"{key} has tables or lists more than {DEEPEST} levels deep"
        for name in value if isinstance(value, dict) else ():
            if not (isinstance(name, str) and is_text(name)):
                return f"in {key}, {quoted(name)} is no name"
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (not_in_a_file(f"{key}.{name}", one, depth + 1) for name, one in inner)), "")
    if isinstance(value, datetime | date | time):
        return f"{key} = {value} is not allowed: dates and times are given as texts, in quotes"
    return f"{key} is a {type(value).__name__}, which a file cannot hold: numbers, texts, lists and tables are allowed"


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold it and the operating system take it as a name."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


MOST = 10**9
"""The largest count and the largest number of seconds, hours or bytes: more is a slip."""
FLOAT32 = 1e38
"""What multiplies a tensor must be a number that float32 has."""
DEEPEST = 32

NoBool = BeforeValidator(_no_bool)
"""Comes after the limits of a number, so that the JSON schema knows them."""
Number = Annotated[float, Field(ge=-MOST, le=MOST), NoBool]
Share = Annotated[float, Field(ge=0, lt=1), NoBool]
Fraction = Annotated[float, Field(gt=0, le=1), NoBool]
Positive = Annotated[float, Field(gt=0, le=MOST), NoBool]
NotNegative = Annotated[float, Field(ge=0, le=MOST), NoBool]
LearningRate = Annotated[float, Field(gt=0, le=1e30), NoBool]
"""Adam divides it by one less a decay rate, and the quotient must fit into float32."""
Norm = Annotated[float, Field(ge=0, le=FLOAT32), NoBool]
Count = Annotated[int, Field(ge=1, le=MOST), NoBool]
OptionalCount = Annotated[int, Field(ge=0, le=MOST), NoBool]
Listed = BeforeValidator(_listed)
"""For lists: one value, or texts with commas between them, is a list too."""
Args = dict[str, Any]
"""Keyword arguments of the class that another setting names."""


def optional(smallest: float) -> Any:
    """For `Annotated`, beside `NotNegative`: 0, or so much or more."""

    def check(value: float) -> float:
        if 0 < value < smallest:
            raise PydanticCustomError("smallest", f"input should be 0, or {smallest:g} or more")
        return value

    return Field(json_schema_extra={"anyOf": [{"const": 0}, {"minimum": smallest}]}), AfterValidator(check)


class Section(BaseModel):
    """A section of an experiment: unknown keys are refused, nothing changes later, docstrings become help texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        """Refuse settings that do not fit together, by the table in conflicts.toml."""
        for conflict in _CONFLICTS.get(type(self).__name__, ()):
            if all(map(self.holds, conflict["when"])):
                raise ValueError(conflict["message"].format(self=self))
        return self

    def holds(self, condition: str) -> bool:
        """Whether a condition holds, one of `When` or of conflicts.toml."""
        return any(map(self._holds, condition.split(" or ")))

    def _holds(self, condition: str) -> bool:
        key, _, rest = condition.removeprefix("not ").partition(" ")
        value: Any = self
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name)
        if not rest:
            return bool(value) != condition.startswith("not ")
        sign, _, listed = rest.partition(" ")
        return (str(value) in listed.split(" | ")) == (sign == "=")


class When:
    """For `Annotated`: the setting has an effect only under these conditions, all of them.

    A condition is "key" (the other setting is not empty, 0 or false), "key = a | b" or "key != a | b", several of
    them joined by " or ". A key is one of the same section, or a dotted one; ".cohorts" is in no section.
    """

    def __init__(self, *conditions: str) -> None:
        self.conditions = conditions


def hours(text: str) -> float:
    """Virtual hours in "10h", "90m" or "36000s"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hms])\s*", text)
    if not match:
        raise ValueError(f"at = {quoted(text)} is not a time: write 10h, 90m or 3600s")
    found = float(match[1]) / {"h": 1, "m": 60, "s": 3600}[match[2]]
    if found > MOST:
        raise ValueError(f"at = {quoted(text)} is not allowed: at most {MOST} hours")
    return found


def interval(text: str, key: str = "snapshots") -> tuple[Literal["rounds", "seconds"], float]:
    """What "50 rounds" or "5h" means for snapshots or meetings; `key` is the setting."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*rounds?\s*", text)
    try:
        kind, size = ("rounds", float(match[1])) if match else ("seconds", hours(text) * 3600)
    except ValueError:
        raise ValueError(f"{key} = {quoted(text)} is no interval: write 5h, 30m or 50 rounds") from None
    if size <= 0:
        raise ValueError(f"{key} = {quoted(text)} is no interval: it must be above 0")
    return kind, size  # type: ignore[return-value]
