"""What the paper printed for its own experiments; a run of such a preset carries these figures in its folder.

Accuracy in per cent, hours of virtual time. Where only a speed-up was printed, its quotient stands here.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from cpfl import experiment_file
from cpfl.experiment import RECIPES, Distillation, Experiment

SOURCE = "Dhasade et al., EuroMLSys '25"
KEYS = ("n", "teachers", "teachers_spread", "student", "student_spread", "hours", "cpu_hours")
# By preset and α, None where a split has none. The columns are KEYS.
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
# Distilled after so many hours: (n, hours, student).
_AT: dict[tuple[str, float | None], list[tuple[int, float, float]]] = {
    ("cifar10", 0.1): [(1, 10, 28.7), (1, 15, 35.4), (2, 10, 36.16), (2, 15, 39.56), (16, 10, 54.1), (16, 15, 56.7)]
}
# Minutes that the authors' distillations took on an RTX A4000: (n, minutes).
_DISTILLATION: dict[str, list[tuple[int, float]]] = {
    "cifar10": [(2, 50), (200, 305)],
    "femnist": [(2, 59), (64, 16.8 * 60)],
}
_REMARKS: dict[str, list[str]] = {
    "cifar10": ["75 % of the cohorts end within 5 h at n = 200", "the paper advises n between 4 and 16"],
    "femnist": ["the paper advises n between 4 and 16"],
}
_OTHERS = {"cifar10-cpfl": "cifar10"}  # the same experiment, done in another way
# What must be the preset's for a comparison to be fair.
_SAME = ("clients", "model.name", "data.train", "data.train_limit", "data.split")
# What the paper varies itself, and what changes no figure but is a matter of the machine or of what is kept.
_FREE = ("name", "cohorts", "seed", "max_rounds", "snapshots", "checkpoint_seconds", "data.alpha")
_JOINT = ("judge", "every", "gain", "legs", "asked")  # mean nothing with the paper's rule


def published(experiment: Experiment) -> dict[str, Any] | None:
    """The paper's figures for this experiment; None where it printed none."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _DISTILLATION or not _like_preset(experiment):
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
    """What is set otherwise than in the paper, whose figures stand beside this experiment's."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _DISTILLATION:
        return []
    here, usual, whose = _flat(experiment), _flat(_preset(name)), dict[str, str]()
    recipe, joint = experiment.distillation.recipe, [f"stopping.{key}" for key in _JOINT]
    if recipe != usual["distillation.recipe"]:  # it says the rest, but for what is given besides
        own = Distillation(recipe=recipe).model_dump(mode="json")
        usual |= {f"distillation.{key}": own[key] for key in RECIPES["paper"]}
        whose |= {f"distillation.{key}": f"recipe {recipe}: " for key in RECIPES["paper"]}
    if experiment.stopping.rule == "joint":  # the paper has nothing like it, but a preset may
        preset = _flat(_preset(experiment.name))
        usual |= {key: preset[key] for key in joint}
        whose |= dict.fromkeys(joint, f"preset {experiment.name}: ")
    else:
        usual = {key: value for key, value in usual.items() if key not in joint}
    other = [key for key, value in usual.items() if here[key] != value and key not in _FREE]
    if "data.public" in other:  # how another set is read belongs to it
        other = [key for key in other if not key.startswith("data.public_")]
    return [f"{key} = {here[key]} ({whose.get(key, '')}{usual[key]})" for key in other]


def _like_preset(experiment: Experiment) -> bool:
    here, preset = _flat(experiment), _flat(_preset(experiment.name))
    return all(here[key] == preset[key] for key in _SAME)


@cache
def _preset(name: str) -> Experiment:
    return experiment_file.parse(resources.files("cpfl.presets").joinpath(f"{name}.toml").read_text(), name)


def _flat(experiment: Experiment) -> dict[str, Any]:
    """Every setting by the name that --set takes."""
    tree = experiment.model_dump(mode="json")
    sections = {key: value for key, value in tree.items() if isinstance(value, dict)}
    inner = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {key: value for key, value in tree.items() if key not in sections} | inner
