"""Small real runs to report on: three n, two seeds, snapshots; copy them before changing them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import rewrite

import cpfl

SETTINGS: dict[str, Any] = {
    "clients": 8,
    "max_rounds": 30,
    "snapshots": "2 rounds",
    "data.train_limit": 400,
    "data.public_limit": 100,
    "model.args.hidden": 8,
    "stopping.patience": 3,
    "stopping.window": 2,
    "distillation.epochs": 2,
    "distillation.batch_size": 32,
}
NUMBERS, SEEDS = (1, 2, 4), (90, 91)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six finished runs."""
    folder = tmp_path_factory.mktemp("made")
    for n in NUMBERS:
        for seed in SEEDS:
            changes = SETTINGS | {"cohorts": n, "seed": seed}
            cpfl.run("digits", out=folder / f"n{n}-seed{seed}", settings=changes, device="cpu", engine="reference")
    return folder


@pytest.fixture
def small() -> dict[str, Any]:
    """What makes them small."""
    return dict(SETTINGS)


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """The six runs, to do with as a test likes."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def summaries(made: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """What the six runs came to, by n and seed."""
    return {(n, s): json.loads((made / f"n{n}-seed{s}" / "summary.json").read_text()) for n in NUMBERS for s in SEEDS}


@pytest.fixture
def change() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    """Edits a JSON file in place."""

    def edit(path: Path, by: Callable[[dict[str, Any]], None]) -> None:
        tree = json.loads(path.read_text())
        by(tree)
        path.write_text(json.dumps(tree))
        if "checksum" in tree:
            rewrite(path)

    return edit
