"""The figures that the paper published for its experiments. A run of such a preset stores them in its folder."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from cpfl.settings import RECIPES, Distillation, Experiment, effects, experiment_file

_PAPER = tomllib.loads(resources.files("cpfl.presets").joinpath("published.toml").read_text(encoding="utf-8"))
_OTHERS = {"cifar10-cpfl": "cifar10"}  # the same experiment with other settings
# Settings that must equal the preset's for a fair comparison.
_SAME = ("clients", "model.name", "data.train", "data.train_limit", "data.split")
# Settings that the paper varies, and those that change no figure.
_FREE = ("name", "cohorts", "seed", "max_rounds", "snapshots", "checkpoint_seconds", "data.alpha")
_JOINT = ("metric", "eval_interval", "min_gain", "eval_window", "client_fraction")  # no effect with the paper's rule


def published(experiment: Experiment) -> dict[str, Any] | None:
    """The paper's figures for this experiment; None where there are none."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _PAPER:
        return None
    here, preset = effects.flat(experiment), effects.flat(_preset(experiment.name))
    if any(here[key] != preset[key] for key in _SAME):
        return None
    alpha = str(experiment.data.alpha) if experiment.data.split == "dirichlet" else "any"
    return {key: value.get(alpha, []) if isinstance(value, dict) else value for key, value in _PAPER[name].items()}


def differences(experiment: Experiment) -> list[str]:
    """Settings that differ from the paper's, as text."""
    name = _OTHERS.get(experiment.name, experiment.name)
    if name not in _PAPER:
        return []
    here, usual, whose = effects.flat(experiment), effects.flat(_preset(name)), dict[str, str]()
    usual["precision"] = "tf32"  # PyTorch's default for convolutions on the authors' card; float32 is more exact
    if here["precision"] in ("auto", "float32"):
        here["precision"] = "tf32"
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
