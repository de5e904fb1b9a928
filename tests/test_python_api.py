"""The package from Python: own model, own arrays, own public set."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import cpfl
from cpfl import errors

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Interrupter

SMALL = {
    "clients": 8,
    "cohorts": 2,
    "max_rounds": 4,
    "data.split": "iid",
    "federation.lr": 0.1,
    "distillation.epochs": 3,
    "distillation.batch_size": 32,
}


def table(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a line can tell apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (rng.normal(size=(count, 6)) + 3 * np.eye(3, 6)[y]).astype(np.float32), y


TRAIN, TEST, PUBLIC = table(1, 400), table(2, 100), table(3, 200)[0]
OWN: dict[str, Any] = {"train": TRAIN, "test": TEST, "public": PUBLIC}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


class Tied(nn.Module):
    """Two layers that are one and the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))


class Forgetful(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3))


FUNCTIONS = {
    "bound", "distill", "export", "load_digits", "load_experiment", "load_run", "redistill", "report", "resume", "run",
    "sweep", "tune",
}  # fmt: skip
BASES = {
    "Callback", "ClientOptimizer", "CohortAssignment", "DistillationLoss", "Engine", "MeetingRule", "Objective",
    "Selection", "ServerOptimizer", "StoppingRule", "SweepCallback", "TeacherAggregation", "TeacherWeights",
}  # fmt: skip


def test_the_public_names() -> None:
    """Exactly these; a new one is added here on purpose."""
    mistakes = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, cpfl.CpflError)}
    others = {"ClusterConfig", "Contribution", "Experiment", "Run", "TuneResult", "__version__"}
    assert set(cpfl.__all__) == FUNCTIONS | BASES | mistakes | others
    assert dir(cpfl) == cpfl.__all__ == sorted(cpfl.__all__)
    for name in set(cpfl.__all__) - {"__version__"}:
        assert getattr(cpfl, name).__doc__, name
        assert isinstance(getattr(cpfl, name), type) == (name not in FUNCTIONS)
    assert cpfl.__version__ == metadata.version("cpfl")


def test_five_lines(tmp_path: Path) -> None:
    run = cpfl.run("digits", model=Net, **OWN, settings=SMALL, out=tmp_path / "run")
    model = Net()
    model.load_state_dict(run.model)
    with torch.no_grad():
        right = (model(torch.from_numpy(TEST[0])).argmax(1).numpy() == TEST[1]).mean()
    assert 100 * right == pytest.approx(run.summary["student_accuracy"])
    assert run.summary["teacher_accuracy_mean"] > 60
    assert len(run.rounds) == run.summary["rounds"] == 8
    assert run.experiment.cohorts == 2
    assert cpfl.load_run(tmp_path / "run") == run


def test_a_test_set_is_held_out_where_none_is_given(tmp_path: Path) -> None:
    run = cpfl.run("digits", train=TRAIN, public=PUBLIC, settings=SMALL, out=tmp_path / "run")
    samples = json.loads((run.path / "run.json").read_text())["samples"]
    assert samples == {"train": 360, "test": 40, "public": 200}


def test_tensors_and_numpy_alike(tmp_path: Path) -> None:
    def tensors(pair: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])

    given = {"train": tensors(TRAIN), "test": tensors(TEST), "public": torch.from_numpy(PUBLIC)}
    lists = {"train": (TRAIN[0].tolist(), TRAIN[1].tolist()), "test": TEST, "public": PUBLIC}
    runs = [
        cpfl.run("digits", model=Net, **data, settings=SMALL, out=tmp_path / str(i))
        for i, data in enumerate((OWN, given, lists))
    ]
    assert runs[0].rounds == runs[1].rounds
    assert all(runs[0].model[name].equal(runs[1].model[name]) for name in runs[0].model)
    assert runs[2].summary["student_accuracy"] == pytest.approx(runs[0].summary["student_accuracy"], abs=1)


def test_a_tensor_that_needs_gradients_or_is_half(tmp_path: Path) -> None:
    x = torch.from_numpy(TRAIN[0]).bfloat16().requires_grad_()
    run = cpfl.run("digits", train=(x, torch.from_numpy(TRAIN[1])), public=PUBLIC, settings=SMALL, out=tmp_path / "run")
    assert run.summary["student_accuracy"] >= 0


def test_a_model_as_class_function_or_instance(tmp_path: Path) -> None:
    models = (Net, lambda: Net(), Net())
    runs = [
        cpfl.run("digits", model=model, **OWN, settings=SMALL, out=tmp_path / str(i)) for i, model in enumerate(models)
    ]
    assert runs[0].rounds == runs[1].rounds == runs[2].rounds


def test_the_given_model_is_left_alone(tmp_path: Path) -> None:
    mine = Net()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    cpfl.run("digits", model=mine, **OWN, settings=SMALL, out=tmp_path / "run")
    assert all(value.equal(before[name]) for name, value in mine.state_dict().items())


