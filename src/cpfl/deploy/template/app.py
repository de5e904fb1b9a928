"""A model, what every node holds, what the server holds: all that CPFL on Flower needs of you."""

from pathlib import Path

import torch
from sklearn.datasets import load_digits

from cpfl.deploy import client_app, server_app

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")


def model() -> torch.nn.Module:
    """What every client trains; answers with one logit for each class."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def data(context):
    """What this node holds, (inputs, labels): read your own files here. They never leave the node."""
    client, clients = int(context.node_config["client"]), int(context.node_config["clients"])
    return x[client:1000:clients], y[client:1000:clients]


def test():
    """What the server measures models by, (inputs, labels)."""
    return x[1400:], y[1400:]


def public():
    """Unlabelled inputs that anybody may see: the cohort models teach the global model on them."""
    return x[1000:1400]


client = client_app(model, data)
server = server_app(model, test, public, Path(__file__).with_name("experiment.toml"))
