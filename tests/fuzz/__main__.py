"""python -m tests.fuzz MINUTES: batches of fuzz tests on every core, each with another seed, until the time is over.

A batch that fails says how to repeat it, and the others continue; the exit code is 1 then.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 20  # times as many examples as in `make test`


def batch(seed: int, folder: Path) -> tuple[int, int, str, Counter[str]]:
    """One batch in a process of its own: its seed, exit code, output and tally."""
    file = folder / f"{seed}.json"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/fuzz", f"--hypothesis-seed={seed}"]
    command.append(f"--basetemp={folder / str(seed)}")
    environment = os.environ | {"FUZZ": str(BATCH), "FUZZ_TALLY": str(file)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(folder / str(seed), ignore_errors=True)  # batches are many, and a disk is small
    tally = Counter(json.loads(file.read_text())) if file.is_file() else Counter[str]()
    return seed, done.returncode, done.stdout + done.stderr, tally


def main() -> int:
    until, total = time.monotonic() + 60 * float(sys.argv[1]), Counter[str]()
    seeds, failed = random.SystemRandom(), list[int]()

    def work(folder: Path) -> None:
        while time.monotonic() < until:
            seed, code, output, tally = batch(seeds.randrange(2**32), folder)
            total.update(tally)
            print(f"{time.strftime('%H:%M:%S')}  seed {seed:10}  {_words(total)}", flush=True)
            if code:
                failed.append(seed)
                print(output[-8000:])
                print(f"again: FUZZ={BATCH} python -m pytest tests/fuzz --hypothesis-seed={seed}", flush=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        cores = len(os.sched_getaffinity(0))
        for ended in [pool.submit(work, Path(folder)) for _ in range(cores)]:
            ended.result()
    print(f"{f'FAILED: {len(failed)} batches' if failed else 'no failure'}: {_words(total)}")
    return int(bool(failed))


def _words(total: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(total.items()))


if __name__ == "__main__":
    sys.exit(main())
