"""What a run of a deployed app may be told beside its experiment, through Flower's run config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cpfl import experiment_file
from cpfl.errors import SettingError
from cpfl.experiment import GIVEN, Experiment
from cpfl.federation import parts

PLANS = ("random", "csv")
SELECTIONS = ("random", "all")


@dataclass(frozen=True)
class RunSettings:
    """Keys of [tool.flwr.app.config] that are not settings of the experiment; '-' for '_'."""

    out: str = ""  # the run folder at the server; an unfinished one is gone on with; empty: a new one in runs/
    set: str = ""  # more settings of the experiment: "federation.lr=0.01 seed=91"
    wait_seconds: float = 300.0  # for all clients to show up; then it begins with those who have
    begin_with: int = 0  # how many clients must be there at least; 0: one for each cohort
    round_seconds: float = 600.0  # a node that has not answered by then is left out of the round
    tries: int = 5  # of a round in which nobody answers, before the run ends; it can be gone on with
    device: str = "auto"  # where the server distils


def read(experiment: str | Path | Experiment, config: Mapping[str, Any]) -> tuple[Experiment, RunSettings]:
    """The experiment and the run's settings from an app's run config; all other keys are the experiment's."""
    own = {field.name.replace("_", "-"): field for field in fields(RunSettings)}
    found: dict[str, Any] = {}
    for key, field in own.items():
        if key in config:
            found[field.name] = _as(key, config[key], type(field.default))
    run = RunSettings(**found)
    chosen = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    changes = {key: value for key, value in config.items() if key not in own}
    changes |= experiment_file.parse_assignments(run.set.split())
    given = dict.fromkeys(("model.name", "data.train", "data.public"), GIVEN)
    whole = experiment_file.with_settings(chosen, changes | given)
    check(whole)
    return whole, run


def check(experiment: Experiment) -> None:
    """That a real fleet can do what the experiment asks for."""
    federation, plan = experiment.federation, experiment.cohorting.plan
    if experiment.stopping.rule == "joint":  # its judges look at validation samples, which stay with the clients here
        raise SettingError('stopping.rule = "joint" is for simulations; allowed here: plateau, rounds, budget')
    parts.check(federation)
    if parts.local_part(federation).keeps_rows:  # a letter finds a node as it was at its first
        raise SettingError(
            f"federation.local = {federation.local!r} is for simulations: nodes remember nothing from round to round; "
            "allowed here: sgd, adam, adamw, fedprox"
        )
    for key, value, plain in _unreal(experiment):
        if value != plain:
            raise SettingError(f"{key} = {value!r} is for simulations: leave it out")
    if federation.selection not in SELECTIONS:  # the others need what nobody here knows of nodes
        known = ", ".join(SELECTIONS)
        raise SettingError(f"federation.selection = {federation.selection!r} is for simulations; allowed here: {known}")
    if plan not in PLANS:  # the others need what nobody here knows before the first round
        raise SettingError(f"cohorting.plan = {plan!r} is for simulations; allowed here: {', '.join(PLANS)}")
    if experiment.cohorting.models:
        raise SettingError("cohorting.models is for simulations: all nodes have the app's model")


def _unreal(experiment: Experiment) -> list[tuple[str, object, object]]:
    """What the virtual clock decides; real rounds end with round-seconds, and real nodes come and go by themselves."""
    federation, devices = experiment.federation, experiment.devices
    return [
        ("federation.over_selection", federation.over_selection, 0),
        ("federation.deadline", federation.deadline, 0),
        ("federation.minimum", federation.minimum, 1),
        ("federation.buffer", federation.buffer, 0),
        ("devices.availability", devices.availability, "always"),
        ("devices.crash_rate", devices.crash_rate, 0),
    ]


def _as(key: str, value: object, kind: type) -> Any:
    try:
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError):
        raise SettingError(f"{key} = {value!r} is not allowed in the run config: {kind.__name__} is needed") from None
