"""Users' classes in the distillation: teacher weights, aggregation of teachers, losses; each in a module of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import content

import cpfl
from cpfl.errors import SettingError

QUICK = {"max_rounds": 3, "distillation.epochs": 2}
OWN = {"distillation.recipe": "cpfl", "distillation.temperature": 2.0, "distillation.target_entropy": 0.3}
FILES = {
    "my_weights": """
import numpy as np
from cpfl import TeacherWeights

class Shares(TeacherWeights):
    def weights(self, counts_NC, known_N):
        return counts_NC / counts_NC.sum(axis=0)

class Biased(TeacherWeights):
    def __init__(self, first: float):
        self.first = first

    def weights(self, counts_NC, known_N):
        weights_NC = np.full_like(counts_NC, (1 - self.first) / (len(counts_NC) - 1))
        weights_NC[0] = self.first
        return weights_NC
""",
    "my_aggregation": """
import torch
from cpfl import TeacherAggregation

class Logits(TeacherAggregation):
    def teacher_output(self, logits_TC):
        return logits_TC

class Softmax(TeacherAggregation):
    probabilities = True

    def teacher_output(self, logits_TC):
        return torch.softmax(logits_TC / self.settings.temperature, dim=1)

    def targets(self, total_TC):
        return total_TC / total_TC.sum(dim=1, keepdim=True)
""",
    "my_targets": """
from cpfl import TeacherAggregation

class Negated(TeacherAggregation):
    def teacher_output(self, logits_TC):
        return -logits_TC

    def targets(self, total_TC):
        return -total_TC
""",
    "my_loss": """
from torch.nn import functional
from cpfl import DistillationLoss

class Absolute(DistillationLoss):
    def __call__(self, logits_BC, targets_BC):
        return functional.l1_loss(logits_BC, targets_BC)

class NoScalar(DistillationLoss):
    def __call__(self, logits_BC, targets_BC):
        return (logits_BC - targets_BC).abs()

class Divergence(DistillationLoss):
    def __call__(self, logits_BC, targets_BC):
        temperature = self.settings.temperature
        student = functional.log_softmax(logits_BC / temperature, dim=1)
        return functional.kl_div(student, targets_BC, reduction="batchmean") * temperature**2
""",
    "my_mistakes": """
from cpfl import TeacherWeights

class WrongShape(TeacherWeights):
    def weights(self, counts_NC, known_N):
        return counts_NC.sum(axis=1) / counts_NC.sum()

class WrongSum(TeacherWeights):
    def weights(self, counts_NC, known_N):
        return counts_NC

class NoWeights:
    pass
""",
}


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files above in a folder that Python imports from."""
    folder = tmp_path_factory.mktemp("modules")
    for name, text in FILES.items():
        assert len(text.splitlines()) <= 20, "an extension is short"
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def run(path: Path, settings: dict[str, Any]) -> cpfl.Run:
    return cpfl.run("digits", settings=QUICK | settings, out=path, engine="reference", device="cpu")


@pytest.mark.parametrize(
    ("key", "built_in", "own", "others"),
    [
        ("weights", "labels", "my_weights:Shares", {}),
        ("aggregation", "logits", "my_aggregation:Logits", {}),
        ("aggregation", "probabilities", "my_aggregation:Softmax", OWN),
        ("aggregation", "logits", "my_targets:Negated", {}),  # only the targets have the right order of classes
        ("loss", "l1", "my_loss:Absolute", {}),
        ("loss", "kl", "my_loss:Divergence", OWN),
    ],
)
def test_a_class_of_the_user_equals_the_built_in_one(
    key: str, built_in: str, own: str, others: dict[str, Any], tmp_path: Path
) -> None:
    """To the last bit, in everything that a run records."""
    one = run(tmp_path / "one", others | {f"distillation.{key}": built_in})
    other = run(tmp_path / "other", others | {f"distillation.{key}": own})
    assert getattr(other.experiment.distillation, key) == own
    assert content(one.path / "summary.json") == content(other.path / "summary.json")
    assert all(value.equal(other.model[name]) for name, value in one.model.items())
    assert (one.path / "epochs.jsonl").read_bytes() == (other.path / "epochs.jsonl").read_bytes()


def test_arguments_of_the_user_s_class(tmp_path: Path) -> None:
    first = run(tmp_path / "run", {"distillation.weights": "my_weights:Biased", "distillation.weights_args.first": 1.0})
    assert first.summary["ensemble_accuracy"] == first.summary["by_cohort"][0]["accuracy"]
    again = cpfl.distill(first.path, weights_args={"first": 0.0}, name="last", device="cpu")
    assert again["ensemble_accuracy"] != first.summary["ensemble_accuracy"]
    with pytest.raises(SettingError, match=r"needs distillation\.weights_args\.first"):
        run(tmp_path / "refused", {"distillation.weights": "my_weights:Biased"})
    with pytest.raises(SettingError, match=r"weights_args\.frist; did you mean first\?"):
        run(tmp_path / "refused", {"distillation.weights": "my_weights:Biased", "distillation.weights_args.frist": 1})
    assert not (tmp_path / "refused").exists()


REFUSED: dict[tuple[str, str], tuple[str, ...]] = {
    ("weights", "my_mistakes:WrongShape"): ("my_mistakes:WrongShape", "shape (4, 10)", "sum to 1"),
    ("weights", "my_mistakes:WrongSum"): ("my_mistakes:WrongSum", "sum to 1"),
    ("weights", "my_mistakes:NoWeights"): ("my_mistakes:NoWeights", "no subclass of cpfl.TeacherWeights"),
    ("weights", "unifrom"): ("distillation.weights = 'unifrom'", "did you mean uniform?", "module:Class"),
    ("aggregation", "logit"): ("distillation.aggregation = 'logit'", "did you mean logits?", "module:Class"),
    ("aggregation", "my_aggregation:Nothing"): ("my_aggregation:Nothing", "cannot be loaded"),
    ("aggregation", "my_loss:Absolute"): ("my_loss:Absolute", "no subclass of cpfl.TeacherAggregation"),
    ("loss", "kll"): ("distillation.loss = 'kll'", "did you mean kl?", "module:Class"),
    ("loss", "my_loss:NoScalar"): ("my_loss:NoScalar", "shape (2, 10)", "a scalar tensor is needed"),
    ("loss", "nowhere:Loss"): ("nowhere:Loss", "cannot be loaded"),
}


@pytest.mark.parametrize(("key", "name"), REFUSED)
def test_mistakes_are_refused_before_anything_is_trained(key: str, name: str, tmp_path: Path, finished: Path) -> None:
    before = sorted(finished.rglob("*"))
    for use in (
        lambda: run(tmp_path / "run", {f"distillation.{key}": name}),
        lambda: cpfl.distill(finished, **{key: name}, name="mistake", device="cpu"),
    ):
        with pytest.raises(SettingError) as refused:
            use()
        sentence = str(refused.value)
        assert "\n" not in sentence
        for word in REFUSED[key, name]:
            assert word in sentence
    assert not (tmp_path / "run").exists()
    assert sorted(finished.rglob("*")) == before
