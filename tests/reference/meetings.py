"""Cohorts that meet: "train apart, and every so many virtual hours (or rounds) continue from the mean of their models".

"A cohort waits from the end of its last round that ends by then. A cohort that cannot do one round does one anyway,
and the meeting is when the last one arrives. A cohort that has stopped contributes its last model and gets nothing."
"""

from __future__ import annotations

import math

from . import clock, cohorts, network
from .algorithm import train


def train_cohorts(s, groups, clients, x, y, compute_ms, network_kbps, start, rounds=0, seconds=0.0, weights="equal"):
    """All cohorts until each has done s.max_rounds rounds: (records of each cohort, their models, the meetings)."""
    models, now, records = [start for _ in groups], [0.0 for _ in groups], [[] for _ in groups]
    work, meetings, due = [0 for _ in groups], [], seconds
    own = range(len(groups))

    def round_of(cohort, t):
        chosen = cohorts.participants(groups[cohort], s.participation, cohort, t, s.seed)
        sizes = [len(clients[k].training) for k in chosen]
        steps = [clock.steps_of(size, s.batch_size, s.local_epochs, s.local_steps) for size in sizes]
        computing = [clock.training_seconds(n, s.batch_size, compute_ms[k]) for n, k in zip(steps, chosen, strict=True)]
        kbps = [network_kbps[k] for k in chosen]
        return chosen, sum(sizes), clock.round_seconds(computing, kbps, s.model_bytes, len(groups[cohort]))

    while any(len(records[cohort]) < s.max_rounds for cohort in own):
        for cohort in own:
            begun = len(records[cohort])
            while len(records[cohort]) < s.max_rounds:
                t = len(records[cohort]) + 1
                chosen, samples, lasts = round_of(cohort, t)
                here = len(records[cohort]) - begun
                if here and (here == rounds or (seconds and now[cohort] + lasts > due)):
                    break
                trained = [
                    train(s, k, t, models[cohort], x[clients[k].training], y[clients[k].training]) for k in chosen
                ]
                models[cohort] = network.average(trained, [1] * len(trained))
                now[cohort] += lasts
                work[cohort] += samples
                records[cohort].append({"participants": chosen, "clock": now[cohort]})
        waiting = [cohort for cohort in own if len(records[cohort]) < s.max_rounds]
        if waiting:
            sizes = [sum(len(clients[k].training) for k in group) for group in groups]
            merged = network.average(models, {"equal": [1] * len(groups), "samples": sizes, "work": work}[weights])
            moment = max([*now, due if seconds else 0.0])
            for cohort in waiting:
                models[cohort], now[cohort] = merged, moment
            work = [0 for _ in groups]
            meetings.append({"clock": moment, "cohorts": waiting, "model": merged})
            due = (math.floor(moment / seconds) + 1) * seconds if seconds else 0.0
    return records, models, meetings
