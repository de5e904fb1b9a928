"""The messages between the server and the nodes, as Flower records.

enrol   →  nothing                                   ←  client, samples, min_clients, public keys
shares  →  public keys of all members                ←  encrypted shares for the others
masked  →  shares from the others                    ←  masked label counts
reveal  →  the members that sent counts              ←  shares
counts  →  nothing                                   ←  label counts of a node that agreed to send them alone
train   →  arrays, config with an instruction        ←  arrays, metrics, report

A train message and its reply are those of a Flower Strategy: one ArrayRecord, one MetricRecord with num-examples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from cpfl.models import State
from cpfl.settings import Experiment

ENROL, SHARES, MASKED, REVEAL, COUNTS = (f"query.{name}" for name in ("enrol", "shares", "masked", "reveal", "counts"))
TRAIN = "train"
ARRAYS, CONFIG, METRICS, REPORT = "arrays", "config", "metrics", "report"
PACKED = "cpfl.packed"
EXAMPLES = "num-examples"  # Flower's name for the weight of a client


@dataclass(frozen=True)
class Instruction:
    """What a node does with the cohort's model in the same message."""

    cohort: int
    client: int
    train: int  # the round to train in; 0: do not train
    evaluate: int  # the round that made the model, to evaluate it; 0: do not evaluate

    def stamp(self, config: ConfigRecord, experiment: Experiment, classes: int) -> ConfigRecord:
        """A copy of a config with this instruction in it."""
        own = {f"cpfl.{key}": value for key, value in vars(self).items()}
        return ConfigRecord({**config, **own, **context(experiment, classes, self.client)})

    @classmethod
    def read(cls, config: ConfigRecord) -> "Instruction":
        """The instruction in a config."""
        return cls(*(int(config[f"cpfl.{key}"]) for key in ("cohort", "client", "train", "evaluate")))  # type: ignore[arg-type]


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


def is_packed(record: ArrayRecord) -> bool:
    """Whether a model came as one array."""
    return list(record) == [PACKED]


def state(record: ArrayRecord) -> State:
    """A received model, in either format; numpy and safetensors accept plain numbers only."""
    if is_packed(record):
        return dict(safetensors.torch.load(record[PACKED].numpy().tobytes()))
    return dict(record.to_torch_state_dict())


def size(record: RecordDict) -> int:
    """Bytes of the models in a message."""
    return sum(len(array.data) for part in record.array_records.values() for array in part.values())


def numbered(shares: Mapping[int, bytes]) -> ConfigRecord:
    """Shares by the number of a member."""
    return ConfigRecord({"members": list(shares), "shares": list(shares.values())})


def by_number(config: ConfigRecord) -> dict[int, bytes]:
    """The inverse of `numbered`."""
    content: Any = config
    return {int(n): bytes(share) for n, share in zip(content["members"], content["shares"], strict=True)}


def answer(record: Mapping[str, Any]) -> RecordDict:
    """A reply with one config."""
    return RecordDict({REPORT: ConfigRecord(dict(record))})


def trained(model: ArrayRecord, examples: int, loss: float, report: Mapping[str, Any]) -> RecordDict:
    """A reply with a model."""
    metrics = MetricRecord({EXAMPLES: examples, "loss": loss})
    return RecordDict({ARRAYS: model, METRICS: metrics, **answer(report)})
