"""Whoever computes chooses the arithmetic that the experiment asks for: torch's own choice is TF32 in convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from cpfl.data.given import Given
from cpfl.distillation.evaluation import EVALUATORS
from cpfl.distillation.views import shard_targets
from cpfl.engines.reference import ReferenceEngine
from cpfl.models import to_arrays
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CPU = torch.device("cpu")


def label(task: Task) -> None:
    weights_NC, settings = np.ones((1, task.data.classes)), task.experiment.distillation
    shard_targets([0], weights_NC, settings, task, CPU, lambda: iter([to_arrays(task.start)]), (0, 0, 10))


CASES: dict[str, Callable[[Task], object]] = {
    "the plain engine": lambda task: ReferenceEngine(task, CPU),
    "a worker that labels": label,
    **{
        f"the metric {name}": lambda task, evaluate=evaluate: evaluate(task, task.experiment.distillation, CPU)  # type: ignore[misc]
        for name, evaluate in EVALUATORS.items()
    },
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    flags = [(torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32")]
    before = [getattr(*flag) for flag in flags]
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = benchmark
    for (owner, name), value in zip(flags, before, strict=True):
        setattr(owner, name, value)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("tf32", True)])
def test_the_arithmetic_is_what_was_asked_for(case: str, precision: str, tf32: bool) -> None:
    changes = {"clients": 4, "cohorts": 2, "precision": precision, "stopping.rule": "joint"}
    task = build_task(experiment_file.with_settings(experiment_file.load("digits", []), changes), [], Given())
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not tf32
    CASES[case](task)
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
