"""What a user can get wrong: each error is one clear sentence and exit code 2 (a sweep's is 1).

Anything else that is raised is a bug of ours.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

LONGEST = 480  # characters of a sentence
# Control characters, lone surrogates, and marks that change the direction of text.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


FAILURES = (Exception, SystemExit)  # of a user's code, which may call sys.exit()


class CpflError(Exception):
    """A user's mistake, explained in one sentence."""

    def __str__(self) -> str:
        """Of a sentence that quotes too much, its beginning and its end."""
        return shortened(super().__str__(), LONGEST)


class SettingError(CpflError):
    """A setting that does not exist or whose value is not allowed."""


class DataError(CpflError):
    """Data that is missing, malformed or of the wrong shape."""


class ModelError(CpflError):
    """A model that cannot be built or does not fit the data."""


class DivergedError(CpflError):
    """A client's training or validation loss stopped being a number."""

    def __init__(self, cohort: int, client: int, round: int, loss: float) -> None:
        super().__init__(cohort, client, round, loss)  # its pickle calls this again in another process

    def __str__(self) -> str:
        cohort, client, round, loss = self.args
        return (
            f"the loss of client {client} in cohort {cohort} became {loss} in round {round}: "
            "lower federation.lr; if it is low already, look at that client's inputs and at what the model computes"
        )


class PrivacyError(CpflError):
    """A sum over clients that would tell of a single one, or that cannot be made."""


class ClusterError(CpflError):
    """A Ray cluster that cannot be reached or cannot do the work."""


class StalledError(CpflError):
    """Nobody of a cohort, or too few, answered in so many tries of a round."""

    def __init__(self, cohort: int, round: int, tries: int, reasons: str, who: str = "nobody") -> None:
        super().__init__(
            f"cohort {cohort} stalled: {who} answered in {tries} tries of round {round} ({reasons}); "
            "the same run again continues from what was kept"
        )


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


class MissingError(RunFolderError):
    """A file of a run folder that is not there."""


class ChangedError(RunFolderError):
    """A file that decides the outcome of a run, changed or replaced; it is kept, since it may be restored."""

    def __init__(self, path: Path, run: Path, how: str = "was changed after it was written") -> None:
        super().__init__(path, run, how)  # its pickle calls this again in another process

    def __str__(self) -> str:
        path, run, how = self.args
        remedy = f"restore it, or begin a new run: cpfl run {run / 'experiment.toml'} --out NEW"
        return shortened(f"{path} {how}: {remedy}", LONGEST)


def first_line(error: BaseException) -> str:
    """What another library, or a user's code, says is wrong, in one line."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else quoted(error.code)})"
    try:
        text = str(error)
    except Exception:  # that of a user's class
        text = ""
    return next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)


def failure(error: Exception) -> str:
    """Why a run failed, in one line; an error that is not the user's is named by its type."""
    text = one_sentence((str(error).splitlines() or [""])[0])
    return text if isinstance(error, CpflError) else f"{type(error).__name__}: {text}"


def printable(text: str) -> str:
    """Text for a terminal, which must not obey what stands in a file's name: control characters become escapes."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_sentence(error: Exception | str) -> str:
    """An error as one printable line of bounded length: the names in it may be of any length."""
    return shortened(printable(str(error)).replace("\t", " "), LONGEST)


def shortened(text: str, longest: int) -> str:
    """The text in one line of at most so many characters, without its middle if it has more."""
    text = " ".join(text.splitlines())
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]} … {text[3 - longest // 3 :]}"


def quoted(value: object, longest: int = 120) -> str:
    """A value as a sentence quotes it: as Python writes it, shortened."""
    try:
        return shortened(str(value) if isinstance(value, date | time) else repr(value), longest)
    except (ValueError, RecursionError):  # a whole number of 5,000 digits, or lists a thousand deep
        return "a value that is too large to be shown"
