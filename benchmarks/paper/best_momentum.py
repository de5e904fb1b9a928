"""Which server momentum gives the best accuracy on the clients' validation samples? Prints it.

Each folder holds runs with the stopping rule `joint` and one momentum. Only runs that every folder has, by name, are
compared: by the last evaluation of the ensemble of all cohort models, averaged over the runs.

    python benchmarks/paper/best_momentum.py runs/momentum-0.8 runs/momentum-0.9
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from cpfl.runs import records
from cpfl.runs.folder import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    runs = {
        folder: {path.parent.name: RunFolder.open(path.parent) for path in sorted(folder.glob("*/summary.json"))}
        for folder in parser.parse_args().folders
    }
    common = sorted(set.intersection(*(set(named) for named in runs.values())))
    if not common:
        parser.error("these folders have no finished run in common, by name")
    found: dict[float, float] = {}
    for named in runs.values():
        values = {name: records.read(named[name].evaluations())[-1]["accuracy"] for name in common}
        momentum = named[common[0]].experiment().federation.server_args.get("momentum", 0.9)
        found[momentum] = statistics.fmean(values.values())
        print(momentum, {name: round(value, 2) for name, value in values.items()}, file=sys.stderr)
    print(max(found, key=lambda momentum: found[momentum]))


if __name__ == "__main__":
    main()
