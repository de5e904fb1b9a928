"""Virtual time and traffic.

The method: "Training time of a client in a round = 3 × steps × batch_size × computation / 1000 seconds";
"Transfer time = model bytes / (communication × 1024 / 8 bytes/s), once down and once up";
"A synchronous round lasts as long as its slowest participant: download + train + upload";
"A cohort with one client has neither traffic nor transfer time";
"plus every cohort's model to the global server at the end".
"""

from __future__ import annotations

import math


def steps_of(samples, batch_size, local_epochs, local_steps):
    """Mini-batches of one client in one round; the last one of an epoch may be short."""
    if local_steps is not None:
        return local_steps
    return local_epochs * math.ceil(samples / batch_size)


def training_seconds(steps, batch_size, compute_ms):
    """3: forward and backward pass over inference. A short batch costs as much as a full one."""
    return 3 * steps * batch_size * compute_ms / 1000


def transfer_seconds(model_bytes, kbps):
    """One way."""
    return model_bytes / (kbps * 1024 / 8)


def round_seconds(training, kbps, model_bytes, cohort_size):
    """Duration of a round; `training` and `kbps` are those of its participants."""
    durations = []
    for seconds, speed in zip(training, kbps, strict=True):
        transfer = 0.0 if cohort_size == 1 else transfer_seconds(model_bytes, speed)
        durations.append(transfer + seconds + transfer)
    return max(durations)


def round_bytes(participants, model_bytes, cohort_size):
    """Down and up, for every participant."""
    return 0 if cohort_size == 1 else 2 * model_bytes * participants


def final_bytes(cohorts, model_bytes):
    """Every cohort's model to the global server."""
    return cohorts * model_bytes


def evaluation(samples, compute_ms, kbps, model_bytes):
    """Clients receive one model and run it on so many samples each: how long the slowest takes, CPU seconds, bytes.

    The method: "These forward passes, a third of a training pass, count as CPU hours; the slowest client's time counts
    as hours".
    """
    computing = [count * ms / 1000 for count, ms in zip(samples, compute_ms, strict=True)]
    lasting = [c + transfer_seconds(model_bytes, speed) for c, speed in zip(computing, kbps, strict=True)]
    return max(lasting), sum(computing), len(samples) * model_bytes
