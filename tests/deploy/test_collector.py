"""The global server of cohorts at different sites, as real processes; the sites' runs are ordinary run folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import cpfl
from cpfl.runs.folder import load_state
from cpfl.settings import experiment_file

from .conftest import Fleet
from .test_faults import SETTINGS

pytestmark = pytest.mark.fleet

NO_CLIENT = 999  # a site is no client of other tests' runs
APP = """
from pathlib import Path

from cpfl import models
from cpfl.data import sources
from cpfl.deploy import collector_app, site_app
from cpfl.settings import experiment_file

EXPERIMENT = experiment_file.load(Path(__file__).with_name("experiment.toml"))


def model():
    return models.factory(EXPERIMENT.model, (1, 8, 8), 10)()


def test():
    samples = sources.load(EXPERIMENT.data.train, "test", [])
    return samples.x, samples.y


client = site_app()
server = collector_app(model, test, lambda: sources.load(EXPERIMENT.data.public, "public", []).x, EXPERIMENT)
"""


def test_a_global_server_collects(fleet: Fleet, tmp_path: Path) -> None:
    """Two sites send their teachers with TLS and node keys; the global model is distilled from exactly these."""
    experiment = experiment_file.with_settings(experiment_file.load("digits"), {**SETTINGS, "clients": 4})
    sites = [
        cpfl.run(experiment, settings={"cohorts": 1, "clients": clients}, engine="reference", out=tmp_path / name)
        for name, clients in (("north", 2), ("south", 3))
    ]
    app = fleet.app(tmp_path / "app", experiment)
    (app / "app.py").write_text(APP)
    for cohort, site in enumerate(sites):
        fleet.register(f"site-{cohort}")
        fleet.start_node(f"site-{cohort}", {"cohort": cohort, "run": str(site.path), "client": NO_CLIENT})
    fleet.run(app, {"out": str(tmp_path / "global")})
    fleet.finish()
    run = cpfl.load_run(tmp_path / "global")
    assert run.summary["cohorts"] == 2
    assert run.summary["clients"] == 5
    for cohort, site in enumerate(sites):
        mine = load_state(run.path / "models" / f"cohort-{cohort:04d}.safetensors")
        theirs = load_state(site.path / "models" / "cohort-0000.safetensors")
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
