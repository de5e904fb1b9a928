"""A model, every node's data and the server's data: all that CPFL on Flower needs of you."""

from pathlib import Path

import torch

from cpfl import load_digits
from cpfl.deploy import client_app, server_app

x, y = load_digits()


def model() -> torch.nn.Module:
    """The model that every client trains; it returns one logit for each class."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def data(context):
    """This node's data, (inputs, labels): read your own files here. They never leave the node."""
    client, clients = int(context.node_config["client"]), int(context.node_config["clients"])
    return x[client:1000:clients], y[client:1000:clients]


def test():
    """The test set of the server, (inputs, labels)."""
    return x[1400:], y[1400:]


def public():
    """Public unlabelled inputs, on which the cohort models are distilled into the global model."""
    return x[1000:1400]


client = client_app(model, data)
server = server_app(model, test, public, Path(__file__).with_name("experiment.toml"))
