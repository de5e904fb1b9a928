"""The parts that an experiment names: ours by name, a user's by `module:Class`."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from cpfl.errors import CpflError, SettingError
from cpfl.experiment import Federation
from cpfl.federation.local_part import LocalPart
from cpfl.federation.local_parts import Adam, AdamW, FedDyn, FedProx, Scaffold, Sgd
from cpfl.federation.own_part import own_part
from cpfl.federation.server_part import ServerPart
from cpfl.federation.server_parts import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedNova,
    FedYogi,
    Krum,
    MeanPart,
    Median,
    TrimmedMean,
)
from cpfl.models import first_line
from cpfl.round_settings import aged

LOCAL_PARTS: dict[str, type[LocalPart]] = {
    "sgd": Sgd,
    "adam": Adam,
    "adamw": AdamW,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
}
SERVER_PARTS: dict[str, type[ServerPart]] = {
    "mean": MeanPart,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fednova": FedNova,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
}
Part = TypeVar("Part", LocalPart, ServerPart)


def local_part(federation: Federation) -> LocalPart:
    """How clients learn."""
    build = LOCAL_PARTS.get(federation.local) or own_part("federation.local", federation.local, LocalPart)
    return _built("local", federation.local, build, federation, federation.local_args)


def server_part(federation: Federation) -> ServerPart:
    """How their models become one."""
    build = SERVER_PARTS.get(federation.server) or own_part("federation.server", federation.server, ServerPart)
    return _built("server", federation.server, build, federation, federation.server_args)


def one_way_bytes(federation: Federation, model_bytes: int) -> int:
    """What travels to a client, and back: the model, and what the local part sends with it."""
    return model_bytes * local_part(federation).traffic


def check(federation: Federation) -> None:
    """That there are such parts and that they go together, told before anything is written."""
    local, server = local_part(federation), server_part(federation)
    if server.needs_all and federation.weights != "equal":
        raise SettingError(
            f"federation.server = {federation.server!r} needs every update and counts all alike: "
            'federation.weights must be "equal"'
        )
    kind = aged(federation)
    if kind and (local.keeps_rows or server.needs_all):  # ours were refused before; these are a user's
        which, name = ("local", federation.local) if local.keeps_rows else ("server", federation.server)
        raise SettingError(f"federation.{which} = {name!r} needs clients of one round: it does not go with {kind}")
    if type(local).settle is not LocalPart.settle and not isinstance(server, MeanPart):
        raise SettingError(
            f'federation.local = {federation.local!r} has a server step of its own: federation.server must be "mean"'
        )


def _built(key: str, name: str, build: type[Part], federation: Federation, args: dict[str, Any]) -> Part:
    try:
        inspect.signature(build).bind(federation, **args)
        return build(federation, **args)
    except CpflError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise SettingError(f"federation.{key} = {name!r} with federation.{key}_args = {args}: {reason}") from None