def test_batch_norm(tmp_path: Path) -> None:
    """Its running means are part of the model: trained, averaged, distilled, exported."""
    run = cpfl.run("digits", model=Normed, **OWN, settings={**SMALL, "clients": 4}, out=tmp_path / "run")
    model = Normed()
    model.load_state_dict(run.model)
    assert model[1].running_mean is not None
    assert model[1].running_mean.abs().sum() > 0
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(TEST[0]))
    assert 100 * (expected.argmax(1).numpy() == TEST[1]).mean() == pytest.approx(run.summary["student_accuracy"])
    where = cpfl.export(run.path, model=Normed)[0].parent
    (logits,) = onnxruntime.InferenceSession(where / "model.onnx").run(None, {"x": TEST[0]})
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("samples", "public", "settings"),
    [
        (84, 200, {"data.validation": 0}),  # 21 a client: its second batch is one sample
        (400, 193, {"distillation.batch_size": 64}),  # in the distillation, when all training is already done
    ],
    ids=["client", "public"],
)
def test_batch_norm_on_a_batch_of_one(tmp_path: Path, samples: int, public: int, settings: dict[str, Any]) -> None:
    """Of one sample there is no deviation: the user hears it in a sentence, or it is dealt with."""
    own = {"train": table(5, samples), "test": TEST, "public": PUBLIC[:public]}
    words, reported = {**SMALL, "clients": 4, **settings}, ""
    try:
        cpfl.run("digits", model=Normed, **own, settings=words, out=tmp_path / "run")
    except cpfl.CpflError as error:
        reported = str(error)
    assert "batch" in reported or (tmp_path / "run" / "summary.json").is_file()
    assert "\n" not in reported


def test_tied_weights(tmp_path: Path) -> None:
    run = cpfl.run("digits", model=Tied, **OWN, settings=SMALL, out=tmp_path / "run")
    state = run.model
    assert state["first.weight"].equal(state["second.weight"])
    assert not state["first.bias"].equal(state["second.bias"])
    model = Tied()
    model.load_state_dict(state)
    assert model.first.weight is model.second.weight
    with torch.no_grad():
        right = (model(torch.from_numpy(TEST[0])).argmax(1).numpy() == TEST[1]).mean()
    assert 100 * right == pytest.approx(run.summary["student_accuracy"])


def test_dropout_is_addressed_too(tmp_path: Path) -> None:
    """The same experiment is the same run, whatever torch drew before: also where the model itself draws."""
    torch.manual_seed(1)
    first = cpfl.run("digits", model=Forgetful, **OWN, settings=SMALL, out=tmp_path / "first")
    torch.manual_seed(2)
    second = cpfl.run("digits", model=Forgetful, **OWN, settings=SMALL, out=tmp_path / "second")
    assert first.rounds == second.rounds
    assert all(first.model[name].equal(second.model[name]) for name in first.model)


def test_a_run_leaves_torch_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    cpfl.run("digits", model=Net, **OWN, settings=SMALL, out=tmp_path / "run")
    assert torch.rand(1).equal(expected)


def test_columns_for_a_natural_split(tmp_path: Path) -> None:
    who = np.array([f"writer {i % 11}" for i in range(400)])
    settings = {**SMALL, "clients": 11, "data.split": "column", "data.column": "who"}
    run = cpfl.run(
        "digits",
        model=Net,
        train=(*TRAIN, {"who": who}),
        test=TEST,
        public=PUBLIC,
        settings=settings,
        out=tmp_path / "r",
    )
    clients = json.loads((run.path / "clients.json").read_text())["clients"]
    held = [client["samples"] + client["held_back"] for client in clients]
    _, counts = np.unique(who, return_counts=True)
    assert sorted(held) == sorted(counts.tolist())
    fewer = cpfl.run(
        "digits", model=Net, train=(*TRAIN, {"who": torch.arange(400) % 11}), test=TEST, public=PUBLIC,
        settings={**settings, "clients": 6}, out=tmp_path / "fewer",
    )  # fmt: skip
    assert len(json.loads((fewer.path / "clients.json").read_text())["clients"]) == 6


def test_resume_with_own_arrays(tmp_path: Path, interrupter: type[Interrupter]) -> None:
    settings = {**SMALL, "max_rounds": 6, "checkpoint_seconds": 0}
    whole = cpfl.run("digits", model=Net, **OWN, settings=settings, out=tmp_path / "whole")
    path = tmp_path / "killed"
    with pytest.raises(interrupter.Enough):
        cpfl.run("digits", model=Net, **OWN, settings=settings, out=path, callback=interrupter(7))
    assert cpfl.load_run(path).summary == {}
    for missing in ("model", "train", "public"):
        given = {key: value for key, value in {"model": Net, **OWN}.items() if key != missing}
        with pytest.raises(cpfl.CpflError, match=f"own {missing}"):
            cpfl.resume(path, **given)
    with pytest.raises(cpfl.CpflError, match="test"):
        cpfl.resume(path, model=Net, train=TRAIN, public=PUBLIC)
    with pytest.raises(cpfl.CpflError, match="train data are not those"):
        cpfl.resume(path, model=Net, **{**OWN, "train": (TRAIN[0] + 1, TRAIN[1])})
    with pytest.raises(cpfl.CpflError, match="model"):
        cpfl.resume(path, model=Tied, **OWN)
    ended = cpfl.resume(path, model=Net, **OWN)
    assert ended.rounds == whole.rounds
    assert all(ended.model[name].equal(whole.model[name]) for name in whole.model)


