"""Do lanes train what the plain loop trains? Whole runs on float64, ragged clients, n from 1 to M, on this device.

python benchmarks/lanes_equal.py --out results/lanes-equal.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

import cpfl

BASE = {"precision": "float64", "max_rounds": 8, "distillation.epochs": 1}
CASES = {
    "n = 4, momentum": {},
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 40},
    "no momentum": {"federation.momentum": 0.0},
    "partial, by samples": {"federation.participation": 0.4, "federation.weights": "samples"},
    "local steps": {"federation.local_steps": 3},
    "batch larger than most clients": {"federation.batch_size": 64},
    "convolutions": {"model.name": "femnist-cnn", "max_rounds": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    words = parser.parse_args()
    rows = []
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            plain, lanes = (
                cpfl.run("digits", out=Path(place) / e, engine=e, device=words.device, settings=BASE | settings)
                for e in ("reference", "lanes")
            )
            worst = 0.0
            for a, b in zip(plain.rounds, lanes.rounds, strict=True):
                for key, value in a.items():
                    if isinstance(value, float):
                        worst = max(worst, abs(value - b[key]))
                    else:
                        assert value == b[key], (name, key, value, b[key])
            model = max((plain.model[k] - lanes.model[k]).abs().max().item() for k in plain.model)
            rows.append({"case": name, "rounds": len(plain.rounds), "records": worst, "global model": model})
            print(f"{name:32} {len(plain.rounds):5} rounds   records {worst:.1e}   model {model:.1e}", flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    words.out.write_text(json.dumps({"machine": device, "torch": torch.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
