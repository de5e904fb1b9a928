"""Objectives on a fleet: nodes count what the objective counts, train and evaluate; what does not fit is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from tests.objectives.made_up import PUBLIC, SETTINGS, TASKS, TEST, TRAIN, MadeUp

import cpfl
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve
from cpfl.errors import SettingError

from .grid import Nodes, VirtualClock


def deploy(name: str, out: Path, own: str = "", task: MadeUp | None = None, **settings: Any) -> cpfl.Run:
    """A fleet of four nodes, each with every fourth training sample; `own` is another task's data for the last node."""
    grid, task = Nodes(), task or TASKS[name]
    for client in range(4):
        held = TASKS[own] if own and client == 3 else task
        rows = np.arange(*TRAIN.indices(len(task.x)))[client::4]
        app = client_app(task.model, lambda context, held=held, rows=rows: (held.x[rows], held.y[rows]))
        grid.add(100 + client, app, client=client, min_clients=1)
    words = " ".join(f"{key}={value}" for key, value in {**SETTINGS, "model.objective": name, **settings}.items())
    config = {"out": str(out), "set": words, "wait-seconds": 60, "round-seconds": 60, "tries": 2, "device": "cpu"}
    context, test = Context(1, 0, {}, RecordDict(), config, 0), (task.x[TEST], task.y[TEST])
    serve(grid, context, task.model, test, task.x[PUBLIC], cpfl.Experiment(), None, VirtualClock())
    return cpfl.load_run(out)


@pytest.mark.parametrize("name", ["multi-label", "regression", "per-position"])
def test_nodes_count_what_the_objective_counts(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        run = deploy(name, tmp_path / "run", **{"data.validation": 0})
    about, y = json.loads((run.path / "run.json").read_text()), TASKS[name].y[TRAIN]
    for cohort, found in zip(about["cohorts"], about["label_counts"], strict=True):
        own = np.concatenate([y[client::4] for client in cohort])
        expected = {
            "multi-label": [int((own[:, k] == answer).sum()) for k in range(own.shape[1]) for answer in (0, 1)],
            "regression": [len(own)] * own.shape[1],
            "per-position": np.bincount(own[own >= 0].astype(int), minlength=6).tolist(),
        }
        assert found == expected[name]
    assert f"the {TASKS[name].metric} of the global model on the test set is" in caplog.text
    assert all(record["loss"] > 0 for record in run.rounds)


def test_a_node_with_other_labels_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        run = deploy("binary", tmp_path / "run", own="multi-label")
    assert "labels of the node's set are 0 or 1, one for each sample" in caplog.text
    assert any(record.get("excluded") for record in run.rounds)


def test_what_cannot_be_distilled_is_refused_before_nodes_train(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not defined for the answers of the objective Regression"):
        deploy("regression", tmp_path / "run", **{"distillation.loss": "kl"})
    assert not (tmp_path / "run").exists()
