"""summary.json, the outcome of a run or of a later distillation: its shape, checked wherever it is read."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cpfl.errors import DamagedError
from cpfl.runs import files

LARGEST = 1e15  # of any number that is shown
Score = Annotated[float, Field(ge=-LARGEST, le=100)]  # of the metric, in per cent; R² may be negative
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[int, Field(ge=1, le=LARGEST)]


class _Shape(BaseModel):
    """Keys that others read; there are more."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class CohortOutcome(_Shape):
    """An entry of by_cohort."""

    cohort: Count
    rounds: Count
    hours: Amount
    stop: str


class Redistilled(_Shape):
    """The settings of a later distillation."""

    at: str
    quorum: Annotated[float, Field(gt=0, le=1)]
    student: str


class Outcome(_Shape):
    """All of it: accuracies (scores of the metric), costs, the cohorts' own."""

    name: str
    cohorts: Number
    clients: Number
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    metric: str = "accuracy"
    student_accuracy: Score
    teacher_accuracy_mean: Score
    teacher_accuracy_std: Amount
    ensemble_accuracy: Score
    by_cohort: list[CohortOutcome]
    teachers: Annotated[list[Count], Field(min_length=1)]
    hours: Amount
    cpu_hours: Amount
    comm_gb: Amount
    client_gb: Amount | None = None  # None: an older version wrote it
    global_gb: Amount | None = None
    merged_accuracy: Score | None = None  # None: there is no mean of the cohort models
    wasted_cpu_hours: Amount
    repeats: Count
    rounds: Count
    cut_off: Count
    distill_seconds: Amount
    wall_seconds: Amount
    model_checksum: str
    run: str
    checksum: str
    distillation: Redistilled | None = None  # None: the run's own


def read_summary(path: Path, run: str) -> dict[str, Any]:
    """The outcome of a run or of a later distillation; `run` is the identity of its run folder."""
    tree = files.read_json(path)
    files.check_shape(path, Outcome, tree)
    if tree["checksum"] != files.checksum(tree):
        raise DamagedError(f"{path} was changed after it was written: restore it")
    if tree["run"] != run:
        raise DamagedError(f"{path} belongs to another run: restore this run's own")
    return tree
