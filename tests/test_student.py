"""Ways to teach a student: its first weights, its learning rate, and what it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cpfl
from cpfl import experiment_file
from cpfl.data.federated import Given, as_samples
from cpfl.data.transform import draw_mix, paste
from cpfl.distillation.distil import mean_of
from cpfl.distillation.student import RISE, one_cycle
from cpfl.distillation.targets import Numbers, fitting_heat, sharpened
from cpfl.distillation.views import Views
from cpfl.errors import SettingError
from cpfl.experiment import Distillation
from cpfl.models import fresh, state_of
from cpfl.problem import Problem, prepare
from cpfl.runs.folder import RunFolder, load_state


def pictures(**settings: Any) -> Problem:
    """Random pictures of 24×24, augmented in training."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 3, 24, 24), dtype=np.uint8), rng.integers(0, 3, 60)
    tree = {"clients": 4, "cohorts": 2, "model.name": "gn-lenet", "data.augment": "crop-flip-cutout"}
    chosen = {**tree, **{f"distillation.{key}": value for key, value in settings.items()}}
    experiment = experiment_file.with_settings(experiment_file.load("digits", []), chosen)
    given = Given(as_samples(x, y), as_samples(x, y), as_samples(x))
    return prepare(experiment, [], given)


def views(problem: Problem) -> Views:
    states = [state_of(fresh(problem.build, seed, "init", torch.float32)) for seed in (1, 2)]
    module = fresh(problem.build, 0, "init", torch.float32)
    numbers = Numbers(torch.device("cpu"), "float32")
    return Views(
        problem, [module] * 2, lambda: iter(states), np.full((2, 3), 0.5), problem.experiment.distillation, numbers
    )


def test_mirror_shows_an_image_as_it_is_and_then_mirrored() -> None:
    problem = pictures(recipe="paper", same_views=True, views=2, augment="mirror")
    shown, rows = views(problem), torch.arange(10)
    plain = problem.data.public_transform(torch.as_tensor(problem.data.public.x[:10]))
    for epoch, right in enumerate((plain, plain.flip(3), plain)):
        shown.begin(epoch)
        torch.testing.assert_close(shown.batch(rows)[0], right, rtol=0, atol=0)


def test_crop_flip_cuts_no_holes_and_training_does() -> None:
    def blank(augment: str) -> float:
        shown = views(pictures(augment=augment))
        shown.begin(0)
        return shown.batch(torch.arange(60))[0].eq(0).all(dim=1).float().mean().item()

    # A border of up to four pixels is black after a shift, which is not 0 but a black pixel's value: none here.
    assert blank("training") > blank("crop-flip") + 0.1
    plain = views(pictures(augment="none"))
    plain.begin(0)
    first = plain.batch(torch.arange(60))[0].clone()
    plain.begin(1)
    assert torch.equal(plain.batch(torch.arange(60))[0], first)


