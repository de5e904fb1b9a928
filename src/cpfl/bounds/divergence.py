"""How far a client's distribution D_ik lies from the target D: what stands for the HΔH-divergence, from 0 to 2.

d(D', D) = 2 sup over h, h' in H of |P_D'(h ≠ h') − P_D(h ≠ h')| cannot be computed for a network. Instead of it:

classifier  The proxy A-distance (Ben-David et al. 2007), 2 (1 − 2ε), not below 0: ε is the error, on samples that it
            has not seen, of a small classifier that tells the client's samples from the target's.
labels      Σ_c |q_k(c) − q(c)|, twice the total variation between the shares of the labels.
"""

import math
from collections.abc import Iterator
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cpfl.bounds.domains import FOLDS, Domains, joined
from cpfl.bounds.fitting import fit
from cpfl.models.adapter import Inputs
from cpfl.objectives.base import NOT_COUNTED
from cpfl.randomness import stream

LARGEST = 2.0
BATCH = 32  # samples of the client in a step, and as many of the target
EPOCHS = 100  # over the client's samples; more steps for a small client would only make it overfit


def proxy_a_distance(error: float) -> float:
    """2 (1 − 2ε), clipped at 0; 2 for a classifier that is always right, 0 for one that guesses."""
    return max(0.0, LARGEST * (1 - 2 * error))


def by_classifier(domains: Domains) -> list[float]:
    """The proxy A-distance of every client; of a client with a single sample, which cannot be both trained on and
    measured, the largest there is."""
    found = list[float]()
    for client, rows in enumerate(domains.clients):
        errors = [_error(domains, client, fold) for fold in FOLDS] if len(rows) > 1 else [0.0]
        found.append(proxy_a_distance(fmean(errors)))
    return found


def by_labels(domains: Domains) -> list[float]:
    """Twice the total variation distance of every client."""
    data = domains.task.data
    assert data.test.y is not None, "labels were checked"
    items = data.objective.counted(data.test.y)
    counts_C = np.bincount(items[items != NOT_COUNTED], minlength=data.classes)
    return [label_distance(own_C, counts_C) for own_C in data.counts]


def label_distance(own_C: NDArray[np.int64], target_C: NDArray[np.int64]) -> float:
    """Σ_c |q'(c) − q(c)| between the shares that these counts are."""
    return float(np.abs(own_C / own_C.sum() - target_C / target_C.sum()).sum())


RULES = {"classifier": by_classifier, "labels": by_labels}


def _error(domains: Domains, client: int, fold: int) -> float:
    """ε: the mean of a classifier's error on the client's other half and of that on the target's."""
    task, precision = domains.task, domains.precision
    halves = domains.halves[client]
    batches = _batches(domains, client, fold)
    module = fit(task, precision, batches, _loss, "domain-model", client, fold)
    from_client = _logits(domains.source.answers(module, halves[1 - fold]))
    from_target = _logits(domains.target.answers(module, domains.target_measures))
    wrong = (from_client[:, 0] <= from_client[:, 1], from_target[:, 0] >= from_target[:, 1])
    return sum(each.double().mean().item() for each in wrong) / 2


def _batches(domains: Domains, client: int, fold: int) -> Iterator[tuple[Inputs, Tensor]]:
    """As many samples of the client, 0, as of the target, 1."""
    rng = stream(domains.task.experiment.seed, "domain", client, fold)
    half = domains.halves[client][fold]
    shape = (math.ceil(EPOCHS * len(half) / BATCH), BATCH)
    own, other = rng.choice(half, shape), rng.choice(domains.target_trains, shape)
    labels = torch.tensor([0] * BATCH + [1] * BATCH, device=domains.precision.device)
    for rows, target_rows in zip(own, other, strict=True):
        yield joined(domains.source.inputs(rows), domains.target.inputs(target_rows)), labels


def _loss(answers: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(_logits(answers), y)


def _logits(answers: Tensor) -> Tensor:
    """The first two outputs of the run's model as logits of the two domains, the mean over positions where it has
    any; a single output is that of the second one."""
    found = answers.flatten(1, -2).mean(1) if answers.dim() > 2 else answers
    return found[:, :2] if found.shape[1] > 1 else torch.cat([torch.zeros_like(found), found], dim=1)
