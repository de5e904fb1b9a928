"""When cohorts meet: every so many rounds of each, or every so many virtual hours; and what that costs."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from cpfl.federation.optimizers import server_optimizer
from cpfl.federation.stopping import ROUNDING
from cpfl.settings import Experiment
from cpfl.settings.choices import MEETING_RULES
from cpfl.settings.types import interval


class Met(NamedTuple):
    """A cohort's last meeting; round 0: there was none."""

    round: int  # after which it waited
    clock: float  # virtual seconds


@dataclass(frozen=True)
class MeetingInterval:
    """Rounds or virtual seconds from one meeting to the next; inf: there are none of this kind."""

    rounds: float = math.inf
    seconds: float = math.inf
    together: bool = True  # False: a cohort comes at the end of a round when so much time has passed for it

    @classmethod
    def of(cls, experiment: Experiment) -> "MeetingInterval":
        """That of an experiment."""
        if not experiment.meets:
            return cls()
        kind, size = interval(experiment.meetings.interval, "meetings.interval")
        return cls(**{kind: size}, together=MEETING_RULES.find(experiment.meetings.rule).together)

    def after(self, clock: float) -> float:
        """When the next meeting is after one at `clock`: at the next multiple of the interval. -inf: as soon as all
        cohorts have come."""
        if math.isinf(self.seconds):
            return -math.inf
        if not self.together:
            return clock + self.seconds
        return (math.floor((clock + ROUNDING) / self.seconds) + 1) * self.seconds


def models_at_a_meeting(experiment: Experiment) -> int:
    """How many models' worth of traffic a meeting is for a cohort that continues: its own model to the global server
    and the merged one back, and the server optimizer's state if its mean is taken."""
    averaged = len(server_optimizer(experiment.federation).buffers)
    return 2 * (1 + (averaged if experiment.meetings.server_state == "average" else 0))
