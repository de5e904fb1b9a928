"""How long from the command to the first trained round? With an empty compile cache, then with a warm one.

python benchmarks/first_round.py --out results/first-round.json -- run cifar10 --data DIR --set cohorts=16
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch


def first_round(words: list[str], environment: dict[str, str]) -> float:
    """Seconds until the run folder holds a round; the run is ended then."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        began = time.perf_counter()
        command = [sys.executable, "-m", "cpfl", *words, "--out", str(path)]
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while not any(file.stat().st_size for file in path.glob("rounds/*.jsonl")):
            if run.poll() is not None:
                raise SystemExit(f"the run ended with code {run.returncode} before a round was done")
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        run.kill()
        run.wait()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("words", nargs="+")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        environment = {**os.environ, **caches}
        seconds = {name: first_round(words.words, environment) for name in ("cold", "warm")}
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    outcome = {"machine": name, "torch": torch.__version__, "command": words.words, "seconds": seconds}
    print(outcome)
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")


if __name__ == "__main__":
    main()
