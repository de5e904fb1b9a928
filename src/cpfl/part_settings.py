"""Which local and server parts an experiment can name, and which of their settings go together."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpfl.experiment import Federation

LOCALS = ("sgd", "adam", "adamw", "fedprox", "scaffold", "feddyn")
SERVERS = ("mean", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fednova", "median", "trimmed-mean", "krum")
LED = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")  # with a rate of their own
COUNTED = ("median", "trimmed-mean", "krum")  # every client alike


def own_defaults(server: object) -> dict[str, float]:
    """Settings that begin elsewhere with a server part than with the others."""
    return {"server_momentum": 0.0} if server == "fedadagrad" else {}  # as Reddi et al. 2021 set it


def discord(settings: Federation) -> str:
    """The first thing that is wrong with the choice of parts, in one sentence; empty: nothing is."""
    for key, name, args, known in (
        ("local", settings.local, settings.local_args, LOCALS),
        ("server", settings.server, settings.server_args, SERVERS),
    ):
        if trouble := _unknown(key, name, known):
            return trouble
        if args and name in known:
            return f"{key}_args goes with a class of your own; {name} has its settings beside it"
        if any(value is None for value in args.values()):
            return f"{key}_args has a value of None, which a file cannot hold: leave it out"
    if settings.schedule != "constant" and not settings.schedule_rounds:
        return f"schedule = {settings.schedule!r} needs schedule_rounds, at least 1"
    return _local(settings) or _server(settings)


def _unknown(key: str, name: str, known: tuple[str, ...]) -> str:
    if name in known or ":" in name:
        return ""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{key} = {name!r} is unknown; {hint}Known: {', '.join(known)}, or module:Class"


def _local(settings: Federation) -> str:
    if settings.nesterov and not settings.momentum:
        return "nesterov looks ahead along the momentum: momentum must be above 0"
    if settings.local in ("adam", "adamw") and settings.momentum:
        return f"local = {settings.local!r} has a momentum of its own, beta1: momentum must be 0"
    if settings.local == "scaffold" and settings.momentum:
        return 'local = "scaffold" takes the path of plain SGD for the mean slope: momentum must be 0'
    if settings.local == "scaffold" and settings.server in COUNTED:
        return (
            f'local = "scaffold" moves with the mean of its clients: server = {settings.server!r} takes another model'
        )
    if settings.local == "feddyn" and settings.server != "mean":
        return 'local = "feddyn" has a server step of its own: server must be "mean"'
    if settings.local == "feddyn" and settings.update_norm:
        return 'local = "feddyn" corrects the plain mean of the models: update_norm must be 0'
    return ""


def _server(settings: Federation) -> str:
    if settings.server == "fednova" and (settings.local != "sgd" or settings.nesterov):
        return 'server = "fednova" counts what each step of plain SGD adds: local must be "sgd", without nesterov'
    if settings.server in COUNTED and settings.weights != "equal":
        return f'server = {settings.server!r} counts every client alike: weights must be "equal"'
    if settings.server_lr and settings.server in SERVERS and settings.server not in LED:
        return f"server = {settings.server!r} has no rate of its own: server_lr goes with {', '.join(LED)}"
    return ""
