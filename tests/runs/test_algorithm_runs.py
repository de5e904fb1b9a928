"""The state of client and server optimizers survives a kill: a resumed run equals the uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_runs
from tests.engines.test_lanes import assert_equal

import cpfl

ALGORITHMS: dict[str, dict[str, Any]] = {
    "scaffold and fedyogi": {"federation.client": "scaffold", "federation.server": "fedyogi"},
    "feddyn": {"federation.client": "feddyn", "federation.client_args.alpha": 0.1},
    "fedavgm, cosine": {
        "federation.server": "fedavgm",
        "federation.lr_schedule": "cosine",
        "federation.lr_schedule_args.rounds": 4,
    },
    "krum": {"federation.server": "krum", "federation.momentum": 0.9},
    "batch norm": {"model.name": "tests.engines.test_batch_norm:Normed"},
    "batch norm of clients": {
        "model.name": "tests.engines.test_batch_norm:Normed",
        "federation.batch_stats": "local",
    },
}


def run(path: Path, engine: str, name: str, **more: Any) -> cpfl.Run:
    """A small run with the algorithm of this name."""
    settings = small_runs.SETTINGS | {"federation.momentum": 0.0, "cohorts": 2, "clients": 8} | ALGORITHMS[name] | more
    settings |= {"federation.participation": 0.7, "federation.lr": 0.05}
    if "model.name" in settings:
        del settings["model.args.hidden"]
    callback = settings.pop("callback", None)
    return cpfl.run("digits", out=path, engine=engine, device="cpu", workers=1, settings=settings, callback=callback)


@pytest.mark.parametrize("engine", ["reference", "workers"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumed_runs_are_byte_equal(name: str, engine: str, tmp_path: Path, interrupter: Any) -> None:
    run(tmp_path / "whole", engine, name)
    with pytest.raises(interrupter.Enough):
        run(tmp_path / "cut", engine, name, callback=interrupter(5))
    cpfl.resume(tmp_path / "cut", device="cpu", workers=1)
    assert small_runs.differing(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumed_runs_in_lanes_are_equal_up_to_rounding(name: str, tmp_path: Path, interrupter: Any) -> None:
    whole = run(tmp_path / "whole", "lanes", name, precision="float64")
    with pytest.raises(interrupter.Enough):
        run(tmp_path / "cut", "lanes", name, precision="float64", callback=interrupter(5))
    assert_equal(whole, cpfl.resume(tmp_path / "cut", device="cpu"))


def test_another_engine_can_resume(tmp_path: Path, interrupter: Any) -> None:
    """Checkpoints hold algorithm state by parameter names, whatever the layout of an engine is."""
    name = "scaffold and fedyogi"
    whole = run(tmp_path / "whole", "reference", name, precision="float64")
    with pytest.raises(interrupter.Enough):
        run(tmp_path / "cut", "lanes", name, precision="float64", callback=interrupter(5))
    assert_equal(whole, cpfl.resume(tmp_path / "cut", device="cpu", engine="workers", workers=1))


def test_control_variates_count_as_traffic(tmp_path: Path) -> None:
    """SCAFFOLD sends twice as much in each direction: bytes and transfer times double, computing does not."""
    same = {"federation.server": "mean", "precision": "float64"}
    plain = run(tmp_path / "plain", "reference", "feddyn", **same)
    double = run(tmp_path / "double", "reference", "scaffold and fedyogi", **same)
    for ours, theirs in zip(double.rounds[:3], plain.rounds[:3], strict=True):
        assert ours["bytes"] == 2 * theirs["bytes"] > 0
        assert ours["cpu_seconds"] == theirs["cpu_seconds"]
        assert ours["seconds"] > theirs["seconds"]
