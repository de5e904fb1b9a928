"""The parts that an experiment names: ours by name, a user's by `module:Class`."""

from __future__ import annotations

from cpfl.errors import SettingError
from cpfl.experiment import Federation
from cpfl.federation.building import built
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


def local_part(federation: Federation) -> LocalPart:
    """How clients learn."""
    build = LOCAL_PARTS.get(federation.local) or own_part("federation.local", federation.local, LocalPart)
    return built("federation.local", federation.local, build, federation.local_args, federation)


def server_part(federation: Federation) -> ServerPart:
    """How their models become one."""
    build = SERVER_PARTS.get(federation.server) or own_part("federation.server", federation.server, ServerPart)
    return built("federation.server", federation.server, build, federation.server_args, federation)


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
    own = [name for name in ("weight", "pace") if getattr(type(server), name) is not getattr(ServerPart, name)]
    if kind and own:  # age and federation.weights alone say how much an update counts there
        raise SettingError(
            f"federation.server = {federation.server!r} has its own {' and '.join(own)}, by which updates of different "
            f"age do not go: it does not go with {kind}"
        )
    if type(local).settle is not LocalPart.settle and not isinstance(server, MeanPart):
        raise SettingError(
            f'federation.local = {federation.local!r} has a server step of its own: federation.server must be "mean"'
        )
