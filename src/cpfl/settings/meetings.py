"""[meetings]: what cohorts do together while they train."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cpfl.settings.choices import MEETING_RULES
from cpfl.settings.types import Args, Section, When, interval

_MEET = When("rule != none")
_HAS_STATE = When("federation.server != mean | fednova | median | trimmed-mean | krum")


class Meetings(Section):
    """What cohorts do together while they train: nothing, as in the paper, unless `rule` names something."""

    rule: Annotated[str, AfterValidator(MEETING_RULES.check), When(".cohorts != 1")] = "none"
    """none: cohorts train apart until they stop (the paper); mean, outer, distill: every `interval` all continue from
    the mean of their models, a step of an outer optimizer (DiLoCo), or a student; asynchronous: each cohort meets a
    global model when it is ready, and nobody waits; or "module:Class"."""
    rule_args: Annotated[Args, _MEET] = Field(default_factory=dict)
    """Arguments of the rule: mean and outer take weights, which are equal, samples (the training samples of a cohort's
    clients) or work (the samples that it trained on since the last meeting); outer also lr, momentum and nesterov, and
    distill epochs; asynchronous weights (equal or samples), lr, momentum and damping."""
    interval: Annotated[str, _MEET] = ""
    """Virtual hours or rounds between two meetings: "2.5h", "30m" or "25 rounds"."""
    server_state: Annotated[Literal["keep", "reset", "average"], _MEET, _HAS_STATE] = "keep"
    """What becomes of the momentum and other state of the cohorts' server optimizers at a meeting: each keeps its own,
    all begin anew, or all continue with the mean (Wang et al. 2020, SlowMo, compare the three)."""
    redraw: Annotated[bool, _MEET, When(".assignment.rule = random")] = False
    """After a meeting the cohorts that continue are drawn anew from their clients; each keeps its size."""
    final: Annotated[Literal["distill", "merge"], When(".cohorts != 1")] = "distill"
    """What becomes the global model: the student of the distillation (the paper), or the mean of the cohort models,
    which needs no public data (data.public = "none")."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.interval:
            interval(self.interval, "meetings.interval")
        return self
