"""Many models of one form at once: their layers, each one kernel for all of them.

A model in which `layers.fit` has put these layers is called under vmap, over stacked parameters.
"""

from cpfl.stacked import conv, norm, pool  # noqa: F401  (they make torch.ops.cpfl)
