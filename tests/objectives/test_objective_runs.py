"""Runs of every objective: all engines equal a plain loop, students learn, settings that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives.made_up import PUBLIC, SETTINGS, TASKS, TEST, TRAIN, given, trained
from torch import nn
from torch.nn import functional

import cpfl
from cpfl.data.given import as_samples
from cpfl.errors import DataError, SettingError
from cpfl.inference.global_model import load_global
from cpfl.runs.folder import load_state
from cpfl.task.loading import given_arrays
from cpfl.task.task import build_task


@pytest.mark.parametrize("name", TASKS)
def test_engines_train_it_alike(name: str, tmp_path: Path) -> None:
    runs = {engine: trained(name, tmp_path / engine, engine) for engine in ("reference", "workers", "lanes")}
    plain = runs["reference"]
    for engine, run in runs.items():
        assert run.summary["engine"] == engine
        for ours, theirs in zip(run.rounds, plain.rounds, strict=True):
            for key in ("loss", "validation"):
                assert ours[key] == pytest.approx(theirs[key], rel=0, abs=1e-10), (engine, key)
        for key in ("student_accuracy", "teacher_accuracy_mean", "ensemble_accuracy"):
            assert run.summary[key] == pytest.approx(plain.summary[key]), (engine, key)


@pytest.mark.parametrize("name", ["regression", "per-position"])
def test_a_selection_by_losses(name: str, tmp_path: Path) -> None:
    """Oort chooses by the squared losses of single samples: the same clients on all engines."""
    oort = {"federation.selection": "oort", "federation.participation": 0.5, "max_rounds": 6, "cohorts": 1}
    runs = [trained(name, tmp_path / engine, engine, **oort) for engine in ("reference", "workers", "lanes")]
    chosen = [[record["participants"] for record in run.rounds] for run in runs]
    assert chosen[0] == chosen[1] == chosen[2]
    assert runs[0].rounds[-1]["loss"] == pytest.approx(runs[2].rounds[-1]["loss"])


LOSSES: dict[str, Any] = {
    "classification": functional.cross_entropy,
    "binary": lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.double()),
    "multi-label": lambda z, y: functional.binary_cross_entropy_with_logits(z, y.double()),
    "regression": lambda z, y: functional.mse_loss(z, y.double()),
    "per-position": lambda z, y: functional.cross_entropy(z.flatten(0, 1), y.flatten()),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_client_trains_as_a_plain_loop(name: str, tmp_path: Path) -> None:
    """One client, full batches: gradient descent on torch's own loss."""
    rounds, lr = 4, 0.1
    alone = {"clients": 1, "cohorts": 1, "max_rounds": rounds, "federation.batch_size": 1000, "data.validation": 0}
    run = trained(name, tmp_path / "run", **alone)
    task, module = TASKS[name], TASKS[name].model().double()
    module.load_state_dict(load_state(run.path / "models" / "start.safetensors"))
    x, y = torch.from_numpy(task.x[TRAIN]), torch.from_numpy(task.y[TRAIN])
    x = x.double() if x.is_floating_point() else x
    losses = []
    for _ in range(rounds):
        loss = LOSSES[name](module(x), y)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter -= lr * gradient
        losses.append(loss.item())
    assert [record["loss"] for record in run.rounds] == pytest.approx(losses)
    for key, value in run.model.items():
        torch.testing.assert_close(value, module.state_dict()[key])


@pytest.mark.parametrize("name", TASKS)
def test_a_student_learns_what_its_teachers_know(name: str, tmp_path: Path) -> None:
    more = {"max_rounds": 40, "distillation.epochs": 40, "distillation.lr": 0.02, "federation.lr": 0.2}
    run = trained(name, tmp_path / "run", **more)
    summary = run.summary
    assert summary["metric"] == TASKS[name].metric
    assert summary["student_accuracy"] >= summary["teacher_accuracy_mean"] - 1
    assert summary["student_accuracy"] > 85
    clients = json.loads((run.path / "clients.json").read_text())["clients"]
    held = [client["accuracy_held_back"] for client in clients]
    assert all(value is not None and value <= 100 for value in held)
    assert all((client["accuracy_by_labels"] is None) == (name == "regression") for client in clients)
    about = json.loads((run.path / "run.json").read_text())
    assert (about["objective"], about["metric"]) == (name, TASKS[name].metric)


