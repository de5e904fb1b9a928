"""Layers that compute many models of one layout at once, one kernel for all; `layers.fit` puts them into a model."""
