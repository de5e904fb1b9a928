"""The digits of the simulation as an app: node k holds what the simulated client k holds.

What goes wrong is in scenario.toml: which nodes fail and how, and the folder in which the test holds nodes back."""

import math
import time
import tomllib
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, Krum
from held_time import HeldClock, WatchedGrid

from cpfl import models
from cpfl.data import sources
from cpfl.data.split import split
from cpfl.deploy import client_app
from cpfl.deploy.server import serve
from cpfl.engines.flower import messages
from cpfl.settings import experiment_file

EXPERIMENT = experiment_file.load(Path(__file__).with_name("experiment.toml"))
SCENARIO = tomllib.loads(Path(__file__).with_name("scenario.toml").read_text())
HELD = Path(SCENARIO["held"])


def model() -> torch.nn.Module:
    return models.factory(EXPERIMENT.model, (1, 8, 8), 10)()


def held(context):
    train = sources.load(EXPERIMENT.data.train, "train", [])
    mine = split(EXPERIMENT, train)[int(context.node_config["client"])]
    rows = np.sort(np.concatenate([mine.training, mine.validation]))
    return train.x[rows], train.y[rows]


def test():
    samples = sources.load(EXPERIMENT.data.train, "test", [])
    return samples.x, samples.y


def wait_while(file):
    while file.exists():
        time.sleep(0.05)


def misbehave(message, context, call_next):
    """What the node's fault does to its answers."""
    client, kind = str(context.node_config["client"]), message.metadata.message_type
    training = message.content["config"]["cpfl.train"] if kind == "train" else 0  # the round
    faults = SCENARIO["faults"].get(client, [])
    fault = faults[training - 1] if 0 < training <= len(faults) else ""
    if fault == "silent":
        (HELD / "asleep" / client).touch()
        wait_while(HELD / "asleep" / client)
    if training >= SCENARIO["gates"].get(client, math.inf):
        (HELD / f"at-gate-{client}").touch()
        wait_while(HELD / "gate")
    reply = call_next(message, context)
    content = reply.content
    if fault and "arrays" in content:
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
    kinds = {"fedadam": lambda: FedAdam(**few), "krum": lambda: Krum(**few, num_malicious_nodes=0)}
    return kinds[SCENARIO["strategies"][cohort]]()


client = client_app(model, held, mods=[misbehave])
server = ServerApp()


@server.main()
def main(grid, context):
    watched = WatchedGrid(grid)
    public = sources.load(EXPERIMENT.data.public, "public", []).x
    own = strategy if SCENARIO["strategies"] else None
    serve(watched, context, model, test(), public, EXPERIMENT, own, HeldClock(watched, HELD))
