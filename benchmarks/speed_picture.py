"""The README's picture of speed, drawn from what was measured.

python benchmarks/speed_picture.py --speed results/lanes/speed-h200-fourth.json \
    --peers results/peers/h200.json --out docs/speed.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import altair as alt

from cpfl.report import style

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
    colour = style.colour_of("kind", [OURS, PEER, LOOP]).legend(None)
    way = alt.Y("way:N", sort=[str(row["way"]) for row in rows], title=None, axis=alt.Axis(labelLimit=330))
    # Bars begin at 0: their lengths can be compared.
    scale = alt.Scale(domain=[0, 1.3 * max(float(row["speed"]) for row in rows)], nice=False)
    speed = alt.X("speed:Q", title="samples trained a second", scale=scale, axis=alt.Axis(format=style.PLAIN))
    bars = style.data("rows").mark_bar().encode(x=speed, y=way, color=colour)
    texts = style.data("rows").mark_text(align="left", dx=5).encode(x=speed, y=way, text="label:N")
    title = "One H200, the paper's CIFAR-10 experiment: whole rounds of 200 clients"
    spec = style.finished(alt.layer(bars, texts), title, "Samples a second by way of training", height=170)
    style.save(style.filled(spec, rows=rows), words.out)


if __name__ == "__main__":
    main()
