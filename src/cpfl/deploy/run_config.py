"""Flower's run config: the settings of a deployed run beside its experiment, and checks of that experiment."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from cpfl.errors import SettingError
from cpfl.federation import optimizers
from cpfl.settings import GIVEN, Experiment, experiment_file
from cpfl.settings.experiment import sentence
from cpfl.settings.types import Count, NotNegative, OptionalCount, Positive, Section

ALLOWED = {  # what a deployed run can follow of settings that simulations follow further
    # The rule joint evaluates on validation samples, which stay with the clients here.
    "stopping.rule": ("plateau", "rounds", "budget"),
    # The server knows nothing about nodes before they train.
    "federation.selection": ("random", "all"),
    "assignment.rule": ("random", "csv"),
    # The virtual clock decides on these. Real rounds end with round-seconds, and real nodes may fail at any time.
    "federation.over_selection": (0,),
    "federation.deadline": (0,),
    "federation.min_results": (1,),
    # Nodes remember nothing between rounds.
    "federation.batch_stats": ("average",),
    "federation.buffer_size": (0,),
    # Clients mask the label counts of the cohort that they began in.
    "meetings.redraw": (False,),
    "devices.availability": ("always",),
    "devices.crash_rate": (0,),
}


class RunSettings(Section):
    """Keys of [tool.flwr.app.config] that are not settings of the experiment; '-' for '_'."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), extra="ignore")

    out: str = ""  # the run folder at the server; an unfinished run is resumed; empty: a new folder in runs/
    set: str = ""  # more settings of the experiment: "federation.lr=0.01 seed=91"
    wait_seconds: NotNegative = 300.0  # for all clients to enrol; then training starts with those that have
    begin_with: OptionalCount = 0  # how many clients must have enrolled at least; 0: one for each cohort
    round_seconds: Positive = 600.0  # a node that has not answered by then is excluded from the round
    tries: Count = 5  # of a round without answers before the run ends; it can be resumed
    device: str = "auto"  # on which the server distills


def read(experiment: str | Path | Experiment, config: Mapping[str, Any]) -> tuple[Experiment, RunSettings]:
    """The experiment and the run's settings from an app's run config; all other keys are the experiment's.

    Settings that only a simulation can follow are refused.
    """
    try:
        run = RunSettings.model_validate(dict(config))
    except ValidationError as error:
        raise SettingError(sentence(error)) from None
    chosen = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    own = {field.alias for field in RunSettings.model_fields.values()}
    changes = {key: value for key, value in config.items() if key not in own}
    changes |= experiment_file.parse_assignments(run.set.split())
    given = dict.fromkeys(("model.name", "data.train", "data.public"), GIVEN)
    whole = experiment_file.with_settings(chosen, changes | given)
    federation = whole.federation
    optimizers.check(federation)
    for key, allowed in ALLOWED.items():
        value = attrgetter(key)(whole)
        if value not in allowed:
            raise SettingError(f"{key} = {value!r} is for simulations; allowed here: {', '.join(map(str, allowed))}")
    if optimizers.client_optimizer(federation).has_client_state:
        raise SettingError(
            f"federation.client = {federation.client!r} is for simulations: nodes remember nothing between rounds; "
            "allowed here: sgd, adam, adamw, fedprox"
        )
    if whole.model.by_cohort:
        raise SettingError("model.by_cohort is for simulations: all nodes have the app's model")
    return whole, run
