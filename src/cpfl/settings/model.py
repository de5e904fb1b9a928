"""[model]: the model that clients train."""

from pydantic import Field

from cpfl.settings.types import Args, OptionalCount, Section


class Model(Section):
    """The model that clients train."""

    name: str = "mlp"
    """gn-lenet, femnist-cnn, mlp, or a class of yours as "module:Class"."""
    args: Args = Field(default_factory=dict)
    """Keyword arguments of that class."""
    bytes: OptionalCount = 0
    """Size on the network in bytes; 0: four bytes a parameter."""
    by_cohort: dict[str, str] = Field(default_factory=dict)
    """Cohorts that train another model, with its defaults: {"0" = "gn-lenet"}."""
