"""How clients learn and how their models become one: client and server optimizers; engines call them."""

from cpfl.errors import SettingError
from cpfl.federation import local_training
from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
from cpfl.federation.optimizers.server import FedAvg
from cpfl.settings import Federation
from cpfl.settings.choices import CLIENT_OPTIMIZERS, SERVER_OPTIMIZERS


def client_optimizer(federation: Federation) -> ClientOptimizer:
    """How clients learn."""
    return CLIENT_OPTIMIZERS.build(federation.client, federation.client_args, federation)


def server_optimizer(federation: Federation) -> ServerOptimizer:
    """How their models become one."""
    return SERVER_OPTIMIZERS.build(federation.server, federation.server_args, federation)


def one_way_bytes(federation: Federation, model_bytes: int) -> int:
    """What travels to a client, and back: the model, and what the client optimizer sends with it."""
    return model_bytes * client_optimizer(federation).traffic


def check(federation: Federation) -> None:
    """Refuse optimizers that do not exist or do not go together, before anything is written."""
    client, server = client_optimizer(federation), server_optimizer(federation)
    local_training.lr_schedule(federation)
    # Of the built-in optimizers such pairs were refused with the settings: these are a user's.
    client_name = f"federation.client = {federation.client!r}"
    server_name = f"federation.server = {federation.server!r}"
    if server.needs_all_models and federation.weights != "equal":
        raise SettingError(f'{server_name} needs every update and counts all alike: federation.weights must be "equal"')
    ages, kind = federation.mixes_ages, type(server)
    if ages and (client.has_client_state or server.needs_all_models):
        name = client_name if client.has_client_state else server_name
        raise SettingError(f"{name} needs clients of one round: it does not go with {ages}")
    if client.has_client_state and federation.batch_stats == "local":
        raise SettingError(f'{client_name} keeps state of clients by itself: federation.batch_stats must be "average"')
    own = [name for name in ("weight", "update_scale") if getattr(kind, name) is not getattr(ServerOptimizer, name)]
    if ages and own:  # age and federation.weights alone say how much an update counts there
        own_rules = f"its own {' and '.join(own)}, which ignores the age of updates"
        raise SettingError(f"{server_name} has {own_rules}: it does not go with {ages}")
    if type(client).correct_model is not ClientOptimizer.correct_model and not isinstance(server, FedAvg):
        raise SettingError(f'{client_name} has a server step of its own: federation.server must be "mean"')
