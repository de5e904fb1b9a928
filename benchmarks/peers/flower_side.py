"""The work done by Flower's simulation: a Ray worker for every core, one core a client."""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib.metadata import version

import works
from flower_client import client
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Recorded(FedAvg):
    """Flower's FedAvg; records every round."""

    def __init__(self, report: works.Report, evaluate: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._report, self._evaluate = report, evaluate

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrived = list(replies)
        arrays, metrics = super().aggregate_train(server_round, arrived)
        failed = [reply.error for reply in arrived if reply.has_error()]
        if failed or arrays is None:
            raise RuntimeError(f"{len(failed)} of {len(arrived)} clients failed in round {server_round}: {failed[:1]}")
        trained = sum(int(reply.content["metrics"]["trained"]) for reply in arrived)
        self._report.ended(time.perf_counter(), trained)
        if server_round == self._evaluate:
            self._report.evaluated = arrays.to_torch_state_dict()
        return arrays, metrics


def main() -> None:
    words = works.arguments(__doc__, "cores")
    report = works.Report(words)
    users = len(works.load(words.arrays)[2])
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        keys = {"arrays": str(words.arrays.absolute())} | {
            key: getattr(words, key) for key in ("model", "device", "precision")
        }
        start = ArrayRecord(works.build(words.model).state_dict())
        Recorded(report, words.evaluate).start(grid, start, words.rounds, train_config=ConfigRecord(keys))

    share = 1 / words.count if words.device == "cuda" else 0.0
    run_simulation(
        server,
        client,
        num_supernodes=users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": share},
            "init_args": {"num_cpus": words.count, "include_dashboard": False},
        },
    )
    report.write(flwr=version("flwr"), ray=version("ray"))


if __name__ == "__main__":
    main()
