"""Cohorts that meet: "train apart, and every so many virtual hours (or rounds) continue from the mean of their models".

"A cohort waits from the end of its last round that ends by then. A cohort that cannot do one round does one anyway,
and the meeting is when the last one arrives. A cohort that has stopped contributes its last model and gets nothing."
Under the rule joint: "the merged model is evaluated at meetings. If all are to stop, it is not used."
"""

from __future__ import annotations

import math

import numpy as np

from cpfl.randomness import stream

from . import clock, cohorts, network
from .algorithm import train
from .stopping import all_stop


def train_cohorts(
    s, groups, clients, x, y, compute_ms, network_kbps, start, rounds=0, seconds=0.0, weights="equal",
    min_gain=None, window=6, gain_per="cpu_hours", redraw=False,
):  # fmt: skip
    """All cohorts until each has done s.max_rounds rounds: (records of each cohort, their models, the meetings).

    With `min_gain` also until the gain per doubling of the work is lower; a meeting then has what was evaluated.
    """
    points, cpu_seconds, groups = [], 0.0, [list(group) for group in groups]
    models, now, records = [start for _ in groups], [0.0 for _ in groups], [[] for _ in groups]
    work, meetings, due = [0 for _ in groups], [], seconds
    own = range(len(groups))

    def round_of(cohort, t):
        chosen = cohorts.participants(groups[cohort], s.participation, cohort, t, s.seed)
        sizes = [len(clients[k].training) for k in chosen]
        steps = [clock.steps_of(size, s.batch_size, s.local_epochs, s.local_steps) for size in sizes]
        computing = [clock.training_seconds(n, s.batch_size, compute_ms[k]) for n, k in zip(steps, chosen, strict=True)]
        kbps = [network_kbps[k] for k in chosen]
        lasts = clock.round_seconds(computing, kbps, s.model_bytes, len(groups[cohort]))
        return chosen, sum(sizes), lasts, sum(computing)

    while any(len(records[cohort]) < s.max_rounds for cohort in own):
        for cohort in own:
            begun = len(records[cohort])
            while len(records[cohort]) < s.max_rounds:
                t = len(records[cohort]) + 1
                chosen, samples, lasts, computing = round_of(cohort, t)
                here = len(records[cohort]) - begun
                if here and (here == rounds or (seconds and now[cohort] + lasts > due)):
                    break
                trained = [
                    train(s, k, t, models[cohort], x[clients[k].training], y[clients[k].training]) for k in chosen
                ]
                models[cohort] = network.average(trained, [1] * len(trained))
                now[cohort] += lasts
                work[cohort] += samples
                cpu_seconds += computing
                records[cohort].append({"participants": chosen, "clock": now[cohort]})
        waiting = [cohort for cohort in own if len(records[cohort]) < s.max_rounds]
        if waiting:
            sizes = [sum(len(clients[k].training) for k in group) for group in groups]
            merged = network.average(models, {"equal": [1] * len(groups), "samples": sizes, "work": work}[weights])
            moment = max([*now, due if seconds else 0.0])
            met = {"cohorts": waiting, "model": merged}
            if min_gain is not None:
                held = [k for k, client in enumerate(clients) if client.validation]
                counts = [len(clients[k].validation) for k in held]
                lasting, computing, sent = clock.evaluation(counts, compute_ms[held], network_kbps[held], s.model_bytes)
                stopped = [group for cohort, group in enumerate(groups) if cohort not in waiting]
                sent += s.model_bytes * sum(any(k in held for k in group) for group in stopped)
                moment, cpu_seconds = moment + lasting, cpu_seconds + computing
                every = np.concatenate([clients[k].validation for k in held])
                found = network.accuracy(network.logits(merged, x[every]), y[every])
                points.append(((cpu_seconds if gain_per == "cpu_hours" else moment) / 3600, found))
                met |= {"accuracy": found, "cpu_hours": cpu_seconds / 3600, "bytes": sent, "clock": moment}
                met["stop"] = all_stop(points, min_gain, window)
                if met["stop"]:
                    meetings.append(met)
                    break
            for cohort in waiting:
                models[cohort], now[cohort] = merged, moment
            if redraw:  # "drawn anew from the clients of those that continue; each keeps its size"
                pool = sorted(k for cohort in waiting for k in groups[cohort])
                order = list(stream(s.seed, "redraw", len(meetings) + 1).permutation(pool))
                for cohort in waiting:
                    size = len(groups[cohort])
                    groups[cohort], order = sorted(int(k) for k in order[:size]), order[size:]
                met["clients"] = [groups[cohort] for cohort in waiting]
            work = [0 for _ in groups]
            meetings.append(met | {"clock": moment})
            due = (math.floor(moment / seconds) + 1) * seconds if seconds else 0.0
    return records, models, meetings


def train_one_by_one(
    s, groups, clients, x, y, compute_ms, network_kbps, start, rounds=0, seconds=0.0, weights="equal", lr=1.0,
    momentum=0.0, damping=0.5,
):  # fmt: skip
    """Cohorts that do not wait: (records of each cohort, their models, the meetings).

    "A cohort meets the global model when it is ready: x ← x − η v with v ← μ v + ρ w Δ. ρ = (1 + s)^−damping; s counts
    the updates of others since the cohort began, beyond the n − 1 of cohorts that are as fast."
    """
    n = len(groups)
    x_now, v, meetings = start, dict.fromkeys(start, 0.0), []
    models, began, now = [start] * n, [start] * n, [0.0] * n
    records, seen, met_clock = [[] for _ in groups], [0] * n, [0.0] * n

    def until_ready(cohort):
        first = len(records[cohort])
        while len(records[cohort]) < s.max_rounds:
            t = len(records[cohort]) + 1
            chosen = cohorts.participants(groups[cohort], s.participation, cohort, t, s.seed)
            own = [clients[k].training for k in chosen]
            steps = [clock.steps_of(len(part), s.batch_size, s.local_epochs, s.local_steps) for part in own]
            computing = [
                clock.training_seconds(count, s.batch_size, compute_ms[k])
                for count, k in zip(steps, chosen, strict=True)
            ]
            kbps = [network_kbps[k] for k in chosen]
            now[cohort] += clock.round_seconds(computing, kbps, s.model_bytes, len(groups[cohort]))
            trained = [train(s, k, t, models[cohort], x[part], y[part]) for k, part in zip(chosen, own, strict=True)]
            models[cohort] = network.average(trained, [1] * len(trained))
            records[cohort].append({"participants": chosen, "clock": now[cohort]})
            done = len(records[cohort]) - first == rounds if rounds else now[cohort] >= met_clock[cohort] + seconds
            if done and len(records[cohort]) < s.max_rounds:
                return True
        return False

    ready = [cohort for cohort in range(n) if until_ready(cohort)]
    while ready:
        cohort = min(ready, key=lambda one: (now[one], one))
        sizes = [sum(len(clients[k].training) for k in group) for group in groups]
        share = sizes[cohort] / sum(sizes) if weights == "samples" else 1 / n
        stale = max(0, len(meetings) - seen[cohort] - (n - 1))
        for name in x_now:
            v[name] = momentum * v[name] + share * (1 + stale) ** -damping * (
                began[cohort][name] - models[cohort][name]
            )
        x_now = {name: value - lr * v[name] for name, value in x_now.items()}
        meetings.append({"clock": now[cohort], "cohorts": [cohort], "model": x_now})
        models[cohort] = began[cohort] = x_now
        seen[cohort], met_clock[cohort] = len(meetings), now[cohort]
        if not until_ready(cohort):
            ready.remove(cohort)
    return records, models, meetings
