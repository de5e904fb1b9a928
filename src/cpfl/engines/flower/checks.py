"""Whether an answer may enter the cohort's model: an invalid one is excluded by name."""

import math
from dataclasses import dataclass

import torch
from flwr.app import Message

from cpfl.engines.flower import messages
from cpfl.engines.flower.client_registry import EnrolledClient
from cpfl.engines.flower.message_loop import Answer
from cpfl.engines.flower.messages import ARRAYS, EXAMPLES, METRICS, REPORT
from cpfl.federation import local_training
from cpfl.federation.session import ClientResult
from cpfl.models import State
from cpfl.settings import Federation


class Refused(Exception):
    """Why an answer does not count."""


@dataclass(frozen=True)
class Trained:
    """A participant's model and report, both checked."""

    model: State
    result: ClientResult
    message: Message


def trained(answer: Answer, client: EnrolledClient, like: State, federation: Federation) -> Trained:
    """A participant's answer to a train message, if it is valid."""
    if answer.message is None:
        raise Refused(answer.reason)
    content = answer.message.content
    try:
        model = messages.state(content.array_records[ARRAYS])
        metrics, report = content.metric_records[METRICS], content.config_records[REPORT]
        examples, loss, steps, seconds = metrics[EXAMPLES], metrics["loss"], report["steps"], report["seconds"]
        if isinstance(examples, list) or not isinstance(steps, int):
            raise TypeError
    except Exception as error:  # numpy and flwr raise many kinds for a malformed answer
        raise Refused(f"its answer cannot be read ({type(error).__name__})") from None
    all_steps = local_training.steps(federation, client.training)
    expected = local_training.samples_in_steps(federation, client.training, all_steps)
    if examples != expected or steps != all_steps:
        raise Refused(f"it claims {examples} samples and {steps} steps; {expected} were due")
    check_model(model, like)
    if not (isinstance(loss, float) and math.isfinite(loss)):
        raise Refused(f"its loss is {loss!r}")
    if not (isinstance(seconds, float) and 0 <= seconds <= answer.seconds):
        seconds = answer.seconds  # a wrong clock is no reason to discard the model
    result = ClientResult(client.client, expected, steps, loss, None, seconds, answer.seconds)
    return Trained({name: model[name] for name in like}, result, answer.message)


def evaluated(answer: Answer) -> float | None:
    """A participant's validation loss of the cohort's model; None: it has no validation samples."""
    if answer.content is None:
        raise Refused(answer.reason)
    try:
        value = answer.content.config_records[REPORT].get("validation")
    except Exception as error:
        raise Refused(f"its evaluation cannot be read ({type(error).__name__})") from None
    if value is not None and not (isinstance(value, float) and math.isfinite(value) and value >= 0):
        raise Refused(f"its validation loss is {value!r}")
    return value


def check_model(model: State, like: State) -> None:
    """Refuse a received model with other names, shapes or types, or with numbers that are not finite."""
    if model.keys() != like.keys():
        raise Refused("its model has other parameters")
    for name, value in model.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            raise Refused(f"{name} of its model is {tuple(value.shape)} {value.dtype}".replace("torch.", ""))
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Refused(f"{name} of its model holds numbers that are not finite")
