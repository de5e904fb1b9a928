"""What does a round cost on Flower? Its own loop and nodes against ours: seconds, bytes, memory; 4 nodes, one cohort.

python benchmarks/flower.py [ROUNDS] [OUT.json]
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from cpfl.deploy import _flower_internals
from cpfl.deploy.local_fleet import LocalFleet, new_app
from cpfl.deploy.prefork import descendants

NODES = 4
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
STOCK = '''"""The template's model and data in Flower's own way: FedAvg with training and evaluation in every round."""

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
client = ClientApp()
server = ServerApp()


def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def share(context):
    k, n = int(context.node_config["client"]), int(context.node_config["clients"])
    return torch.tensor(x[k:1000:n]), torch.tensor(y[k:1000:n])


@client.train()
def train(message, context):
    net, (inputs, labels) = model(), share(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    for batch in torch.randperm(len(inputs)).split(20):
        loss = torch.nn.functional.cross_entropy(net(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    net, (inputs, labels) = model(), share(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(net(inputs), labels).item()
    metrics = MetricRecord({"loss": loss, "num-examples": len(inputs)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < int(context.run_config["clients"]):
        time.sleep(0.5)
    ends = [time.time()]
    strategy = FedAvg(min_available_nodes=int(context.run_config["clients"]))
    strategy.start(
        grid,
        ArrayRecord(model().state_dict()),
        int(context.run_config["rounds"]),
        evaluate_fn=lambda number, arrays: ends.append(time.time()),
    )
    Path(context.run_config["out"]).write_text(json.dumps([b - a for a, b in zip(ends[1:], ends[2:])]))
'''
PROJECT = """[project]
name = "stock"
version = "1.0.0"
description = "FedAvg"
license = "MIT"
[tool.flwr.app]
publisher = "you"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
clients = 4
rounds = 3
out = ""
"""


class PeakMemory:
    """The maximum of the proportional memory of all nodes' processes together, in bytes."""

    def __init__(self, fleet: LocalFleet) -> None:
        self._fleet, self.most, self._end = fleet, 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(1.0):
            names = [name for name in self._fleet.processes if name.startswith("node") or name == "prefork"]
            roots = [self._fleet.processes[name].pid for name in names]
            pids = {pid for root in roots for pid in (root, *descendants(root))}
            self.most = max(self.most, sum(map(proportional, pids)))

    def stop(self) -> int:
        self._end.set()
        self._thread.join()
        return self.most


def proportional(pid: int) -> int:
    """A process's share of memory: pages that several use count in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(scratch: Path, loop: str, preforked: bool) -> dict[str, Any]:
    """One run of one kind."""
    out = scratch / "out"
    if loop == "stock":
        app = scratch / "app"
        app.mkdir(parents=True)
        (app / "app.py").write_text(STOCK)
        (app / "pyproject.toml").write_text(PROJECT)
        config: dict[str, Any] = {"clients": NODES, "rounds": ROUNDS, "out": str(out)}
    else:
        app = new_app(scratch / "app")
        words = f"stopping.rule=rounds stopping.rounds={ROUNDS} distillation.epochs=1 checkpoint_seconds=0"
        config = {"clients": NODES, "cohorts": 1, "out": str(out), "set": words}
    with LocalFleet(scratch / "fleet", preforked=preforked, preload=["sklearn.datasets"]) as fleet:
        fleet.start_superlink()
        for client in range(NODES):
            fleet.register(f"node-{client}")
            fleet.start_node(f"node-{client}", {"client": client, "clients": NODES, "min_clients": 9})
        time.sleep(15)  # all are up, and idle
        memory, began = PeakMemory(fleet), time.perf_counter()
        fleet.run(app, config)
        assert fleet.wait(590) == "finished:completed", fleet.tail("run", 2000)
        whole, most = time.perf_counter() - began, memory.stop()
        number = int(fleet.log("run").read_text().partition("started run ")[2].split()[0])
        about = _flower_internals.run_info(fleet.address, fleet.ca, number)
        sent, received = about.bytes_sent, about.bytes_recv
    if loop == "stock":
        seconds = json.loads(out.read_text())
    else:
        lines = (out / "rounds" / "cohort-0000.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["seconds"] for line in lines]
    return {
        "seconds a round (median)": round(statistics.median(seconds[1:]), 2),
        "fastest": round(min(seconds), 2),
        "slowest": round(max(seconds), 2),
        "whole run, seconds": round(whole, 1),
        "kB a node and round": round((sent + received) / 1000 / NODES / ROUNDS, 1),
        "MB of memory a node": round(most / 1e6 / NODES),
    }


rows = {}
for name, (loop, preforked) in {
    "stock loop, stock nodes": ("stock", False),
    "stock loop, preforked nodes": ("stock", True),
    "our loop, stock nodes": ("ours", False),
    "our loop, preforked nodes": ("ours", True),
}.items():
    scratch = Path(tempfile.mkdtemp(prefix="cpfl-bench-"))
    try:
        rows[name] = measure(scratch, loop, preforked)
        print(f"{name:<28}", rows[name], flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

print(f"\n{'':<28}" + "".join(f"{key:>26}" for key in next(iter(rows.values()))))
for name, row in rows.items():
    print(f"{name:<28}" + "".join(f"{value:>26}" for value in row.values()))
if len(sys.argv) > 2:
    about: dict[str, Any] = {"nodes": NODES, "rounds": ROUNDS, "cores": os.cpu_count(), "machine": platform.machine()}
    about |= {"flwr": metadata.version("flwr"), "torch": metadata.version("torch"), "load": os.getloadavg()[2]}
    Path(sys.argv[2]).write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
