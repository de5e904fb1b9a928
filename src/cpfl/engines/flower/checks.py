"""Whether an answer may enter the cohort's model: anything odd is left out by name, nothing wrong gets in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from flwr.app import Message

from cpfl.engines.flower import letters
from cpfl.engines.flower.letters import ARRAYS, EXAMPLES, METRICS, REPORT
from cpfl.engines.flower.post import Answer
from cpfl.engines.flower.roll import Place
from cpfl.experiment import Federation
from cpfl.federation import local
from cpfl.federation.session import ClientResult
from cpfl.models import State


class Refused(Exception):
    """Why an answer does not count."""


@dataclass(frozen=True)
class Trained:
    """A participant's model and what it says of it, both checked."""

    model: State
    result: ClientResult
    message: Message


def trained(answer: Answer, place: Place, like: State, federation: Federation) -> Trained:
    """A participant's work, if it is what was asked for."""
    if answer.message is None:
        raise Refused(answer.trouble)
    content = answer.message.content
    try:
        model = letters.state(content.array_records[ARRAYS])
        metrics, report = content.metric_records[METRICS], content.config_records[REPORT]
        examples, loss, steps = metrics[EXAMPLES], metrics["loss"], report["steps"]
        seconds = report["seconds"]
        if isinstance(examples, list) or not isinstance(steps, int):
            raise TypeError
    except Exception as error:  # whatever a foreign answer makes numpy or flwr raise
        raise Refused(f"its answer cannot be read ({type(error).__name__})") from None
    expected = local.samples(federation, place.training)
    if examples != expected or steps != local.steps(federation, place.training):
        raise Refused(f"it claims {examples} samples and {steps} steps; {expected} were due")
    same_form(model, like)
    if not (isinstance(loss, float) and math.isfinite(loss)):
        raise Refused(f"its loss is {loss!r}")
    if not (isinstance(seconds, float) and 0 <= seconds <= answer.seconds):
        seconds = answer.seconds  # a clock that is wrong is no reason to lose the work
    result = ClientResult(place.client, expected, int(steps), loss, None, seconds, answer.seconds)
    return Trained({name: model[name] for name in like}, result, answer.message)


def judged(answer: Answer) -> float | None:
    """A participant's loss of the cohort's model; None: it has nothing to judge it by."""
    if answer.content is None:
        raise Refused(answer.trouble)
    try:
        report = answer.content.config_records[REPORT]
        if "validation" not in report:
            return None
        value = report["validation"]
    except Exception as error:
        raise Refused(f"its judgement cannot be read ({type(error).__name__})") from None
    if not (isinstance(value, float) and math.isfinite(value) and value >= 0):
        raise Refused(f"its validation loss is {value!r}")
    return value


def same_form(model: State, like: State) -> None:
    """Whether a model that came from elsewhere is one of ours: names, shapes, types, finite numbers."""
    if model.keys() != like.keys():
        raise Refused("its model has other parameters")
    for name, value in model.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            raise Refused(f"{name} of its model is {tuple(value.shape)} {value.dtype}".replace("torch.", ""))
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Refused(f"{name} of its model holds numbers that are not finite")
