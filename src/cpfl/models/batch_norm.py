"""Which parts of a model stay with a client whose BatchNorm layers are its own (FedBN, Li et al. 2021)."""

from torch import nn

from cpfl.settings import Federation


def local_names(federation: Federation, module: nn.Module) -> list[str]:
    """The tensors of a model's state that stay with each client; none where everything is averaged."""
    return names(module) if federation.batch_stats == "local" else []


def names(module: nn.Module) -> list[str]:
    """Parameters, running statistics and counters of BatchNorm layers, as the model's state names them."""
    return [
        f"{name}.{key}".lstrip(".")
        for name, layer in module.named_modules(remove_duplicate=False)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        for key in layer.state_dict()
    ]
