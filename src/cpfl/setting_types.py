"""What kinds of values settings take: numbers of a range, moments and intervals written as text."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _not_truth(value: Any) -> Any:
    """true and false are no numbers, though Python takes them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("bool", "input should be a valid number or integer")
    return value


Number = Annotated[float, BeforeValidator(_not_truth), Field(allow_inf_nan=False)]
Integer = Annotated[int, BeforeValidator(_not_truth)]
Share = Annotated[Number, Field(ge=0, lt=1)]
Fraction = Annotated[Number, Field(gt=0, le=1)]
Count = Annotated[Integer, Field(ge=1)]
OptionalCount = Annotated[Integer, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]


class Section(BaseModel):
    """A part of an experiment: nothing unknown, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def hours(text: str) -> float:
    """Virtual hours in "10h", "90m" or "36000s"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hms])\s*", text)
    if not match:
        raise ValueError(f"at = {text!r} is not a time: write 10h, 90m or 3600s")
    return float(match[1]) / {"h": 1, "m": 60, "s": 3600}[match[2]]


def interval(text: str) -> tuple[Literal["rounds", "seconds"], float]:
    """What "50 rounds" or "5h" means for snapshots."""
    match = re.fullmatch(r"\s*(\d+)\s*rounds?\s*", text)
    if match:
        kind: Literal["rounds", "seconds"] = "rounds"
        size = float(match[1])
    else:
        try:
            kind, size = "seconds", hours(text) * 3600
        except ValueError:
            raise ValueError(f"snapshots = {text!r} is no interval: write 5h, 30m or 50 rounds") from None
    if size <= 0:
        raise ValueError(f"snapshots = {text!r} is no interval: it must be above 0")
    return kind, size
