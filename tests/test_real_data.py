"""The real CIFAR-10, MNIST by writers and device traces, where they exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.pages import noted

import cpfl
from cpfl.data import federated
from cpfl.data.given import Given
from cpfl.data.natural import heart
from cpfl.data.samples import shared_images
from cpfl.devices import availability
from cpfl.devices.fleet import fleet, read_trace
from cpfl.settings.experiment_file import load, with_settings

if TYPE_CHECKING:
    from conftest import Command

DATA = Path(__file__).parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not (DATA / "cifar10").is_dir(), reason="the real data sets are not beside the project")


def test_cifar10_from_the_command_line(cpfl_command: Command, tmp_path: Path) -> None:
    """The command of the docs, shortened to what two cores do in seconds; the test set is 300 of the real images."""
    shutil.copytree(DATA / "cifar10", tmp_path / "data" / "cifar10", ignore=shutil.ignore_patterns("test*"))
    (tested,) = (DATA / "cifar10").glob("test-*.parquet")
    pq.write_table(pq.read_table(tested)[:300], tmp_path / "data" / "cifar10" / tested.name)
    for name in ("tinyimagenet32", "fedscale"):
        (tmp_path / "data" / name).symlink_to(DATA / name)
    (words,) = noted("custom-data-and-model.md", "tests/test_real_data.py")
    assert words[words.index("--data") + 1] == "data"
    for setting in ("max_rounds=2", "data.train_limit=1000", "data.public_limit=200", "distillation.epochs=1"):
        words += ["--set", setting]
    cpfl_command(*words, "--out", "real").good()
    summary = json.loads((tmp_path / "real" / "summary.json").read_text())
    about = json.loads((tmp_path / "real" / "run.json").read_text())
    assert (summary["cohorts"], summary["clients"], summary["rounds"]) == (4, 200, 8)
    assert about["samples"] == {"train": 1000, "test": 300, "public": 200}
    assert about["shape"] == [3, 32, 32]
    # 200 clients send and receive 346 kB in each of two rounds; four cohort models go to the global server.
    assert summary["comm_gb"] == pytest.approx((2 * 200 * 2 + 4) * 346_000 / 1e9, rel=1e-12)
    assert 5 < summary["student_accuracy"] < 40


def test_the_split_of_cifar10_in_the_paper() -> None:
    """The last client gets the rest of every class: at α = 1 about five times the mean, as in the authors' code."""
    last = []
    for seed in range(90, 93):
        experiment = with_settings(load("cifar10"), {"data.alpha": 1, "data.public": "tinyimagenet32", "seed": seed})
        data = federated.load(experiment, [DATA], Given())
        sizes = [len(client.training) + len(client.validation) for client in data.clients]
        assert (sum(sizes), len(data.test.y)) == (50_000, 10_000)
        assert min(sizes) >= 1
        assert all(
            len(c.validation) == (size // 10 if size >= 10 else 0) for c, size in zip(data.clients, sizes, strict=True)
        )
        last.append(sizes[-1])
    assert 900 < np.mean(last) < 1500


def test_a_natural_split_by_writer() -> None:
    data = federated.load(load("mnist-writers"), [DATA], Given())
    assert len(data.clients) == 539
    writers = data.train.columns["writer_id"]
    for client in data.clients:
        assert len(np.unique(writers[np.concatenate([client.training, client.validation])])) == 1
    assert data.public.shape == data.train.shape


def test_csv_and_pickle_of_the_trace_agree() -> None:
    csv, pickle = (read_trace(DATA / "fedscale" / f"client_device_capacity_10k.{kind}") for kind in ("csv", "pkl"))
    np.testing.assert_array_equal(csv, pickle)
    experiment = load("cifar10")
    drawn = fleet(experiment.devices, experiment.clients, experiment.seed, [DATA])
    assert set(drawn.compute_ms) <= set(csv[0])
    seconds = [drawn.training_seconds(client, 1, 20) for client in range(200)]
    assert 0.9 <= min(seconds) <= max(seconds) <= 11.95  # the paper's range for a mini-batch


def test_the_synthetic_fleet_has_the_distribution_of_the_real_one() -> None:
    synthetic = fleet(with_settings(load("cifar10"), {"devices.trace": "synthetic"}).devices, 20_000, 1, [])
    compute, network = read_trace(DATA / "fedscale" / "client_device_capacity_10k.csv")
    for real, drawn in ((compute, synthetic.compute_ms), (network, synthetic.network_kbps)):
        points = np.arange(2, 99, 4)
        np.testing.assert_allclose(np.percentile(drawn, points), np.percentile(real, points), rtol=0.12)
    assert abs(np.corrcoef(synthetic.compute_ms, synthetic.network_kbps)[0, 1]) < 0.03


def test_no_image_is_in_two_sets(cpfl_command: Command) -> None:
    words = ("data", "check", "cifar10", "--data", str(DATA), "--set", "data.public=tinyimagenet32")
    assert "no image is in more than one" in cpfl_command(*words).good().out


def test_availability_equals_that_of_fedscale() -> None:
    """Every user at 500 moments of three weeks: in FedScale it is active in a period of the time modulo finish_time."""
    path = DATA / "fedscale" / "client_behave_trace_100.json"
    rows, schedules = list(json.loads(path.read_text()).values()), availability.read(path)
    assert len(schedules) == len(rows) == 100
    moments = np.random.default_rng(0).integers(0, 21 * 24 * 3600, 500) + 0.5
    for row, schedule in zip(rows, schedules, strict=True):
        begins, ends = np.array(row["active"]), np.array(row["inactive"])
        assert sum(ends - begins) == row["duration"]
        begins, ends = begins[ends > begins], ends[ends > begins]  # some periods last no second
        assert schedule.share(0, schedule.period) == pytest.approx(row["duration"] / row["finish_time"])
        for moment in moments:
            now = moment % row["finish_time"]
            available = bool(((begins <= now) & (now < ends)).any())
            assert (schedule.available_until(moment) > moment) == available
            if available:
                left = ends[(begins <= now) & (now < ends)][0] - now
                assert schedule.available_until(moment) >= moment + left - 1e-6
            else:
                later = begins[begins > now]
                wait = later[0] - now if len(later) else row["finish_time"] - now + begins[0]
                assert schedule.next_available(moment) == pytest.approx(moment + wait)


def natural(name: str) -> federated.FederatedData:
    """The data of a preset, whose three sets share no sample."""
    data = federated.load(load(name), [DATA], Given())
    assert shared_images({"train": data.train, "test": data.test, "public": data.public}) == []
    assert data.public.y is None
    assert len(data.clients) == load(name).clients
    owner = data.train.columns[load(name).data.column]
    for client in data.clients:
        assert len(np.unique(owner[np.concatenate([client.training, client.validation])])) == 1
    return data


def test_heart_by_hospital() -> None:
    data = natural("heart")
    assert (len(data.train), len(data.test), len(data.public)) == (461, 231, 226)
    for place, name in enumerate(data.train.names):
        if name in heart.NUMBERS:  # standardized by what the training patients have
            held = data.train.x[:, place]
            np.testing.assert_allclose([held[held != 0].mean(), held[held != 0].std()], [0, 1], atol=5e-3)
    assert data.test.y is not None
    shares = [np.bincount(data.test.y[data.test.columns["hospital"] == one]) for one in heart.HOSPITALS]
    assert [share.tolist() for share in shares] == [[41, 35], [47, 27], [2, 29], [13, 37]]


def test_har_by_person() -> None:
    data = natural("har")
    assert data.test.y is not None
    assert np.bincount(data.test.y).tolist() == [496, 471, 420, 491, 532, 537]  # as UCI's own test part
    assert (len(data.train), len(data.public)) == (5667, 1685)
    assert not {*data.train.columns["subject"].tolist()} & {*data.test.columns["subject"].tolist()}
    means, deviations = data.train.x.mean((0, 2)), data.train.x.std((0, 2))
    np.testing.assert_allclose(means, data.transform.mean, atol=2e-3)
    np.testing.assert_allclose(deviations, data.transform.std, atol=2e-3)


def test_shakespeare_by_role() -> None:
    data = natural("shakespeare")
    assert (len(data.train), len(data.test), len(data.public)) == (8000, 2000, 2000)
    assert data.inputs(2).dtype == torch.int64


@pytest.mark.parametrize("name", ["har", "heart", "shakespeare"])
def test_a_natural_preset_runs(name: str, tmp_path: Path) -> None:
    settings = {"max_rounds": 1, "data.train_limit": 0, "data.public_limit": 40, "distillation.epochs": 1}
    if name != "heart":
        settings |= {"federation.local_steps": 1, "federation.participants": 2}
    run = cpfl.run(name, data=DATA, out=tmp_path / "run", settings=settings, device="cpu", engine="reference")
    assert run.summary["rounds"] == run.summary["cohorts"]
    assert 0 < run.summary["student_accuracy"] < 100


def test_digits_by_hand_and_house_numbers() -> None:
    """The paper's cross-domain pair: public images become grey and small, and are normalized on their own."""
    data = natural("mnist-svhn")
    assert data.public.x.shape == (8000, 1, 28, 28)
    assert (data.transform.mean, data.public_transform.mean) == ((), (0.5,))
