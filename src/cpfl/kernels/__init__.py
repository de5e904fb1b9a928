"""Layers that compute many models of one layout at once, one kernel for all; `layers.fit` puts them into a model."""

from cpfl.kernels import conv, norm, pool  # noqa: F401  (they register torch.ops.cpfl)
