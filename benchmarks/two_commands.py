"""Does a command of cpfl take as long with another commit? Both trees alternate in one call, and medians are compared.

The command is everything after `--`; it writes into a new folder each time.

    git worktree add OLD COMMIT
    python benchmarks/two_commands.py OLD . --out seconds.json -- \\
        sweep digits --cohorts 1,2,4,8 --seeds 90,91,92 --engine lanes --jobs 2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("command", nargs="+")
    words = parser.parse_args()
    trees = {"old": words.old.resolve(), "new": words.new.resolve()}
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for repeat in range(words.repeats):
        for name in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
            seconds[name].append(round(measure(trees[name], words.command), 2))
            print(name, seconds[name][-1], flush=True)
    old, new = (statistics.median(seconds[name]) for name in ("old", "new"))
    outcome = {"command": words.command, "seconds": seconds, "medians": [old, new], "ratio": round(old / new, 3)}
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")
    print(f"old {old:.1f} s   new {new:.1f} s   {old / new:.2f}×")


def measure(tree: Path, command: list[str]) -> float:
    """Seconds of the command with the code of this tree, from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        whole = [sys.executable, "-m", "cpfl", *command, "--out", str(Path(folder) / "out")]
        began = time.perf_counter()
        subprocess.run(whole, check=True, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
