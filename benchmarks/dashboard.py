"""What does a dashboard cost a run, and how soon is a run with 200 cohorts on the screen?

The same short run again and again, alternately without a dashboard and with one that a client polls every two seconds,
as a page does. Then a real run copied to 200 cohorts, unfinished, is opened in Chromium.

python benchmarks/dashboard.py --out results/dashboard.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CPFL = [sys.executable, "-m", "cpfl"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=10, help="runs with a dashboard, and as many without")
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        outcome = {
            "load": load(Path(scratch) / "load", given.turns, given.rounds),
            "cohorts_200": wide(Path(scratch) / "wide"),
        }
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"machine": machine, **outcome}, indent=2) + "\n")


def load(scratch: Path, turns: int, rounds: int) -> dict[str, Any]:
    """The run's own training time and CPU time, with and without a dashboard."""
    scratch.mkdir()
    seen: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(turns):
        for watched in (False, True) if turn % 2 else (True, False):
            dashboard = Polled(scratch / "runs") if watched else None
            took = run(scratch / "runs" / f"{turn}-{watched}", rounds)
            if dashboard:
                took |= dashboard.end()
            seen[watched].append(took)
            shutil.rmtree(scratch / "runs")
            line = " · ".join(f"{key} {value:.2f}" for key, value in took.items())
            print(f"{'with a dashboard' if watched else 'alone':<17} {line}")
    pairs = zip(seen[True], seen[False], strict=True)
    ratios = [{key: a[key] / b[key] for key in ("wall_seconds", "cpu_seconds")} for a, b in pairs]
    outcome = {
        "runs": {"alone": seen[False], "with a dashboard": seen[True]},
        "ratio_wall": _mean([ratio["wall_seconds"] for ratio in ratios]),
        "ratio_cpu": _mean([ratio["cpu_seconds"] for ratio in ratios]),
        "spread_alone": round(_spread([one["wall_seconds"] for one in seen[False]]), 3),
        "dashboard_share_of_a_core": round(
            statistics.median(one["dashboard_cpu"] / one["dashboard_seconds"] for one in seen[True]), 4
        ),
    }
    print({key: value for key, value in outcome.items() if key != "runs"})
    return outcome


def run(out: Path, rounds: int) -> dict[str, float]:
    """One run in a process of its own."""
    settings = {"cohorts": 8, "stopping.rule": "rounds", "stopping.rounds": rounds, "distillation.epochs": 1}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [*CPFL, "run", "digits", *words, "--engine", "reference", "--out", str(out)],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    seconds = json.loads((out / "summary.json").read_text())["wall_seconds"]
    return {"wall_seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime}


class Polled:
    """A dashboard and a client that polls it as an open page does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [*CPFL, "dashboard", str(folder), "--port", "0"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://\S+/", self.process.stdout.readline())
        assert found
        self.address = found[0]
        self._began, self._cpu, self.requests = time.monotonic(), _cpu(self.process.pid), 0
        self._ended = threading.Event()
        self._client = threading.Thread(target=self._poll)
        self._client.start()

    def _poll(self) -> None:
        tag = ""
        while not self._ended.wait(2):
            request = urllib.request.Request(f"{self.address}fresh.json", headers={"If-None-Match": tag})
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
                    tag = answer.headers["ETag"]
            except urllib.error.HTTPError as answer:
                if answer.code != 304:
                    raise
            self.requests += 1

    def end(self) -> dict[str, float]:
        """The CPU time of the dashboard, without its start."""
        self._ended.set()
        self._client.join()
        spent = {
            "dashboard_cpu": _cpu(self.process.pid) - self._cpu,
            "dashboard_seconds": time.monotonic() - self._began,
        }
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait() == 0
        return spent | {"requests": float(self.requests)}


def wide(scratch: Path) -> dict[str, Any]:
    """An unfinished run of 200 cohorts: how soon the page is drawn, and how large it is."""
    from playwright.sync_api import sync_playwright

    run(scratch / "runs" / "small", 300)
    many(scratch / "runs" / "small", scratch / "runs" / "many")
    shutil.rmtree(scratch / "runs" / "small")
    dashboard = Polled(scratch / "runs")
    while b"Still reading" in urllib.request.urlopen(dashboard.address).read():
        time.sleep(1)
    ready, errors = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(dashboard.address)
            page.wait_for_selector("html[data-ready=yes]")
            ready.append(page.evaluate("performance.now()") / 1000)
            lines = page.locator("[data-figure=live-curves] .mark-line path").count()
            page.close()
        browser.close()
    with urllib.request.urlopen(dashboard.address) as answer:
        size = len(answer.read())
    dashboard.end()
    outcome = {
        "ready_seconds": [round(one, 3) for one in ready],
        "ready_median": round(statistics.median(ready), 3),
        "page_mb": round(size / 1e6, 2),
        "curves": lines,
        "errors": errors,
    }
    print(outcome)
    return outcome


def many(small: Path, large: Path, cohorts: int = 200) -> None:
    """A run of 8 cohorts becomes one of 200 that has not ended; most cohorts have stopped."""
    names = shutil.ignore_patterns("models", "checkpoints", "summary.json", "epochs.jsonl")
    shutil.copytree(small, large, ignore=names)
    path = large / "experiment.toml"
    changed = re.sub(r"^cohorts = 8$", f"cohorts = {cohorts}", path.read_text(), flags=re.M)
    path.write_text(re.sub(r"^clients = 40$", f"clients = {5 * cohorts}", changed, flags=re.M))
    about = json.loads((large / "run.json").read_text())
    about |= {key: [about[key][i % 8] for i in range(cohorts)] for key in ("cohorts", "label_counts")}
    (large / "run.json").write_text(json.dumps(about))
    for i in range(cohorts):
        lines = [json.loads(line) for line in (small / "rounds" / f"cohort-{i % 8:04d}.jsonl").read_text().splitlines()]
        length = 150 + 7 * i % 150  # they stop at different times
        for line in lines[:length]:
            line |= {
                "cohort": i,
                "clock": line["clock"] * (1 + i / cohorts),
                "moving_average": line["moving_average"] * (1 + i / 500),
            }
        lines[length - 1]["stop"] = "plateau" if i % 10 else ""
        text = "".join(json.dumps(line) + "\n" for line in lines[:length])
        (large / "rounds" / f"cohort-{i:04d}.jsonl").write_text(text)


def _cpu(process: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _mean(values: list[float]) -> dict[str, float]:
    """The mean with its standard error: a smaller load was not measured."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return {"mean": round(statistics.mean(values), 4), "standard_error": round(error, 4), "pairs": len(values)}


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.mean(values)


if __name__ == "__main__":
    main()