def score(name: str, z: np.ndarray[Any, Any]) -> float:
    """The metric on the test set, in numpy."""
    y = TASKS[name].y[TEST]
    if name == "regression":
        return float(100 * (1 - ((z - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean())
    if name in ("binary", "multi-label"):
        return float(100 * ((z > 0) == y.reshape(len(y), -1)).mean())
    return float(100 * (z.argmax(-1) == y)[y != -100].mean())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("aggregation", ["probabilities", "logits"])
def test_the_ensemble_is_the_weighted_sum(name: str, aggregation: str, tmp_path: Path) -> None:
    """With cohorts of different labels: by the shares of what they hold, from the clients' own samples."""
    if name == "regression" and aggregation == "probabilities":
        pytest.skip("numbers have no probabilities")
    more: dict[str, Any] = {"distillation.aggregation": aggregation, "max_rounds": 10, "federation.lr": 0.5}
    run, task = trained(name, tmp_path / "run", **more), TASKS[name]
    given = given_arrays((task.x[TRAIN], task.y[TRAIN]), (task.x[TEST], task.y[TEST]), task.x[PUBLIC])
    clients = build_task(run.experiment, [], given, task.model).data.clients
    cohorts = json.loads((run.path / "run.json").read_text())["cohorts"]
    held = [np.concatenate([task.y[TRAIN][clients[client].training] for client in cohort]) for cohort in cohorts]
    if name in ("binary", "multi-label"):
        yes = np.stack([y.reshape(len(y), -1).sum(0) for y in held])
        no = np.stack([(1 - y.reshape(len(y), -1).astype(int)).sum(0) for y in held])
        weights = (yes / yes.sum(0) + no / no.sum(0)) / 2
    elif name == "regression":
        weights = np.array([[len(y)] * 2 for y in held]) / sum(map(len, held))
    else:
        counts = np.stack([np.bincount(y[y >= 0], minlength=6 if name == "per-position" else 3) for y in held])
        weights = counts / counts.sum(0)
    x, total = torch.from_numpy(task.x[TEST]), np.zeros(())
    for cohort, weight in enumerate(weights):
        module = task.model().double()
        module.load_state_dict(load_state(run.path / "models" / f"cohort-{cohort:04d}.safetensors"))
        with torch.no_grad():
            z = module(x.double() if x.is_floating_point() else x).numpy()
        if aggregation == "probabilities":
            z = (
                np.exp(z) / np.exp(z).sum(-1, keepdims=True)
                if "-label" not in name and name != "binary"
                else (1 / (1 + np.exp(-z)))
            )
        total = total + weight * z
    if aggregation == "probabilities" and name in ("binary", "multi-label"):
        total = total - 0.5
    assert run.summary["ensemble_accuracy"] == pytest.approx(score(name, total))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("metric", ["ensemble-accuracy", "public-agreement"])
def test_the_stopping_rule_joint(name: str, metric: str, tmp_path: Path) -> None:
    joint = {"stopping.rule": "joint", "stopping.metric": metric, "stopping.eval_interval": 1, "max_rounds": 3}
    trained(name, tmp_path / "run", **joint)
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert len(lines) >= 2
    assert all(-1000 < line["accuracy"] <= 100 for line in lines)
    assert all((line["loss"] is None) == (metric == "public-agreement") for line in lines)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("loss", ["kl", "mse", "l1"])
def test_distillation_losses(name: str, loss: str, tmp_path: Path) -> None:
    settings = {"distillation.loss": loss}
    if name == "regression" and loss == "kl":
        with pytest.raises(SettingError, match=r"distillation\.loss = 'kl' is not defined .* allowed here: mse, l1"):
            trained(name, tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()
    else:
        run = trained(name, tmp_path / "run", **settings)
        assert np.isfinite(run.summary["student_accuracy"])


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("regression", {"data.split": "dirichlet"}, "data.split = 'dirichlet' divides samples by their one class"),
        ("multi-label", {"data.split": "shards"}, "set data.split = iid or column"),
        ("per-position", {"data.split": "dirichlet"}, "data.split = 'dirichlet' divides"),
        ("regression", {"assignment.rule": "label-balanced"}, "assignment.rule = 'label-balanced' balances classes"),
        ("regression", {"distillation.aggregation": "probabilities"}, "allowed here: logits"),
        ("binary", {"distillation.aggregation": "log-probabilities"}, "allowed here: probabilities, logits"),
        ("regression", {"distillation.target_entropy": 0.4}, "target_entropy has no effect"),
        ("regression", {"distillation.temperature": 2.0}, "temperature has no effect"),
        ("regression", {"data.classes": 2}, "data.classes has no effect"),
        ("multi-label", {"own": "binary"}, "labels of the training set are 0 or 1, one for each sample"),
        ("regression", {"own": "classification"}, "labels of the training set are integers, one for each sample"),
        ("classification", {"own": "regression"}, "the data needs (1,): one number for each output"),
        ("per-position", {"own": "tests.objectives.made_up:MadeUp"}, "is no subclass of cpfl.Objective"),
        ("regression", {"own": f"{__name__}:Scalar"}, "losses must return one loss for each sample, (2,), not ()"),
        ("regression", {"own": f"{__name__}:Above"}, "score must return a number of at most 100"),
        ("regression", {"own": f"{__name__}:Broken"}, "does not take answers of shape (2, 2)"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(cpfl.CpflError) as error:
        trained(name, tmp_path / "run", **settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


class Scalar(cpfl.Objective):
    def losses(self, answers: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (answers - y).abs().mean()


class Above(cpfl.Objective):
    def losses(self, answers: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (answers - y).abs().mean(1)

    def score(self, answers: torch.Tensor, y: torch.Tensor) -> float:
        return 101.0


class Broken(cpfl.Objective):
    def losses(self, answers: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return answers @ y


class Smooth(cpfl.Objective):
    """Absolute error, and a metric of its own."""

    metric = "closeness"

    def __init__(self, width: float = 1.0) -> None:
        self.width = width

    def losses(self, answers: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.huber_loss(answers, y.to(answers.dtype), reduction="none", delta=self.width).mean(1)

    def score(self, answers: torch.Tensor, y: torch.Tensor) -> float:
        return 100 - (answers - y).abs().mean().item()


def test_an_objective_of_ones_own(tmp_path: Path) -> None:
    numbers = {"distillation.aggregation": "logits", "distillation.loss": "mse"}
    own = {"own": f"{__name__}:Smooth", "model.objective_args": {"width": 0.5}}
    runs = [trained("regression", tmp_path / engine, engine, **own, **numbers) for engine in ("reference", "lanes")]
    assert {run.summary["metric"] for run in runs} == {"closeness"}
    assert runs[0].rounds[-1]["loss"] == pytest.approx(runs[1].rounds[-1]["loss"])
    with pytest.raises(SettingError, match=r"distillation\.aggregation = 'probabilities' is not defined"):
        trained("regression", tmp_path / "other", **own)


def test_places_of_images_are_not_moved(tmp_path: Path) -> None:
    """A class for each pixel; augmentation would move the pixels and not the classes."""
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 24, 24), np.uint8)
    arrays: dict[str, Any] = {"train": (images, (images[:, 0] > 99).astype(int)), "public": images}

    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(2), Last())

    settings = SETTINGS | {"model.objective": "per-position", "model.args": {}}
    arrays |= {"model": model, "device": "cpu", "engine": "lanes"}
    run = cpfl.run(cpfl.Experiment(), settings=settings, out=tmp_path / "run", **arrays)
    assert json.loads((run.path / "run.json").read_text())["answer"] == [24, 24, 2]
    for more in ({"data.augment": "crop-flip-cutout"}, {"distillation.augment": "flip"}):
        with pytest.raises(SettingError, match="augmentation moves the places"):
            cpfl.run(cpfl.Experiment(), settings=settings | more, out=tmp_path / "no", **arrays)


class Last(nn.Module):
    """Classes last, for each pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).unflatten(1, (24, 24))


def test_texts_are_yes_and_no_but_no_numbers(tmp_path: Path) -> None:
    task = TASKS["binary"]
    texts = np.where(task.y, "ill", "healthy")
    arrays: dict[str, Any] = {
        "train": (task.x[TRAIN], texts[TRAIN]), "test": (task.x[TEST], texts[TEST]), "public": task.x[PUBLIC],
        "model": task.model, "device": "cpu", "engine": "reference",
    }  # fmt: skip
    run = cpfl.run(
        cpfl.Experiment(), settings={**SETTINGS, "model.objective": "binary"}, out=tmp_path / "run", **arrays
    )
    assert json.loads((run.path / "run.json").read_text())["class_names"] == ["healthy", "ill"]
    with pytest.raises(DataError, match=r"labels are texts: model\.objective = 'regression' needs numbers"):
        cpfl.run(
            cpfl.Experiment(), settings={**SETTINGS, "model.objective": "regression"}, out=tmp_path / "no", **arrays
        )


class Interrupt(cpfl.Callback):
    """Ctrl-C after the first round."""

    def on_round(self, session: Any, closed: Any) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", TASKS)
def test_a_run_is_resumed_distilled_again_and_exported(name: str, tmp_path: Path) -> None:
    task, whole = TASKS[name], trained(name, tmp_path / "whole", checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        trained(name, tmp_path / "run", callback=Interrupt(), checkpoint_seconds=0)
    run = cpfl.resume(tmp_path / "run", device="cpu", **given(name))
    assert run.rounds == whole.rounds
    assert all(torch.equal(run.model[key], value) for key, value in whole.model.items())
    again = cpfl.distill(run.path, weights="uniform", device="cpu", **given(name))
    assert again["metric"] == TASKS[name].metric
    cpfl.export(run.path, tmp_path / "export", model=task.model, onnx=False)
    facts = json.loads((tmp_path / "export" / "model.json").read_text())
    assert facts["objective"] == name
    module, _ = load_global(run.path, task.model)
    assert isinstance(module, nn.Module)
    x = torch.as_tensor(as_samples(task.x[:2]).x)
    assert module(x).shape[1:] == tuple(json.loads((run.path / "run.json").read_text())["answer"])


def test_the_defaults_of_a_regression_go_with_it() -> None:
    """Numbers have no probabilities; another objective has the usual defaults again, and a recipe its own."""
    from cpfl.settings import experiment_file

    plain = cpfl.Experiment()
    numbers = experiment_file.with_settings(plain, {"model.objective": "regression"})
    assert (numbers.distillation.aggregation, numbers.distillation.loss) == ("logits", "mse")
    back = experiment_file.with_settings(numbers, {"model.objective": "binary"})
    assert (back.distillation.aggregation, back.distillation.loss) == ("probabilities", "kl")
    paper = experiment_file.with_settings(numbers, {"distillation.recipe": "paper"})
    assert (paper.distillation.aggregation, paper.distillation.loss) == ("logits", "l1")
    assert cpfl.Experiment(model={"objective": "regression"}).distillation.loss == "mse"
