"""Is a commit as fast as another? Both trees alternate in one call, and medians of their rates are compared.

Cases are those of lanes.py, which both trees must have.

    git worktree add OLD COMMIT
    python benchmarks/two_commits.py OLD . --out rates.json lanes:16:bf16 lanes:16:tf32
    python benchmarks/two_commits.py OLD . --out rates.json --device cpu --each 120 workers:2:float32:femnist:8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    words, more = parser.parse_known_args()  # the rest is for lanes.py
    trees = {"old": words.old.resolve(), "new": words.new.resolve()}
    rates: dict[str, dict[str, list[float]]] = {}
    for repeat in range(words.repeats):
        for name in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
            for row in measure(trees[name], more):
                rates.setdefault(row["case"], {"old": [], "new": []})[name].append(row["samples_per_second"])
        words.out.write_text(json.dumps({"arguments": more, "samples_per_second": rates}, indent=2) + "\n")
    for case, found in rates.items():
        old, new = (statistics.median(found[name]) for name in ("old", "new"))
        print(f"{case:32} old {old:12,.0f}   new {new:12,.0f} samples/s   {new / old:.3f}×")


def measure(tree: Path, more: list[str]) -> list[dict[str, Any]]:
    """The rows of lanes.py in a process of its own, with the code of this tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rates.json"
        command = [sys.executable, str(tree / "benchmarks" / "lanes.py"), "--out", str(out), *more]
        subprocess.run(command, check=True, env=environment, cwd=tree)
        rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return rows


if __name__ == "__main__":
    main()
