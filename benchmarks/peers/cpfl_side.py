"""The work done by cpfl, with whatever engine it chooses for the device by itself."""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from pathlib import Path

import numpy as np
import works

import cpfl
from cpfl.federation.session import ClosedRound, Session
from cpfl.models import gn_lenet


class Rounds(cpfl.Callback):
    """Records every round of every cohort."""

    def __init__(self, report: works.Report, words: argparse.Namespace) -> None:
        self._report, self._words = report, words
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self._report.ended(time.perf_counter(), closed.record.samples, session.cohort)
        if self._words.count == 1 and session.round == self._words.evaluate:
            self._report.evaluated = {name: value.clone() for name, value in session.model.items()}


def main() -> None:
    words = works.arguments(__doc__, "cohorts")
    assert str(works.gn_lenet()) == str(gn_lenet((3, 32, 32), works.CLASSES)), "not the cifar10 preset's model any more"
    report = works.Report(words)
    rounds = Rounds(report, words)
    x, y, owner = (np.load(words.arrays / f"{name}.npy") for name in ("x", "y", "owner"))
    experiment = cpfl.Experiment(
        cohorts=words.count,
        clients=int(owner.max()) + 1,
        precision=words.precision,
        data={"split": "column", "column": "user", "validation": 0.0},
        federation={"batch_size": works.BATCH, "lr": works.LR, "momentum": works.MOMENTUM},
        stopping={"rule": "rounds", "rounds": words.rounds},
        devices={"trace": "fixed"},
        distillation={"epochs": 1, "batch_size": 32},  # comes after the window
    )
    with tempfile.TemporaryDirectory() as folder:
        run = cpfl.run(
            experiment,
            model=functools.partial(works.build, words.model),
            train=(x, y, {"user": owner}),
            test=(x[:100], y[:100]),
            public=x[:64],
            out=Path(folder) / "run",
            device=words.device,
            callback=rounds,
        )
        engine = run.summary["engine"]
    report.write(engine=engine, messages=rounds.messages)


if __name__ == "__main__":
    main()