def test_targets_belong_to_what_is_shown() -> None:
    problem = pictures(recipe="paper", same_views=True, views=3, augment="crop-flip")
    shown, rows = views(problem), torch.arange(60)
    states = [state_of(fresh(problem.build, seed, "init", torch.float32)) for seed in (1, 2)]
    module = fresh(problem.build, 0, "init", torch.float32).eval()
    for epoch in range(3):
        shown.begin(epoch)
        inputs, targets = shown.batch(rows)
        total = torch.zeros_like(targets)
        for state in states:
            module.load_state_dict(state)
            total += module(inputs).detach() / 2
        torch.testing.assert_close(targets, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("join", ["logits", "probabilities"])
def test_mirrored_targets_are_the_mean_of_two_looks(join: str) -> None:
    def both(mirrored: bool) -> tuple[torch.Tensor, torch.Tensor]:
        shown = views(pictures(recipe="cpfl", join=join, sharpen=0.0, views=2, mirrored=mirrored))
        shown.begin(1)
        inputs, targets = shown.batch(torch.arange(60))
        return inputs.clone(), targets

    (inputs, one), (same, mean) = both(False), both(True)
    assert torch.equal(inputs, same), "the student sees what it saw"
    module, other = fresh(pictures().build, 0, "init", torch.float32).eval(), torch.zeros_like(one)
    for seed in (1, 2):
        module.load_state_dict(state_of(fresh(pictures().build, seed, "init", torch.float32)))
        logits = module(inputs.flip(3)).detach()
        other += (logits.softmax(dim=1) if join == "probabilities" else logits) / 2
    torch.testing.assert_close(mean, (one + other) / 2, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(mean, one, atol=1e-4)


def test_what_is_not_augmented_is_not_mirrored() -> None:
    plain, mirrored = (views(pictures(augment="none", mirrored=mirrored)) for mirrored in (False, True))
    for shown in (plain, mirrored):
        shown.begin(0)
    rows = torch.arange(60)
    assert torch.equal(plain.batch(rows)[1], mirrored.batch(rows)[1])


def test_cut_mix_takes_squares_from_other_images_in_every_second_view() -> None:
    problem = pictures(recipe="cpfl", views=2)
    shown, rows = views(problem), torch.arange(60)
    images = []
    for epoch in range(2):
        shown.begin(epoch)
        images.append(shown.batch(rows)[0].clone())
    plain = views(pictures(recipe="cpfl", views=2, augment="crop-flip"))
    for epoch, least, most in ((0, 0.0, 0.0), (1, 0.2, 0.6)):  # squares of any size: half of the image, less the border
        plain.begin(epoch)
        foreign = images[epoch].ne(plain.batch(rows)[0]).any(dim=1).float().mean().item()
        assert least <= foreign <= most


def test_pasted_squares() -> None:
    one, other = torch.zeros(3, 1, 6, 6), torch.ones(3, 1, 6, 6)
    mixed = paste(one, other, torch.tensor([[0, 3, 2, 0], [0, 3, 2, 1], [0, 0, 5, 3]]))
    assert mixed[0].sum() == 0
    assert mixed[1].nonzero().tolist() == [[0, 3, 2]]
    assert mixed[2, 0, :3, 3:].eq(1).all(), "the corner, as far as the image goes"
    assert mixed[2].sum() == 9
    drawn = draw_mix(np.random.default_rng(0), 5000, (3, 32, 32))
    assert sorted(drawn[:, 0]) == list(range(5000))
    assert (2 * drawn[:, 3] / 32).__pow__(2).mean() == pytest.approx(0.5, abs=0.02), "any share is as likely"


def test_sharpening_goes_as_far_as_asked_and_never_flattens() -> None:
    chances = torch.softmax(torch.randn(500, 10, generator=torch.Generator().manual_seed(0)) / 5, dim=1)
    heat = fitting_heat(chances, 0.5)
    sharp = sharpened(chances, heat)
    entropy = -(sharp * sharp.log()).sum(1).mean().item()
    assert entropy == pytest.approx(0.5 * np.log(10), abs=0.01)
    assert sharp.argmax(1).equal(chances.argmax(1))
    assert fitting_heat(torch.eye(10), 0.5) == 1.0
    assert sharpened(torch.eye(10), 0.1).isfinite().all()


def test_a_recipe_is_what_is_not_given() -> None:
    paper = experiment_file.load("cifar10").distillation
    assert (paper.loss, paper.epochs, paper.same_views, paper.sharpen, paper.start) == ("l1", 50, False, 0.0, "fresh")
    ours = experiment_file.load("cifar10", ["distillation.recipe=cpfl", "distillation.epochs=7"]).distillation
    assert ours == Distillation(epochs=7)
    back = experiment_file.load("cifar10-cpfl", ["distillation.recipe=paper", "distillation.lr=0.01"]).distillation
    assert back == Distillation(recipe="paper", lr=0.01)
    assert experiment_file.parse(experiment_file.to_toml(experiment_file.load("digits")), "").distillation.loss == "l1"


def test_a_student_of_another_form_begins_anew(tmp_path: Path) -> None:
    brief = {"max_rounds": 2, "distillation.recipe": "cpfl", "distillation.epochs": 1, "distillation.lr": 1e-12}
    run = cpfl.run("digits", out=tmp_path / "run", settings=brief)
    mean = mean_of(load_state(RunFolder.open(run.path).teacher(cohort)) for cohort in range(4))
    torch.testing.assert_close(run.model, mean, rtol=0, atol=1e-6)
    assert cpfl.distill(run.path, student="femnist-cnn", name="cnn")["distillation"]["start"] == "auto"


def test_the_cycle_rises_in_a_line_and_falls_along_a_cosine() -> None:
    assert one_cycle(0) == 0
    assert one_cycle(RISE / 2) == pytest.approx(0.5)
    assert one_cycle(RISE) == pytest.approx(1)
    assert one_cycle((1 + RISE) / 2) == pytest.approx(0.5)
    assert one_cycle(1) == pytest.approx(0)


def test_a_cycle_is_another_course_than_a_constant_rate(tmp_path: Path) -> None:
    quick = {"max_rounds": 3, "distillation.epochs": 4}
    run = cpfl.run("digits", out=tmp_path / "run", settings=quick)
    cycle = cpfl.distill(run.path, schedule="one-cycle", data=None)
    assert cycle["distillation"]["schedule"] == "one-cycle"
    lines = (Path(cycle["path"]) / "epochs.jsonl").read_text().splitlines()
    own = (Path(run.path) / "epochs.jsonl").read_text().splitlines()
    assert len(lines) == len(own) == 4
    assert lines != own


def test_a_student_that_begins_as_the_mean_and_learns_nothing_is_the_mean(tmp_path: Path) -> None:
    still = {"max_rounds": 3, "distillation.epochs": 1, "distillation.lr": 1e-12, "distillation.start": "mean"}
    run = cpfl.run("digits", out=tmp_path / "run", settings=still)
    folder = RunFolder.open(Path(run.path))
    teachers = [load_state(folder.teacher(cohort)) for cohort in range(run.summary["cohorts"])]
    for name, value in run.model.items():
        right = torch.stack([teacher[name] for teacher in teachers]).mean(0)
        torch.testing.assert_close(value, right, rtol=0, atol=1e-6)


def test_the_mean_of_states_leaves_counters_alone() -> None:
    states = [{"w": torch.full((2,), float(k)), "count": torch.tensor(k)} for k in (1, 2, 6)]
    found = mean_of(states)
    assert found["w"].tolist() == [3.0, 3.0]
    assert found["count"].item() == 1


def test_only_images_are_cropped_and_mirrored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 2, 40)
    settings = {"clients": 4, "cohorts": 2, "max_rounds": 1, "distillation.augment": "mirror"}
    with pytest.raises(SettingError, match=r"distillation\.augment = 'mirror' is for images"):
        cpfl.run("digits", out=tmp_path / "run", settings=settings, train=(x, y), test=(x, y), public=x)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match='start = "mean"'):
        experiment_file.load("digits", ["distillation.start=mean", "distillation.student=femnist-cnn"])
