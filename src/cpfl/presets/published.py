"""The figures that the paper published for its experiments. A run of such a preset stores them in its folder.

Accuracy in per cent, hours of virtual time. Where the paper gives a speed-up only, the hours are computed from it.
"""

from functools import cache
from typing import Any

from cpfl.settings import RECIPES, Distillation, Experiment, effects, experiment_file

SOURCE = "Dhasade et al., EuroMLSys '25"
KEYS = ("n", "teachers", "teachers_spread", "student", "student_spread", "hours", "cpu_hours")
# By preset and α (concentration of the Dirichlet split; None for other splits). The columns are KEYS.
_BY_N: dict[tuple[str, float | None], list[tuple[float | None, ...]]] = {
    ("cifar10", 0.1): [
        (1, None, None, 70.4, None, 413, 5577),
        (2, None, None, None, None, 413 / 1.6, 5577 / 1.2),
        (4, 65.76, 2.63, 69.79, 0.55, 218, 4249),
        (16, 48.24, 5.86, 64.59, 0.39, None, None),
        (64, 27.64, 7.38, 60.28, 0.80, None, None),
        (200, 17.32, 5.67, 47.89, 1.75, 413 / 7, 5577 / 8.8),
    ],
    ("cifar10", 1.0): [
        (4, 74.44, 0.86, 74.74, 0.30, None, None),
        (16, 63.37, 1.76, 69.11, 0.34, None, None),
        (64, 42.44, 5.17, 58.05, 0.24, None, None),
        (200, 27.00, 5.29, 48.43, 0.27, None, None),
    ],
    ("femnist", None): [
        (1, None, None, 77.4, None, 290, 9093),
        (4, None, None, None, None, 220, 7011),
        (64, None, None, 65.7, None, None, None),
    ],
}
# Distilled at a virtual time: (n, hours, student).
_AT: dict[tuple[str, float | None], list[tuple[int, float, float]]] = {
    ("cifar10", 0.1): [(1, 10, 28.7), (1, 15, 35.4), (2, 10, 36.16), (2, 15, 39.56), (16, 10, 54.1), (16, 15, 56.7)]
}
# Duration of the authors' distillation on an RTX A4000: (n, minutes).
_DISTILLATION: dict[str, list[tuple[int, float]]] = {
    "cifar10": [(2, 50), (200, 305)],
    "femnist": [(2, 59), (64, 16.8 * 60)],
}
_REMARKS: dict[str, list[str]] = {
    "cifar10": ["75 % of the cohorts end within 5 h at n = 200", "the paper advises n between 4 and 16"],
    "femnist": ["the paper advises n between 4 and 16"],
}
_OTHERS = {"cifar10-cpfl": "cifar10"}  # the same experiment with other settings
# Settings that must equal the preset's for a fair comparison.
_SAME = ("clients", "model.name", "data.train", "data.train_limit", "data.split")
# Settings that the paper varies, and those that change no figure.
_FREE = ("name", "cohorts", "seed", "max_rounds", "snapshots", "checkpoint_seconds", "data.alpha")
_JOINT = ("metric", "eval_interval", "min_gain", "eval_window", "client_fraction")  # no effect with the paper's rule


def published(experiment: Experiment) -> dict[str, Any] | None:
    """The paper's figures for this experiment; None where there are none."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _DISTILLATION:
        return None
    here, preset = effects.flat(experiment), effects.flat(_preset(experiment.name))
    if any(here[key] != preset[key] for key in _SAME):
        return None
    key = (name, experiment.data.alpha if experiment.data.split == "dirichlet" else None)
    rows = [dict(zip(KEYS, row, strict=True)) for row in _BY_N.get(key, [])]
    return {
        "source": SOURCE,
        "by_n": [{k: v for k, v in row.items() if v is not None} for row in rows],
        "at": [{"n": n, "hours": hours, "student": student} for n, hours, student in _AT.get(key, [])],
        "distillation": [{"n": n, "minutes": minutes} for n, minutes in _DISTILLATION[name]],
        "remarks": _REMARKS[name],
    }


def differences(experiment: Experiment) -> list[str]:
    """Settings that differ from the paper's, as text."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _DISTILLATION:
        return []
    here, usual, whose = effects.flat(experiment), effects.flat(_preset(name)), dict[str, str]()
    recipe, joint = experiment.distillation.recipe, [f"stopping.{key}" for key in _JOINT]
    if recipe != usual["distillation.recipe"]:  # its own values are no differences
        own = Distillation(recipe=recipe).model_dump(mode="json")
        usual |= {f"distillation.{key}": own[key] for key in RECIPES["paper"]}
        whose |= {f"distillation.{key}": f"recipe {recipe}: " for key in RECIPES["paper"]}
    if experiment.stopping.rule == "joint":  # the paper has no such rule, but a preset may
        preset = effects.flat(_preset(experiment.name))
        usual |= {key: preset[key] for key in joint}
        whose |= dict.fromkeys(joint, f"preset {experiment.name}: ")
    compared = [key for key in usual if key not in _FREE and not effects.unmet(experiment, key)]
    other = [key for key in compared if here[key] != usual[key]]
    if "data.public" in other:  # how another set is read depends on the set
        other = [key for key in other if not key.startswith("data.public_")]
    return [f"{key} = {here[key]} ({whose.get(key, '')}{usual[key]})" for key in other]


@cache
def _preset(name: str) -> Experiment:
    return experiment_file.load(name)
