"""The README's picture of speed, drawn from what was measured.

python benchmarks/speed_picture.py --speed results/lanes/speed-h200-fourth.json \
    --peers results/peers/h200.json --out docs/results/speed.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cpfl.reports import style

LOOP, PEER, OURS = "the plain loop", "pfl-research 0.6.0", "lanes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    cases = {row["case"]: row["samples_per_second"] for row in json.loads(words.speed.read_text())["rows"]}
    peer = json.loads(words.peers.read_text())["works"]["skewed"]["runs"]["pfl:1:tf32"][0]["samples_per_second"]
    loop = cases["reference:16:tf32"]
    rows = [
        {"way": f"{LOOP}, TF32", "kind": LOOP, "speed": loop},
        {"way": f"{PEER}, TF32, no validation or augmentation", "kind": PEER, "speed": peer},
        {"way": "lanes, n = 16, TF32", "kind": OURS, "speed": cases["lanes:16:tf32"]},
        {"way": "lanes, n = 16, bf16", "kind": OURS, "speed": cases["lanes:16:bf16"]},
        {"way": "lanes, n = 1, bf16", "kind": OURS, "speed": cases["lanes:1:bf16"]},
    ]
    for row in rows:
        row["label"] = f"{row['speed']:,.0f}" + (f", {row['speed'] / loop:.0f} times" if row["kind"] == OURS else "")
    # Bars begin at 0: their lengths can be compared.
    scale = {"domain": [0, 1.3 * max(float(row["speed"]) for row in rows)], "nice": False}
    ways = [str(row["way"]) for row in rows]
    base = {
        "x": style.field("speed:Q", title="samples trained a second", scale=scale, axis={"format": style.PLAIN}),
        "y": style.field("way:N", sort=ways, title=None, axis={"labelLimit": 330}),
    }
    spec = style.chart(
        "Samples a second by way of training",
        style.mark("bar", base | {"color": style.colour_of("kind", [OURS, PEER, LOOP]) | {"legend": None}}),
        style.mark("text", base | {"text": style.field("label:N")}, align="left", dx=5),
        height=170,
        rows=rows,
    )
    title = "One H200, the paper's CIFAR-10 experiment: whole rounds of 200 clients"
    style.save(spec | {"title": title}, words.out)


if __name__ == "__main__":
    main()
