"""Who holds which samples.

The method: "for each class, shares over clients from one Dirichlet draw; each client gets the floor of its share and
the last client all that remains"; "a setting spreads the remainder instead";
"An empty client is meant to get one sample from a random client that has more than one";
"A client with at least 10 samples keeps 10 % of them as a local validation set".
"""

from __future__ import annotations

import math

import numpy as np

from cpfl.randomness import stream


def split_samples(kind, y, classes, clients, seed, alpha=1.0, shards=2, remainder="last"):
    """Every client's samples, ascending; no client is left empty."""
    if kind == "dirichlet":
        parts = dirichlet(y, classes, clients, seed, alpha, remainder)
    elif kind == "iid":
        parts = iid(len(y), clients, seed)
    elif kind == "shards":
        parts = by_shards(y, clients, seed, shards)
    else:
        raise ValueError(f"unknown split {kind!r}")
    return repair(parts, seed)


def dirichlet(y, classes, clients, seed, alpha, remainder):
    """Class by class, shares over the clients."""
    parts = [[] for _ in range(clients)]
    for c in range(classes):
        rng = stream(seed, "split", c)
        samples = np.array([i for i in range(len(y)) if y[i] == c], dtype=np.int64)
        order = rng.permutation(samples)
        shares = rng.dirichlet(np.full(clients, alpha))
        start = 0
        for client, count in enumerate(counts_of(shares, len(order), remainder)):
            parts[client] += [int(i) for i in order[start : start + count]]
            start += count
    return [sorted(part) for part in parts]


def counts_of(shares, total, remainder):
    """Each share of `total` samples, in whole samples."""
    exact = [float(share) * total for share in shares]
    counts = [math.floor(value) for value in exact]
    if remainder == "last":
        counts[-1] = total - sum(counts[:-1])
    elif remainder == "spread":
        by_fraction = sorted(range(len(counts)), key=lambda client: counts[client] - exact[client])  # stable
        for client in by_fraction[: total - sum(counts)]:
            counts[client] += 1
    else:
        raise ValueError(f"unknown remainder {remainder!r}")
    return counts


def iid(total, clients, seed):
    """All samples shuffled and cut into nearly equal parts."""
    order = stream(seed, "split").permutation(total)
    return [sorted(int(i) for i in part) for part in np.array_split(order, clients)]


def by_shards(y, clients, seed, shards):
    """Samples sorted by label, cut into clients × shards pieces, `shards` of them dealt to each client."""
    by_label = sorted(range(len(y)), key=lambda i: y[i])  # stable
    pieces = np.array_split(np.array(by_label, dtype=np.int64), clients * shards)
    deal = stream(seed, "split").permutation(clients * shards)
    parts = []
    for client in range(clients):
        own = deal[client * shards : (client + 1) * shards]
        parts.append(sorted(int(i) for piece in own for i in pieces[piece]))
    return parts


def repair(parts, seed):
    """An empty client gets one sample from a random client that has more than one."""
    parts = [sorted(part) for part in parts]
    for client in range(len(parts)):
        if parts[client]:
            continue
        rng = stream(seed, "repair", client)
        donors = [other for other in range(len(parts)) if len(parts[other]) > 1]
        donor = donors[rng.integers(len(donors))]
        position = rng.integers(len(parts[donor]))
        parts[client].append(parts[donor].pop(position))
    return parts


def hold_out(part, client, seed):
    """(training, validation) of one client: a tenth validates, where there are at least ten samples."""
    n = len(part)
    if n < 10:
        return list(part), []
    order = stream(seed, "validation", client).permutation(n)
    validation = n // 10
    return sorted(part[i] for i in order[validation:]), sorted(part[i] for i in order[:validation])
