"""The messages between the server and the nodes, as Flower records.

enrol   →  nothing                                   ←  client, samples, min_clients, public keys
shares  →  public keys of all members                ←  encrypted shares for the others
masked  →  shares from the others                    ←  masked label counts
reveal  →  the members that sent counts              ←  shares
counts  →  nothing                                   ←  label counts of a node that agreed to send them alone
train   →  arrays, config                            ←  arrays, metrics, report

A train message and its reply are those of a Flower Strategy: one ArrayRecord, one MetricRecord with num-examples. The
arrays are a model's trained parameters and buffers: frozen parameters are the node's own, and "cpfl.frozen" is their
checksum at the server.
Its config says what to do with the model. "cpfl.train" is the round to train in; 0: do not train. "cpfl.evaluate" is
the round that made the model, which the node evaluates; 0: do not evaluate.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.settings import Experiment

ENROL, SHARES, MASKED, REVEAL, COUNTS = (f"query.{name}" for name in ("enrol", "shares", "masked", "reveal", "counts"))
TRAIN = "train"
ARRAYS, CONFIG, METRICS, REPORT = "arrays", "config", "metrics", "report"
PACKED = "cpfl.packed"
EXAMPLES = "num-examples"  # Flower's name for the weight of a client


class Refused(Exception):
    """Why an answer does not count."""


def context(experiment: Experiment, classes: int, client: int) -> dict[str, Any]:
    """What a node must know of the run to prepare its data."""
    return {"cpfl.experiment": experiment.model_dump_json(), "cpfl.classes": classes, "cpfl.client": client}


def read_context(config: ConfigRecord) -> tuple[Experiment, int, int]:
    """The experiment, the number of classes, and the client's number."""
    experiment = Experiment.model_validate_json(str(config["cpfl.experiment"]))
    return experiment, int(config["cpfl.classes"]), int(config["cpfl.client"])  # type: ignore[arg-type]


def arrays(state: State) -> ArrayRecord:
    """A model as a Strategy expects it, an array for each tensor."""
    return ArrayRecord({name: value.detach().cpu().contiguous() for name, value in state.items()})


def packed(state: State) -> ArrayRecord:
    """A model as one array: Flower sends every array in several requests."""
    content = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in state.items()})
    return ArrayRecord({PACKED: Array(np.frombuffer(content, np.uint8))})


def state(record: ArrayRecord) -> State:
    """A received model, in either format; numpy and safetensors accept plain numbers only."""
    if PACKED in record:
        return dict(safetensors.torch.load(record[PACKED].numpy().tobytes()))
    return dict(record.to_torch_state_dict())


def frozen_checksum(layout: Layout) -> str:
    """Of the parameters that are not trained, which do not travel; empty: there are none."""
    digest = hashlib.sha256()
    for name, value in sorted(layout.frozen.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest() if layout.frozen else ""


def checked_state(content: RecordDict, like: State) -> State:
    """The model in a reply; Refused if names, shapes or types differ from `like`, or numbers are not finite."""
    model = state(content.array_records[ARRAYS])
    if model.keys() != like.keys():
        raise Refused("its model has other parameters")
    for name, value in model.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            raise Refused(f"{name} of its model is {tuple(value.shape)} {value.dtype}".replace("torch.", ""))
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Refused(f"{name} of its model holds numbers that are not finite")
    return {name: model[name] for name in like}


def size(record: RecordDict) -> int:
    """Bytes of the models in a message."""
    return sum(len(array.data) for part in record.array_records.values() for array in part.values())


def numbered(shares: Mapping[int, bytes]) -> dict[str, Any]:
    """Shares by the number of a member, as a config holds them."""
    return {"members": list(shares), "shares": list(shares.values())}


def by_number(config: Any) -> dict[int, bytes]:
    """The inverse of `numbered`."""
    return {int(n): bytes(share) for n, share in zip(config["members"], config["shares"], strict=True)}


def answer(record: Mapping[str, Any]) -> RecordDict:
    """A message with one config."""
    return RecordDict({REPORT: ConfigRecord(dict(record))})
