"""What server and nodes write to each other, in Flower's records.

enrol   →  nothing                                   ←  client, samples, smallest, public keys
shares  →  roster of keys                            ←  sealed letters to the others
masked  →  letters from the others                   ←  masked label counts
reveal  →  who sent                                  ←  shares
counts  →  nothing                                   ←  label counts of a node that agreed to stand alone
train   →  arrays, config: a task                    ←  arrays, metrics, report

A task is what a Flower Strategy would send, and so is its answer: one ArrayRecord, one MetricRecord with num-examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from cpfl.experiment import Experiment
from cpfl.models import State

ENROL, SHARES, MASKED, REVEAL, COUNTS, TRAIN = (
    "query.enrol",
    "query.shares",
    "query.masked",
    "query.reveal",
    "query.counts",
    "train",
)
ARRAYS, CONFIG, METRICS, REPORT = "arrays", "config", "metrics", "report"
PACKED = "cpfl.packed"
EXAMPLES = "num-examples"  # Flower's own name for the weight of an answer


@dataclass(frozen=True)
class Task:
    """What a node is asked to do with the cohort's model, which comes along."""

    cohort: int
    client: int
    train: int  # the round to train in; 0: do not
    judge: int  # the round whose model it is, to be judged; 0: do not

    def stamp(self, config: ConfigRecord, experiment: Experiment, classes: int) -> ConfigRecord:
        """A copy of a config with the task on it."""
        stamped = ConfigRecord(dict(config))
        for key, value in vars(self).items():
            stamped[f"cpfl.{key}"] = value
        stamped["cpfl.classes"] = classes
        stamped["cpfl.experiment"] = experiment.model_dump_json()
        return stamped

    @classmethod
    def read(cls, config: ConfigRecord) -> Task:
        """The task on a config."""
        return cls(*(int(config[f"cpfl.{key}"]) for key in ("cohort", "client", "train", "judge")))  # type: ignore[arg-type]


def experiment_of(config: ConfigRecord) -> Experiment:
    """The settings that came along."""
    return Experiment(**json.loads(str(config["cpfl.experiment"])))


def arrays(state: State) -> ArrayRecord:
    """A model as a Strategy knows it, an array for each tensor."""
    return ArrayRecord({name: value.detach().cpu().contiguous() for name, value in state.items()})


def packed(state: State) -> ArrayRecord:
    """A model as one array: Flower moves every array in several requests of its own."""
    content = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in state.items()})
    return ArrayRecord({PACKED: Array(np.frombuffer(content, np.uint8))})


def is_packed(record: ArrayRecord) -> bool:
    """Whether a model came as one array."""
    return list(record) == [PACKED]


def state(record: ArrayRecord) -> State:
    """A model that arrived, in either form; numpy and safetensors let nothing in but plain numbers."""
    if is_packed(record):
        return dict(safetensors.torch.load(record[PACKED].numpy().tobytes()))
    return dict(record.to_torch_state_dict())


def size(record: RecordDict) -> int:
    """Bytes of the models in a letter."""
    return sum(len(array.data) for part in record.array_records.values() for array in part.values())


def numbered(letters: Mapping[int, bytes]) -> ConfigRecord:
    """Letters by number."""
    return ConfigRecord({"who": list(letters), "letters": list(letters.values())})


def by_number(config: ConfigRecord) -> dict[int, bytes]:
    """The same back."""
    who: Any = config["who"]
    letters: Any = config["letters"]
    return {int(number): bytes(letter) for number, letter in zip(who, letters, strict=True)}


def answer(record: ConfigRecord) -> RecordDict:
    """A reply that is one config."""
    return RecordDict({REPORT: record})


def trained(model: ArrayRecord, examples: int, loss: float, report: Mapping[str, float]) -> RecordDict:
    """A reply with a model."""
    metrics = MetricRecord({EXAMPLES: examples, "loss": loss})
    return RecordDict({ARRAYS: model, METRICS: metrics, REPORT: ConfigRecord(dict(report))})
