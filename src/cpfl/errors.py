"""What a user can get wrong. Anything else that is raised is a bug of ours.

CpflError                 one clear sentence, exit code 2
├── SettingError          a key of the experiment, its value and what is allowed
├── DataError             a data set, public set, label or device trace
├── ModelError            a model that does not fit the data
├── DivergedError         a client's loss is not a number (cohort, client, round)
├── PrivacyError          a sum over clients that would tell of one of them, or cannot be made
├── ClusterError          a Ray cluster that is not there, lacks something, or has lost its workers
├── StalledError          a cohort of a real fleet in which nobody answers
├── SweepError            runs of a sweep that failed while others went well, exit code 1
└── RunFolderError        a run folder that is missing, foreign, busy or on a full disk
    └── DamagedError      a file in it that was cut short or changed
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class CpflError(Exception):
    """A user's mistake, told in one sentence."""


class SettingError(CpflError):
    """A setting that does not exist or whose value is not allowed."""


class DataError(CpflError):
    """Data that is missing, malformed or of the wrong shape."""


class ModelError(CpflError):
    """A model that cannot be built or does not fit the data."""


class DivergedError(CpflError):
    """A client's training or validation loss stopped being a number."""

    def __init__(self, cohort: int, client: int, round: int, loss: float) -> None:
        super().__init__(
            f"the loss of client {client} in cohort {cohort} became {loss} in round {round}: "
            "lower federation.lr, or look at that client's data"
        )
        self.cohort, self.client, self.round, self.loss = cohort, client, round, loss

    def __reduce__(self) -> "tuple[type[DivergedError], tuple[int, int, int, float]]":
        """So that it survives the way back from a worker process."""
        return DivergedError, (self.cohort, self.client, self.round, self.loss)


class PrivacyError(CpflError):
    """A sum over clients that would tell of a single one, or that cannot be made."""


class ClusterError(CpflError):
    """A Ray cluster that cannot be reached or cannot do the work."""


class StalledError(CpflError):
    """Nobody of a cohort, or too few, answered in so many tries of a round."""

    def __init__(self, cohort: int, round: int, tries: int, reasons: str, who: str = "nobody") -> None:
        super().__init__(
            f"cohort {cohort} stalled: {who} answered in {tries} tries of round {round} ({reasons}); "
            "the same run again goes on from what was kept"
        )
        self.cohort, self.round = cohort, round


class SweepError(CpflError):
    """Some runs of a sweep failed; `runs` are the finished ones, `failed` says why the others are not."""

    def __init__(self, planned: int, runs: Sequence[Any], failed: Mapping[Path, Exception]) -> None:
        first, error = next(iter(failed.items()))
        super().__init__(f"{len(failed)} of {planned} runs failed; the first: {first.name}: {error}")
        self.runs, self.failed = list(runs), dict(failed)


class RunFolderError(CpflError):
    """A run folder that cannot be read or written."""


class DamagedError(RunFolderError):
    """A file of a run folder that is not what was written."""


def first_line(error: Exception) -> str:
    """What another library says is wrong, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
