"""Two fleets, and what `cpfl tune` recommends for each: whether cohorts pay.

    python benchmarks/tune_fleets.py    # writes results/tune/fleets.json

equal    Twelve equal devices with a mix of all classes: one cohort learns from everybody in every round.
unequal  Eight devices of four speeds, each with few classes. Every client's work must count in every round: no
         deadline, nobody is dropped, no partial work. One cohort waits for the slowest device.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cpfl
from cpfl.runs import files

RESULTS = Path(__file__).parents[1] / "results" / "tune"
SPEEDS = [5, 5, 15, 15, 45, 45, 135, 135]  # milliseconds a sample
COMMON: dict[str, Any] = {
    "data.public_limit": 500,
    "data.validation": 0.3,
    "federation.lr": 0.05,
    "federation.momentum": 0.5,
    "distillation.weights": "labels",
    "distillation.epochs": 50,
}
SEARCH: dict[str, Any] = {
    "cohorts": [1, 2, 4],
    "assignment.rule": ["random", "speed"],
    "federation.participation": [0.5, 1.0],
    "federation.server": ["mean", "fedavgm"],
    "federation.server_args.lr": {"values": [0.3, 1.0], "when": "federation.server = fedavgm"},
    "federation.local_epochs": [1, 4],
}
TRIALS = 24


def fleets(folder: Path) -> dict[str, tuple[float, dict[str, Any], dict[str, Any]]]:
    """Hours, settings and the search of each fleet."""
    csv = folder / "unequal.csv"
    rows = [f"{number},{speed},5000" for number, speed in enumerate(SPEEDS)]
    csv.write_text("\n".join(["client_id,computation_ms_per_sample,communication_kbps", *rows]) + "\n")
    equal = {"clients": 12, "data.train_limit": 840, "data.alpha": 10, "devices.trace": "fixed"}
    unequal = {
        "clients": 8, "data.train_limit": 840, "data.alpha": 0.1, "devices.trace": str(csv),
        "federation.deadline": 0,
    }  # fmt: skip
    return {
        "equal": (0.1, {**COMMON, **equal}, SEARCH),
        "unequal": (0.1, {**COMMON, **unequal}, SEARCH),
    }


def main(names: list[str]) -> None:
    """Tune for both fleets."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (hours, settings, search) in fleets(Path(folder)).items():
            if names and name not in names:
                continue
            began = time.perf_counter()
            result = cpfl.tune(
                "digits", hours=hours, settings=settings, search=search, trials=TRIALS, points=10, seeds=3,
                out=Path(folder) / name, device="cpu",
            )  # fmt: skip
            tree = result.tree
            print(f"{name}: {time.perf_counter() - began:.0f} s\n{tree['paragraph']}\n", flush=True)
            keys = ("goal", "limits", "finalists", "recommendation", "paragraph", "tests", "importances", "front")
            found[name] = {"settings": settings, "search": search, "trials": TRIALS, **{key: tree[key] for key in keys}}
    if not names:
        RESULTS.mkdir(parents=True, exist_ok=True)
        files.write_json(RESULTS / "fleets.json", found)


if __name__ == "__main__":
    main(sys.argv[1:])
