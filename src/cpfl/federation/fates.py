"""What becomes of a client that is asked to train: it arrives, crashes or leaves; known before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from cpfl.experiment import Federation
from cpfl.federation.selection import Cohort
from cpfl.randomness import stream


@dataclass(frozen=True)
class Fate:
    """One client's work from the moment it was asked."""

    client: int
    steps: int
    lasts: float  # virtual seconds until it has arrived, or is lost
    arrives: bool
    computing: float  # CPU seconds of its steps
    download: float  # virtual seconds before it can compute
    crashed: bool = False  # and so does not arrive; a checkpoint may be older than this

    def spent(self, seconds: float) -> float:
        """CPU seconds that it has spent so many seconds after it was asked."""
        if self.arrives and seconds >= self.lasts:
            return self.computing
        return max(0.0, min(self.computing, min(seconds, self.lasts) - self.download))


def foresee(
    cohort: Cohort, client: int, steps: int, clock: float, crash_rate: float, seed: int, round: int, attempt: int
) -> Fate:
    """A client that crashes or leaves is lost, with all it did; its connection breaks, so the server knows at once."""
    computing, transferring = cohort.computing(client, steps), cohort.transferring(client)
    lasts, crashed, download = computing + transferring, False, transferring / 2
    if crash_rate:
        rng = stream(seed, "crash", client, round, attempt)
        if rng.random() < crash_rate:
            lasts, crashed = download + float(rng.random()) * computing, True
    leaves = cohort.until(client, clock) - clock
    if leaves < lasts:
        return Fate(client, steps, leaves, False, computing, download)
    return Fate(client, steps, lasts, not crashed, computing, download, crashed)


def visited(federation: Federation, held: int, steps: int) -> int:
    """Samples in a client's first so many steps: only the last batch of an epoch may be short."""
    size = min(held, federation.batch_size)
    if federation.local_steps:
        return steps * size
    epochs, rest = divmod(steps, -(-held // federation.batch_size))
    return epochs * held + rest * size
