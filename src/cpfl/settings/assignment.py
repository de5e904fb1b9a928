"""[assignment]: which clients train together; `cohorts` says into how many cohorts."""

from typing import Self

from pydantic import Field, model_validator

from cpfl.settings.choices import ASSIGNMENT_RULES
from cpfl.settings.types import Args, Section


class Assignment(Section):
    """Which clients train together; `cohorts` says into how many cohorts."""

    rule: str = "random"
    """How clients are assigned to cohorts: random, speed, column, label-balanced, label-clustered, multi-objective,
    csv, or a class of yours as "module:Class". Most rules reveal something of clients: `cpfl cohorts` says what."""
    rule_args: Args = Field(default_factory=dict)
    """Arguments of the rule: column = {column = "region"}, csv = {file = "cohorts.csv"},
    multi-objective = {skew_weight = 1.0, speed_weight = 1.0}."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        ASSIGNMENT_RULES.check(self.rule)
        return self
