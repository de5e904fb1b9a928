"""Triton kernels; imported only where there is a GPU."""
