"""The outcome of a run in words, for a terminal and for notebooks."""

import math
from collections.abc import Mapping
from typing import Any

NOTABLE = 10.0  # points by which a student may be below the ensemble before a hint is shown


def lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run reached and what it cost, each with its name."""
    several, metric = len(summary["teachers"]) > 1, summary["metric"]
    distilled = several and summary["distill_seconds"] > 0  # else the mean of the cohort models is the result
    student = f"{metric} {summary['student_accuracy']:.2f} % on the test set{'' if distilled else ', not distilled'}"
    found = [("global model", student)]
    if several:
        teachers = f"{summary['teacher_accuracy_mean']:.2f} ± {summary['teacher_accuracy_std']:.2f} %"
        found.append(("cohort models", f"{metric} {teachers}"))
        found.append(("ensemble", f"{metric} {summary['ensemble_accuracy']:.2f} %"))
        if merged := summary.get("merged_accuracy"):
            found.append(("their mean", f"{metric} {merged:.2f} %"))
    found += [
        ("time" if summary.get("engine") == "flower" else "virtual time", f"{summary['hours']:.2f} h"),
        ("CPU time" if summary.get("engine") == "flower" else "virtual CPU", f"{summary['cpu_hours']:.2f} h"),
        ("traffic", f"{summary['comm_gb']:.3f} GB{_by_link(summary)}"),
        ("rounds", f"{summary['rounds']:,}"),
    ]
    if distilled:
        found.append(("distilled in", f"{summary['distill_seconds']:.1f} s"))
    if summary["wasted_cpu_hours"]:
        share = summary["wasted_cpu_hours"] / (summary["cpu_hours"] or math.inf)
        again = f", {summary['repeats']:,} rounds were repeated" if summary["repeats"] else ""
        found.append(("wasted", f"{summary['wasted_cpu_hours']:.2f} h of the CPU time ({share:.0%}){again}"))
    if summary["cut_off"]:
        cohorts = f"{summary['cut_off']} cohort{'s' * (summary['cut_off'] > 1)}"
        found.append(("cut off", f"{cohorts} by max_rounds, before converging"))
    if distilled and summary["student_accuracy"] < summary["ensemble_accuracy"] - NOTABLE:
        hint = "the student is far below the ensemble: raise distillation.epochs or lower its batch_size"
        found.append(("hint", hint))
    return found


def _by_link(summary: Mapping[str, Any]) -> str:
    """How much of the traffic is whose; with one cohort its server is the global one."""
    if len(summary["by_cohort"]) == 1 or summary.get("global_gb") is None:
        return ""
    return f", of which {summary['global_gb']:.3g} GB between cohort servers and the global one"
