"""The global server of cohorts in different places, as real processes; the places' runs are ordinary run folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cpfl
from cpfl import experiment_file
from cpfl.runs.folder import load_state

from .conftest import Fleet
from .test_faults import SETTINGS

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(280)]

APP = """
from pathlib import Path

from cpfl import experiment_file, models
from cpfl.data import sources
from cpfl.deploy import collector_app, site_app

EXPERIMENT = experiment_file.load(Path(__file__).with_name("experiment.toml"))


def model():
    return models.factory(EXPERIMENT.model, (1, 8, 8), 10)()


def test():
    samples = sources.load(EXPERIMENT.data.train, "test", [])
    return samples.x, samples.y


client = site_app()
server = collector_app(model, test, lambda: sources.load(EXPERIMENT.data.public, "public", []).x, EXPERIMENT)
"""


def test_a_global_server_collects(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """Two places hand over their teachers with TLS and node keys; the global model is distilled from just these."""
    experiment = experiment_file.with_settings(experiment_file.load("digits"), {**SETTINGS, "clients": 4})
    places = [
        cpfl.run(experiment, settings={"cohorts": 1, "clients": clients}, engine="reference", out=tmp_path / name)
        for name, clients in (("north", 2), ("south", 3))
    ]
    there = fleet()
    app = there.app(experiment)
    (app / "app.py").write_text(APP)
    for cohort, place in enumerate(places):
        there.register(f"place-{cohort}")
        there.start_node(f"place-{cohort}", {"cohort": cohort, "run": str(place.path)})
    there.run(app, {"out": str(tmp_path / "globe")})
    there.finish(220)
    run = cpfl.load_run(tmp_path / "globe")
    assert run.summary["cohorts"] == 2
    assert run.summary["clients"] == 5
    for cohort, place in enumerate(places):
        mine = load_state(run.path / "models" / f"cohort-{cohort:04d}.safetensors")
        theirs = load_state(place.path / "models" / "cohort-0000.safetensors")
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
