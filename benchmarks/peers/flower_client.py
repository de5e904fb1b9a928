"""What one client does in Flower's simulation; a module of its own, so that Ray's workers can import it."""

from __future__ import annotations

import functools

import torch
import works
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn


@functools.cache
def held(arrays: str, name: str, device: str, precision: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A worker's model and the users' samples, made once in its life."""
    torch.set_num_threads(1)
    works.set_arithmetic(precision)
    x, y, rows = works.load(arrays)
    users = [(x[part].to(device), y[part].to(device)) for part in rows]
    return works.build(name).to(device), users


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One user's local epoch, in the plainest loop."""
    config = message.content["config"]
    model, users = held(config["arrays"], config["model"], config["device"], config["precision"])
    x, y = users[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), works.LR, works.MOMENTUM)
    trained = 0
    for rows in torch.randperm(len(x), device=x.device).split(works.BATCH):
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=config["precision"] == "bf16"):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        trained += len(rows)
    metrics = MetricRecord({"num-examples": 1, "trained": trained})  # 1: users count alike in the mean
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