def test_distill_from_python(tmp_path: Path) -> None:
    run = cpfl.run("digits", model=Net, **OWN, settings={**SMALL, "snapshots": "1 rounds"}, out=tmp_path / "run")
    uniform = cpfl.distill(run.path, model=Net, **OWN, weights="uniform")
    assert uniform["distillation"]["weights"] == "uniform"
    other = cpfl.distill(run.path, model=Net, train=TRAIN, test=TEST, public=PUBLIC[:50] * 2, name="other")
    assert Path(other["path"]).name == "other"
    assert other["by_cohort"] == uniform["by_cohort"]
    with pytest.raises(cpfl.CpflError, match=r"distillation\.weight"):
        cpfl.distill(run.path, model=Net, **OWN, weight="uniform")


def test_export_of_a_given_model(tmp_path: Path) -> None:
    run = cpfl.run("digits", model=Net, **OWN, settings=SMALL, out=tmp_path / "run")
    with pytest.raises(cpfl.CpflError, match="model="):
        cpfl.export(run.path)
    with pytest.raises(cpfl.CpflError, match="does not fit"):
        cpfl.export(run.path, model=Tied)
    where = cpfl.export(run.path, tmp_path / "out", model=Net)[0].parent
    model = Net()
    model.load_state_dict(run.model)
    (logits,) = onnxruntime.InferenceSession(where / "model.onnx").run(None, {"x": TEST[0]})
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(torch.from_numpy(TEST[0])), atol=1e-5)


def test_sweep_from_python(tmp_path: Path) -> None:
    seen: list[cpfl.Run] = []
    words: dict[str, Any] = {"cohorts": [1, 2], "seeds": [1, 2], "out": tmp_path / "s", "settings": SMALL}
    runs = cpfl.sweep("digits", model=Net, **OWN, **words, on_run=seen.append)
    assert [(r.summary["cohorts"], r.summary["seed"]) for r in runs] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert seen == runs

    def times() -> dict[Path, int]:
        """Of all files but the sweep's log, which says that it was started again."""
        log = tmp_path / "s" / "log.jsonl"
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file() and file != log}

    written = times()
    again = cpfl.sweep("digits", model=Net, **OWN, **words)
    assert again == runs
    assert times() == written


def test_an_experiment_object(tmp_path: Path) -> None:
    experiment = cpfl.load_experiment("digits")
    assert experiment == cpfl.load_experiment("digits")
    mine = cpfl.Experiment(cohorts=2, clients=4, max_rounds=2, distillation={"epochs": 1})
    run = cpfl.run(mine, out=tmp_path / "run")
    assert run.experiment == mine.resolved("cpu")
    assert run.summary["cohorts"] == 2


def test_images_with_views(tmp_path: Path) -> None:
    """Augmented images: the two recipes show the student different things."""
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 240)
    x = (rng.integers(0, 80, (240, 1, 24, 24)) + 80 * y[:, None, None, None]).astype(np.uint8)
    public = rng.integers(0, 256, (120, 1, 24, 24), dtype=np.uint8)
    settings = {**SMALL, "data.augment": "crop-flip-cutout"}
    given: dict[str, Any] = {"train": (x, y), "public": public}
    run = cpfl.run("digits", **given, settings=settings, out=tmp_path / "run")
    names: dict[str, dict[str, Any]] = {"paper": {}, "cpfl": {"views": 2, "epochs": SMALL["distillation.epochs"]}}
    for recipe, more in names.items():
        cpfl.distill(run.path, **given, recipe=recipe, name=recipe, **more)
    epochs = {name: (run.path / "distillations" / name / "epochs.jsonl").read_text() for name in names}
    assert epochs["paper"] == (run.path / "epochs.jsonl").read_text()
    assert epochs["paper"] != epochs["cpfl"]


def test_sets_of_another_kind_of_number(tmp_path: Path) -> None:
    """Training pixels as bytes and test pixels as floats in 0…255 would be evaluated on another scale silently."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 256, (120, 1, 8, 8), dtype=np.uint8), np.arange(120) % 3
    with pytest.raises(cpfl.CpflError, match="uint8"):
        cpfl.run("digits", train=(x, y), test=(x.astype(np.float32), y), public=x, settings=SMALL, out=tmp_path / "r")


def test_workers_train_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before data are loaded, which may take minutes."""
    monkeypatch.setattr("cpfl.api.torch_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr("cpfl.api.load_task", None)
    with pytest.raises(cpfl.CpflError, match="trains on the CPU"):
        cpfl.run("digits", engine="workers", out=tmp_path / "run")
