"""[privacy]: what label counts may reveal of clients."""

from typing import Annotated, Literal

from pydantic import Field

from cpfl.settings.types import Count, NotNegative, Section, Share, when


class Privacy(Section):
    """What label counts may reveal of clients."""

    label_counts: Literal["plain", "masked"] = "plain"
    """How simulated clients report label counts: plain sums, or masked sums as real clients always do."""
    min_clients: Count = 1
    """A cohort with fewer clients reports no label counts; its model gets uniform weights."""
    epsilon: NotNegative = 0
    """Noise on every sum for (ε, δ)-differential privacy of single samples; 0: none."""
    delta: Annotated[Share, Field(gt=0), when("epsilon")] = 1e-5
    """The δ of that promise."""
