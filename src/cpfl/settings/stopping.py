"""[stopping]: when a cohort's training ends, and which of its models becomes the teacher."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cpfl.settings.choices import STOPPING_RULES
from cpfl.settings.types import Args, Count, Fraction, Integer, NotNegative, OptionalCount, Section, when


class Stopping(Section):
    """When a cohort's training ends, and which of its models becomes the teacher."""

    rule: str = "plateau"
    """plateau: a cohort's validation loss stops falling (the paper); rounds: after so many; budget: only the limits
    below; joint: all cohorts stop together when the ensemble's accuracy stops rising; or "module:Class"."""
    rule_args: Args = Field(default_factory=dict)
    """Keyword arguments of a rule of yours."""
    patience: Annotated[Count, when("rule != rounds | budget | joint")] = 50
    """Rounds without a new minimum of the moving average after which a cohort stops."""
    window: Count = 20
    """Rounds in the moving average of the validation loss."""
    rounds: Annotated[OptionalCount, when("rule = rounds")] = 0
    """Number of rounds."""
    max_hours: NotNegative = 0
    """Limit in virtual hours, with any rule; 0: none."""
    max_cpu_hours: NotNegative = 0
    """Limit in CPU hours of all cohorts together, with any rule; 0: none."""
    keep: Literal["best", "last", "ema"] = "best"
    """The teacher: the model with the lowest moving average of the validation loss, the last one, or an exponential
    moving average of all rounds' models. With the rule joint, "best" is the last one."""
    ema_rounds: Annotated[Count, when("keep = ema")] = 10
    """A round's model has a weight of one in so many in the average."""
    metric: Annotated[Literal["ensemble-accuracy", "public-agreement"], when("rule = joint")] = "ensemble-accuracy"
    """What is evaluated: the ensemble on the clients' validation samples, or how often two halves of the cohorts agree
    on public samples, for which no client and no label is needed."""
    eval_interval: Annotated[Count, when("rule = joint")] = 25
    """Rounds of a phase, after which cohorts wait for each other and the ensemble is evaluated."""
    min_gain: Annotated[NotNegative, when("rule = joint")] = 4.0
    """Continue while twice the CPU hours would gain so many points of accuracy; 0: until a limit."""
    eval_window: Annotated[Integer, Field(ge=4), when("rule = joint")] = 6
    """Evaluations from which the gain is estimated; fewer are mostly noise."""
    client_fraction: Annotated[Fraction, when("rule = joint", "metric = ensemble-accuracy")] = 1.0
    """Share of the clients with validation samples that evaluate the ensemble, the same ones every time."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        STOPPING_RULES.check(self.rule)
        if self.rule == "rounds" and self.rounds < 1:
            raise ValueError('rule = "rounds" needs rounds, at least 1')
        if self.rule == "budget" and not (self.max_hours or self.max_cpu_hours):
            raise ValueError('rule = "budget" needs max_hours or max_cpu_hours')
        return self
