"""Flower's run config: the settings of a deployed run beside its experiment, and checks of that experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cpfl.errors import SettingError
from cpfl.federation import optimizers
from cpfl.settings import GIVEN, Experiment, experiment_file


@dataclass(frozen=True)
class RunSettings:
    """Keys of [tool.flwr.app.config] that are not settings of the experiment; '-' for '_'."""

    out: str = ""  # the run folder at the server; an unfinished run is resumed; empty: a new folder in runs/
    set: str = ""  # more settings of the experiment: "federation.lr=0.01 seed=91"
    wait_seconds: float = 300.0  # for all clients to enrol; then training starts with those that have
    begin_with: int = 0  # how many clients must have enrolled at least; 0: one for each cohort
    round_seconds: float = 600.0  # a node that has not answered by then is excluded from the round
    tries: int = 5  # of a round without answers before the run ends; it can be resumed
    device: str = "auto"  # on which the server distills


def read(experiment: str | Path | Experiment, config: Mapping[str, Any]) -> tuple[Experiment, RunSettings]:
    """The experiment and the run's settings from an app's run config; all other keys are the experiment's."""
    own = {field.name.replace("_", "-"): field for field in fields(RunSettings)}
    run = RunSettings(
        **{field.name: _as(key, config[key], type(field.default)) for key, field in own.items() if key in config}
    )
    chosen = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    changes = {key: value for key, value in config.items() if key not in own}
    changes |= experiment_file.parse_assignments(run.set.split())
    given = dict.fromkeys(("model.name", "data.train", "data.public"), GIVEN)
    whole = experiment_file.with_settings(chosen, changes | given)
    check(whole)
    return whole, run


def check(experiment: Experiment) -> None:
    """Refuse settings that only a simulation can follow."""
    federation, devices = experiment.federation, experiment.devices
    optimizers.check(federation)
    limited: dict[str, tuple[object, tuple[str, ...]]] = {
        # The rule joint evaluates on validation samples, which stay with the clients here.
        "stopping.rule": (experiment.stopping.rule, ("plateau", "rounds", "budget")),
        # The server knows nothing about nodes before they train.
        "federation.selection": (federation.selection, ("random", "all")),
        "assignment.rule": (experiment.assignment.rule, ("random", "csv")),
    }
    for key, (value, allowed) in limited.items():
        if value not in allowed:
            raise SettingError(f"{key} = {value!r} is for simulations; allowed here: {', '.join(allowed)}")
    if optimizers.client_optimizer(federation).has_client_state:
        raise SettingError(
            f"federation.client = {federation.client!r} is for simulations: nodes remember nothing between rounds; "
            "allowed here: sgd, adam, adamw, fedprox"
        )
    # The virtual clock decides on these. Real rounds end with round-seconds, and real nodes may fail at any time.
    simulated: dict[str, tuple[object, object]] = {
        "federation.over_selection": (federation.over_selection, 0),
        "federation.deadline": (federation.deadline, 0),
        "federation.min_results": (federation.min_results, 1),
        "federation.buffer_size": (federation.buffer_size, 0),
        "devices.availability": (devices.availability, "always"),
        "devices.crash_rate": (devices.crash_rate, 0),
    }
    for key, (value, default) in simulated.items():
        if value != default:
            raise SettingError(f"{key} = {value!r} is for simulations: leave it out")
    if experiment.model.by_cohort:
        raise SettingError("model.by_cohort is for simulations: all nodes have the app's model")


def _as(key: str, value: object, kind: type) -> Any:
    try:
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError):
        raise SettingError(f"{key} = {value!r} is not allowed in the run config: {kind.__name__} is needed") from None
