"""Kinds of values that settings take, and the base class of every section."""

import re
import tomllib
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

_CONFLICTS = tomllib.loads(resources.files("cpfl.settings").joinpath("conflicts.toml").read_text(encoding="utf-8"))


def _no_bool(value: Any) -> Any:
    """Refuse true and false where a number is needed: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("bool", "input should be a valid number or integer")
    return value


def _no_none(args: dict[str, Any]) -> dict[str, Any]:
    """Refuse None among keyword arguments: a TOML file cannot hold it."""
    for key, value in args.items():
        if value is None:
            raise ValueError(f"{key} is None, which a file cannot hold: leave it out")
    return args


NoBool = BeforeValidator(_no_bool)
"""Comes after the limits of a number, so that the JSON schema knows them."""
Number = Annotated[float, Field(allow_inf_nan=False), NoBool]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), NoBool]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), NoBool]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NoBool]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NoBool]
Count = Annotated[int, Field(ge=1), NoBool]
OptionalCount = Annotated[int, Field(ge=0), NoBool]
Args = Annotated[dict[str, Any], AfterValidator(_no_none)]
"""Keyword arguments of the class that another setting names."""


class Section(BaseModel):
    """A section of an experiment: unknown keys are refused, nothing changes later, docstrings become help texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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
    them joined by " or ". A key is one of the same section, or a dotted one.
    """

    def __init__(self, *conditions: str) -> None:
        self.conditions = conditions


def hours(text: str) -> float:
    """Virtual hours in "10h", "90m" or "36000s"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hms])\s*", text)
    if not match:
        raise ValueError(f"at = {text!r} is not a time: write 10h, 90m or 3600s")
    return float(match[1]) / {"h": 1, "m": 60, "s": 3600}[match[2]]


def interval(text: str) -> tuple[Literal["rounds", "seconds"], float]:
    """What "50 rounds" or "5h" means for snapshots."""
    match = re.fullmatch(r"\s*(\d+)\s*rounds?\s*", text)
    try:
        kind, size = ("rounds", float(match[1])) if match else ("seconds", hours(text) * 3600)
    except ValueError:
        raise ValueError(f"snapshots = {text!r} is no interval: write 5h, 30m or 50 rounds") from None
    if size <= 0:
        raise ValueError(f"snapshots = {text!r} is no interval: it must be above 0")
    return kind, size  # type: ignore[return-value]
