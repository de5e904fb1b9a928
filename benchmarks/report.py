"""How long does a report over many finished runs take, how large is its page, and how soon can a reader use it?

The runs are copies of a few that were really made, with other seeds, α or more cohorts.

python benchmarks/report.py --out results/report.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cpfl
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.settings import experiment_file

NUMBERS = (1, 2, 4, 8, 16)
CASES: dict[str, dict[str, Any]] = {
    "5 n, 20 seeds": {"seeds": range(20), "alphas": (0.5,), "numbers": NUMBERS},
    "5 n, 4 seeds, 5 α": {"seeds": range(4), "alphas": (0.1, 0.3, 0.5, 1.0, 3.0), "numbers": NUMBERS},
    "200 cohorts, 5 seeds": {"seeds": range(5), "alphas": (0.5,), "numbers": (1, 16), "cohorts": 200},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", choices=CASES, action="append", help="may be repeated; default: all")
    parser.add_argument("--max-rounds", type=int, default=600, help="of the runs that are copied")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        chosen = given.case or list(CASES)
        originals = {
            n: cpfl.run(
                "digits",
                out=Path(scratch) / f"n{n}",
                settings={"cohorts": n, "max_rounds": given.max_rounds, "distillation.epochs": 2},
                engine="lanes",
            ).path
            for n in sorted({n for case in chosen for n in CASES[case]["numbers"]})
        }
        for i, name in enumerate(chosen):
            case, folder = CASES[name], Path(scratch) / "runs" / str(i)
            for n in case["numbers"]:
                for seed in case["seeds"]:
                    for alpha in case["alphas"]:
                        more = case.get("cohorts", n) if n > 1 else n
                        copy(originals[n], folder / f"n{more}-seed{seed}-{alpha}", seed, alpha, more)
            rows.append({"case": name, **measure(folder), **opened(folder / "report.html")})
            print(" · ".join(f"{key} {value}" for key, value in rows[-1].items()))
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"machine": machine, "cases": rows}, indent=2) + "\n")


def copy(original: Path, target: Path, seed: int, alpha: float, cohorts: int) -> None:
    """The same run under another seed and α, its cohorts repeated, its outcome shifted so that there is a spread."""
    shutil.copytree(original, target, ignore=shutil.ignore_patterns("models", "checkpoints", "snapshots"))
    experiment = experiment_file.read_stored(target / "experiment.toml")
    own, changes = experiment.cohorts, {"seed": seed, "data.alpha": alpha, "clients": 400, "cohorts": cohorts}
    (target / "experiment.toml").write_text(
        experiment_file.to_toml(experiment_file.with_settings(experiment, changes, strict=False))
    )
    about, summary = (json.loads((target / name).read_text()) for name in ("run.json", "summary.json"))
    for key in ("cohorts", "label_counts"):
        about[key] = [about[key][i % own] for i in range(cohorts)]
    by_cohort = [summary["by_cohort"][i % own] | {"cohort": i} for i in range(cohorts)]
    summary |= {"seed": seed, "hours": summary["hours"] * (1 + seed / 50), "cohorts": cohorts, "by_cohort": by_cohort}
    for i in range(own, cohorts):
        shutil.copy(target / "rounds" / f"cohort-{i % own:04d}.jsonl", target / "rounds" / f"cohort-{i:04d}.jsonl")
    about["experiment_checksum"] = hashlib.sha256((target / "experiment.toml").read_bytes()).hexdigest()
    (target / "run.json").write_text(json.dumps(about | {"checksum": files.checksum(about)}))
    summary["run"] = RunFolder(target).identity
    (target / "summary.json").write_text(json.dumps(summary | {"checksum": files.checksum(summary)}))


def measure(folder: Path) -> dict[str, Any]:
    """The command as a user gives it, in a process of its own."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cpfl", "report", str(folder)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    return {
        "runs": len(list(folder.glob("*/run.json"))),
        "round_records": sum(file.read_bytes().count(b"\n") for file in folder.glob("*/rounds/*.jsonl")),
        "figure_files": len(list((folder / "figures").iterdir())),
        "page_mb": round((folder / "report.html").stat().st_size / 1e6, 2),
        "seconds": round(seconds, 2),
    }


def opened(page: Path) -> dict[str, Any]:
    """CPU seconds of the browser until sliders answer and until all is drawn, and what one move of a slider takes."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        path = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=0)
        tab = browser.new_page()
        tab.set_default_timeout(0)
        meter = tab.context.new_cdp_session(tab)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})  # not while another has the core

        def spent() -> float:
            metrics = meter.send("Performance.getMetrics")["metrics"]
            return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

        tab.goto(page.resolve().as_uri(), wait_until="commit")
        tab.wait_for_selector("html[data-ready=yes]")
        drawn = spent()
        marks = {
            name: tab.evaluate(f"performance.getEntriesByName('{name}')[0].startTime") / 1000
            for name in ("usable", "painted")
        }
        tab.evaluate(
            """() => { const input = document.querySelector('.sliders input');
                for (let i = 0; i < 20; i++) { input.value = i; input.dispatchEvent(new Event('input')); } }"""
        )
        moved = (spent() - drawn) / 20
        browser.close()
    seconds = {f"{name}_s": round(value, 2) for name, value in marks.items()}
    return {
        **seconds,
        "load": round(os.getloadavg()[0], 1),
        "drawn_cpu_s": round(drawn, 2),
        "slider_cpu_ms": round(1000 * moved, 1),
    }


if __name__ == "__main__":
    main()
