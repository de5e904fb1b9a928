"""What a client reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientResult:
    """What a participant reports beside its model."""

    client: int
    samples: int  # trained on in this round
    steps: int
    loss: float  # mean training loss over the steps
    validation: float | None  # loss of the cohort's new model on the client's validation set
    squares: float | None = None  # sum of the squared losses of the samples trained on, where selection asks for it
