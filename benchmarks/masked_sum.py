"""What does a masked sum cost a client and the server? 200 clients, 62 classes; prints one table, writes one JSON.

python benchmarks/masked_sum.py [CLIENTS] [CLASSES] [OUT.json]
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cpfl.privacy.masked_sum import MaskedSumClient, MaskedSumServer

CLIENTS, CLASSES = int(sys.argv[1]) if len(sys.argv) > 1 else 200, int(sys.argv[2]) if len(sys.argv) > 2 else 62
DROPPED = CLIENTS // 10  # a tenth drops out before it sends: the expensive case for the server


def timed(times: list[float], do: Callable[..., Any], *words: object) -> Any:
    """The result of a call, whose duration is recorded."""
    began = time.perf_counter()
    answer = do(*words)
    times.append(1000 * (time.perf_counter() - began))
    return answer


def measure(dropped: int) -> dict[str, float]:
    """Milliseconds of one sum, by party; the median over clients."""
    values = np.random.default_rng(0).integers(0, 500, (CLIENTS, CLASSES))
    members = {number: MaskedSumClient() for number in range(1, CLIENTS + 1)}
    keys, shares, masked, reveal, server = ([] for _ in range(5))  # type: ignore[var-annotated]
    began = time.perf_counter()
    tally = MaskedSumServer({number: timed(keys, member.keys) for number, member in members.items()})
    messages = {number: timed(shares, member.shares, number, tally.roster) for number, member in members.items()}
    passed = timed(server, tally.relay, messages)
    staying = [number for number in members if number > dropped]
    for number in staying:
        timed(server, tally.add, number, timed(masked, members[number].masked, values[number - 1], passed[number]))
    reveals = [(number, timed(reveal, members[number].reveal, tally.sent())) for number in staying]
    total = timed(server, tally.result, reveals)
    assert (total == values[dropped:].sum(axis=0)).all()
    steps = {"keys": keys, "shares": shares, "masked": masked, "reveal": reveal}
    by_step = {name: round(statistics.median(times), 2) for name, times in steps.items()}
    bytes_up = 64 + sum(map(len, messages[1].values())) + 4 * CLASSES + 33 * CLIENTS
    return {
        **by_step,
        "a client": round(sum(by_step.values()), 1),
        "the server": round(sum(server), 1),
        "all in one process": round(1000 * (time.perf_counter() - began)),
        "kB sent by a client": round(bytes_up / 1000, 1),
    }


rows = {"no client drops out": measure(0), f"{DROPPED} drop out": measure(DROPPED)}
print(f"{CLIENTS} clients, {CLASSES} classes; milliseconds")
print(f"{'':<22}" + "".join(f"{name:>22}" for name in rows))
for line in rows["no client drops out"]:
    print(f"{line:<22}" + "".join(f"{row[line]:>22}" for row in rows.values()))
if len(sys.argv) > 3:
    about = {"clients": CLIENTS, "classes": CLASSES, "machine": platform.machine(), "python": platform.python_version()}
    with open(sys.argv[3], "w") as file:
        json.dump({**about, "milliseconds": rows}, file, indent=2)
