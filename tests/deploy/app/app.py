"""The digits of the simulation as an app: node k holds what the simulated client k holds. Nodes can be made to fail."""

import math
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Krum

from cpfl import models
from cpfl.data import sources
from cpfl.data.split import split
from cpfl.deploy import client_app, server_app
from cpfl.engines.flower import messages
from cpfl.settings import experiment_file

EXPERIMENT = experiment_file.load(Path(__file__).with_name("experiment.toml"))


def model() -> torch.nn.Module:
    return models.factory(EXPERIMENT.model, (1, 8, 8), 10)()


def held(context):
    if context.node_config.get("fault") == "broken":
        raise OSError("the disk is gone")
    train = sources.load(EXPERIMENT.data.train, "train", [])
    mine = split(EXPERIMENT, train)[int(context.node_config["client"])]
    rows = np.sort(np.concatenate([mine.training, mine.validation]))
    return train.x[rows], train.y[rows]


def test():
    samples = sources.load(EXPERIMENT.data.train, "test", [])
    return samples.x, samples.y


def wait_at(gate, first, seconds, message):
    """From a round on: not before the gate is gone, or it has waited so long."""
    if message.metadata.message_type == "train" and message.content["config"]["cpfl.train"] >= first:
        end = time.monotonic() + seconds
        while gate.exists() and time.monotonic() < end:
            time.sleep(0.05)


def misbehave(message, context, call_next):
    """What the node's fault does to its answers."""
    fault, kind = context.node_config.get("fault", ""), message.metadata.message_type
    if fault == "silent" and kind == "train":
        time.sleep(600)
    if gate := context.node_config.get("gate"):
        wait_at(Path(gate), int(context.node_config["from"]), float(context.node_config["seconds"]), message)
    reply = call_next(message, context)
    content = reply.content
    if fault == "hoarder" and kind == "query.enrol":
        content["report"]["samples"] = 2**40
    if kind == "query.masked" and fault == "liar":
        values = np.frombuffer(content["report"]["values"], "<u4") + np.uint32(1000)
        content["report"] = ConfigRecord({"values": values.tobytes()})
    if kind == "train" and "arrays" in content:
        state = messages.state(content["arrays"])
        name = next(name for name, value in state.items() if value.dim() > 1)  # they come in any order
        if fault == "nan":
            state[name].view(-1)[0] = math.nan
        if fault == "shape":
            state[name] = state[name].reshape(-1)
        if fault in ("nan", "shape"):
            content["arrays"] = messages.packed(state)
        if fault in ("forged", "huge"):
            examples = content["metrics"]["num-examples"] + 1 if fault == "forged" else 2**60
            content["metrics"] = MetricRecord({"num-examples": examples, "loss": content["metrics"]["loss"]})
    return Message(content, reply_to=message)


def strategy(cohort: int):
    few = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    kinds = {
        "fedavg": lambda: FedAvg(**few),
        "fedadam": lambda: FedAdam(**few),
        "fedprox": lambda: FedProx(**few, proximal_mu=0.1),
        "krum": lambda: Krum(**few, num_malicious_nodes=0),
        "greedy": lambda: FedAvg(min_available_nodes=50),
    }
    return kinds[STRATEGIES[cohort]]()


STRATEGIES = Path(__file__).with_name("strategies.md").read_text().split()
client = client_app(model, held, mods=[misbehave])
server = server_app(
    model,
    test,
    lambda: sources.load(EXPERIMENT.data.public, "public", []).x,
    EXPERIMENT,
    strategy if STRATEGIES else None,
)
