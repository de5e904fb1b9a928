"""From an experiment's data and devices to its cohorts: what each plan needs to know of clients, and who learns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cpfl.cohorts import CohortPlan, labels, own_plan, random_plan, speeds, told
from cpfl.cohorts.measures import Floats
from cpfl.cohorts.own_plan import PlanPart
from cpfl.cohorts.seats import Index, listed
from cpfl.data.federated import FederatedData
from cpfl.devices import Fleet
from cpfl.errors import CpflError, SettingError
from cpfl.experiment import Cohorting, Experiment
from cpfl.federation import local, parts, selection
from cpfl.federation.building import built
from cpfl.federation.own_part import own_part
from cpfl.models import first_line
from cpfl.randomness import stream

LEARNS = "The global server, which makes the plan, learns"
LABELS = "how many samples of each label every single client holds, which the paper's method hides in its cohort's sum"
SPEEDS = "how long every single client's round takes, and so how fast its device and network are and how much it holds"
SEEN = {"labels": LABELS, "seconds": SPEEDS}  # what a plan of one's own may be shown


def plan_cohorts(experiment: Experiment, data: FederatedData, fleet: Fleet, model_bytes: int) -> CohortPlan:
    """The plan that the experiment asks for; the same for the same seed."""
    settings, n, seed = experiment.cohorting, experiment.cohorts, experiment.seed
    if settings.plan == "random":
        return random_plan(experiment.clients, n, seed)
    if settings.plan == "column":
        return told.by_value(client_values(data, settings.column), n, settings.column)
    if settings.plan == "csv":
        return told.from_csv(Path(settings.file).expanduser(), experiment.clients, n)
    if ":" in settings.plan:
        part = _own(settings)
        counts = data.counts if "labels" in part.sees else None
        seconds = round_seconds(experiment, data, fleet, model_bytes) if "seconds" in part.sees else None
        try:
            placed = part.place(experiment.clients, n, stream(seed, "cohorts"), counts, seconds)
            return own_plan.checked(settings.plan, placed, experiment.clients, n)
        except CpflError:
            raise
        except Exception as error:  # a user's plan can fail in any way
            raise SettingError(f"cohorting.plan = {settings.plan!r} cannot place: {first_line(error)}") from None
    order = stream(seed, "cohorts").permutation(experiment.clients)  # settles ties
    rng = stream(seed, "swaps")
    seats: Index
    if settings.plan == "label-balanced":
        seats = labels.balanced(data.counts, n, order, rng)
    elif settings.plan == "label-clustered":
        seats = labels.clustered(data.counts, n, order, rng)
    else:
        seconds = round_seconds(experiment, data, fleet, model_bytes)
        if settings.plan == "speed":
            seats = speeds.fast_with_fast(seconds, n, order)
        else:
            seats = speeds.weighed(data.counts, seconds, n, order, rng, settings.skew, settings.speed)
    return listed(seats)


def _own(settings: Cohorting) -> PlanPart:
    build = own_part("cohorting.plan", settings.plan, PlanPart)
    part: PlanPart = built("cohorting.plan", settings.plan, build, settings.plan_args)
    if not set(part.sees) <= set(SEEN):
        raise SettingError(f"cohorting.plan = {settings.plan!r} sees {part.sees!r}: a tuple of {', '.join(SEEN)}")
    return part


def round_seconds(experiment: Experiment, data: FederatedData, fleet: Fleet, model_bytes: int) -> Floats:
    """What each client's part in a round takes: the model down, its local work, the model up."""
    size = parts.one_way_bytes(experiment.federation, model_bytes)
    computing = _training_seconds(experiment, data, fleet)
    both_ways: Floats = np.array([2 * fleet.transfer_seconds(client, size) for client in range(len(computing))])
    return computing + both_ways


def round_cpu_seconds(
    experiment: Experiment, data: FederatedData, fleet: Fleet, plan: Sequence[Sequence[int]]
) -> list[float]:
    """What a round of each cohort will cost, on average over who takes part."""
    seconds, federation = _training_seconds(experiment, data, fleet), experiment.federation
    return [selection.size(federation, len(members)) * float(seconds[np.asarray(members)].mean()) for members in plan]


def _training_seconds(experiment: Experiment, data: FederatedData, fleet: Fleet) -> Floats:
    """Every client's local work of a round."""
    batch = experiment.federation.batch_size
    steps = local.all_steps(experiment.federation, data.clients.training_sizes).tolist()
    return np.array([fleet.training_seconds(client, count, batch) for client, count in enumerate(steps)])


def client_values(data: FederatedData, column: str) -> Sequence[str]:
    """Every client's value in a column of the training data, which all its samples must share."""
    if column not in data.train.columns:
        known = ", ".join(data.train.columns) or "none"
        raise SettingError(f"cohorting.column = {column!r} is no column of the training set; its columns: {known}")
    values, codes = np.unique(data.train.columns[column], return_inverse=True)
    least, most = data.clients.least_and_most(codes)
    several = np.flatnonzero(least != most)
    if len(several):
        one, other = values[least[several[0]]], values[most[several[0]]]
        raise SettingError(
            f"cohorting.column = {column!r} is not the same in all samples of a client (client {several[0]} has "
            f"{one!s} and {other!s}): a plan needs one value for each client"
        )
    return [str(value) for value in values[least]]


def reveals(settings: Cohorting) -> str:
    """What a plan needs to know of clients that the method itself does not, and who learns it: one sentence."""
    if ":" in settings.plan:
        seen = [text for name, text in SEEN.items() if name in _own(settings).sees]
        return f"{LEARNS} {', and '.join(seen)}." if seen else "The plan is shown nothing of any client."
    said: dict[str, Callable[[], str]] = {
        "random": lambda: "The plan is drawn at random and reveals nothing of any client.",
        "csv": lambda: (
            "The plan comes from a file: cpfl asks clients for nothing, and the file tells what its author knew."
        ),
        "column": lambda: f"{LEARNS} every single client's {settings.column}.",
        "speed": lambda: f"{LEARNS} {SPEEDS}.",
        "label-balanced": lambda: f"{LEARNS} {LABELS}.",
        "label-clustered": lambda: f"{LEARNS} {LABELS}; and clients of a cohort know that they hold similar labels.",
        "multi-objective": lambda: f"{LEARNS} {LABELS}, and {SPEEDS}.",
    }
    return said[settings.plan]()
