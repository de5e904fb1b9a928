"""A small tune: a few trials of a second or less."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    "clients": 6,
    "checkpoint_seconds": 0,
    "data.train_limit": 240,
    "data.public_limit": 60,
    "data.alpha": 10,
    "model.args.hidden": 8,
    "federation.lr": 0.1,
    "federation.batch_size": 10,
    "devices.trace": "fixed",
    "distillation.epochs": 2,
}
SEARCH: dict[str, Any] = {
    "cohorts": [1, 2],
    "assignment.rule": ["random"],
    "meetings.rule": ["none", "mean"],
    "meetings.interval": ["20s"],
    "federation.server": ["mean", "fedavgm"],
    "federation.server_args.lr": {"low": 0.5, "high": 1.0, "when": "federation.server = fedavgm"},
    "federation.local_epochs": {"low": 1, "high": 3},
}
TUNE: dict[str, Any] = {
    "hours": 0.03, "trials": 6, "points": 6, "batch": 3, "seeds": 1, "search": SEARCH, "settings": SETTINGS,
    "engine": "reference", "device": "cpu",
}  # fmt: skip
