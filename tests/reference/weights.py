"""How much each teacher counts, class by class.

The method: "cohort i gets for class c its share of that class, n[i,c] / Σ_j n[j,c] (label counts of its clients'
training data). A class nobody holds gets 1/n each. Every column sums to 1. `uniform` weighting is 1/n."
"""

from __future__ import annotations

import numpy as np


def label_counts(cohorts, training, y, classes):
    """n[i, c]: how many training samples of class c the clients of cohort i hold."""
    counts = np.zeros((len(cohorts), classes), dtype=np.int64)
    for i, members in enumerate(cohorts):
        for client in members:
            for sample in training[client]:
                counts[i, y[sample]] += 1
    return counts


def class_weights(counts, kind="labels"):
    """p[i, c], from the cohorts' label counts."""
    n, classes = counts.shape
    p = np.full((n, classes), 1.0 / n)
    if kind == "uniform":
        return p
    if kind != "labels":
        raise ValueError(f"unknown weights {kind!r}")
    for c in range(classes):
        total = sum(counts[j, c] for j in range(n))
        if total > 0:
            for i in range(n):
                p[i, c] = counts[i, c] / total
    return p


def aggregate(p, logits):
    """z̃ = Σ_i p_i ⊙ z_i, for z_i of shape (samples, classes)."""
    z = np.zeros_like(logits[0])
    for i in range(len(logits)):
        z = z + p[i] * logits[i]
    return z
