"""λ_ik = inf over h in H of L_ik(h) + L_D(h): how well one model can do on a client and on the target at once.

λ̂_ik is what a jointly trained model reaches: one model trained on the samples of all clients and of the target. Its
risks are measured on samples that it has not seen. So it is an upper estimate: the best model of H may do better, on
one client and the target more so. Two models are trained, one on each half of the clients' samples; the mean counts.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from cpfl.bounds.domains import FOLDS, Domains, joined
from cpfl.bounds.fitting import fit
from cpfl.models.adapter import Inputs
from cpfl.randomness import stream

EPOCHS, BATCH = 40, 64
STEPS = 400  # at least, where samples are few


def joint_risks(domains: Domains) -> list[float]:
    """λ̂ of every client."""
    found = np.full((len(FOLDS), len(domains.halves)), np.nan)  # a single sample is measured by one model only
    for fold in FOLDS:
        task = domains.task
        module = fit(task, domains.precision, _batches(domains, fold), task.data.objective.loss, "joint-model", fold)
        target = domains.target.losses(module, domains.target_measures).mean()
        others = [halves[1 - fold] for halves in domains.halves]
        losses = domains.source.losses(module, np.concatenate(others))
        for client, own in enumerate(np.split(losses, np.cumsum([len(rows) for rows in others])[:-1])):
            if len(own):
                found[fold, client] = own.mean() + target
    means: list[float] = np.nanmean(found, axis=0).tolist()
    return means


def _batches(domains: Domains, fold: int) -> Iterator[tuple[Inputs, Tensor]]:
    """The clients' halves and the target's, shuffled anew in every epoch; a short last batch is left out."""
    own, target = np.concatenate([halves[fold] for halves in domains.halves]), domains.target_trains
    count = len(own) + len(target)
    whole = count // BATCH * BATCH
    for epoch in range(max(EPOCHS, math.ceil(STEPS / max(1, count // BATCH)))):
        order = stream(domains.task.experiment.seed, "joint", fold, epoch).permutation(count)
        for rows in order[:whole].reshape(-1, BATCH) if whole else [order]:
            ours, theirs = own[rows[rows < len(own)]], target[rows[rows >= len(own)] - len(own)]
            yield (
                joined(domains.source.inputs(ours), domains.target.inputs(theirs)),
                torch.cat([domains.source.labels(ours), domains.target.labels(theirs)]),
            )
