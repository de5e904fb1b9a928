"""Any damage to a file of a run: refused in one sentence, or the outcome is that of the undamaged run.

Any damage to a file of a data set: refused in one sentence, or read into samples of the same kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import small_runs
from hypothesis import strategies as st
from strategies import damaged, damages
from tests.data.image_files import encode, write_shard
from tests.data.test_natural import speeches, write_har, write_heart, write_shakespeare
from tests.data.test_tables import TABLE, write

import cpfl
from cpfl.data import sources
from cpfl.errors import CpflError

TIMES = int(os.environ.get("FUZZ", "1"))
FUZZ = hypothesis.settings.get_profile("fuzz")
KINDS = {
    "plateau": {},
    "joint": {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.min_gain": 0, "max_rounds": 6},
}

DISTILLATIONS: dict[str, dict[str, str]] = {"again": {}, "earlier": {"at": "50s"}}  # the second one reads snapshots


class Stop(cpfl.Callback):
    """Ends a run after so many rounds, as a kill would."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, session: object, closed: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of every kind, an unfinished run and the finished one."""
    made = {}
    for kind, changes in KINDS.items():
        folder, settings = tmp_path_factory.mktemp(kind), small_runs.settings_with(changes)
        whole = cpfl.run("digits", settings=settings, out=folder / "whole", engine="reference", device="cpu").path
        with contextlib.suppress(KeyboardInterrupt):
            cpfl.run(
                "digits", settings=settings, out=folder / "part", engine="reference", device="cpu", callback=Stop(10)
            )
        for name, changes in DISTILLATIONS.items():
            cpfl.distill(whole, name=name, device="cpu", **changes)
        made[kind] = (folder / "part", whole)
    return made


@hypothesis.settings(FUZZ, max_examples=16 * TIMES)
@hypothesis.given(
    kind=st.sampled_from(sorted(KINDS)),
    command=st.sampled_from(["resume", *DISTILLATIONS]),
    number=st.integers(0, 10**6),
    damage=damages(),
)
def test_a_damaged_file_of_a_run(
    kind: str,
    command: str,
    number: int,
    damage: tuple[str, int, int],
    runs: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
    tally: Counter[str],
) -> None:
    part, whole = runs[kind]
    path = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(part if command == "resume" else whole, path)
    shutil.rmtree(path / "distillations", ignore_errors=True)
    every = sorted(file for file in path.rglob("*") if file.is_file())
    touched = do_damage(every, number, *damage)
    tally["damaged files"] += 1
    sentence = ""
    try:
        if command == "resume":
            cpfl.resume(path, device="cpu")
            unread = {str(one.relative_to(path)) for one in touched if one.parent.name == "snapshots"}
            assert set(small_runs.differing(path, whole)) <= unread  # later distillations refuse them
        else:
            cpfl.distill(path, name=command, device="cpu", **DISTILLATIONS[command])
            model = Path("distillations", command, "models/global.safetensors")
            assert (path / model).read_bytes() == (whole / model).read_bytes()
    except CpflError as refused:
        tally["damage refused"] += 1
        sentence = str(refused)
    is_short(sentence)
    for read in READERS:
        with contextlib.suppress(CpflError):
            read(path)
    shutil.rmtree(path.parent)


def do_damage(every: list[Path], number: int, how: str, place: int, byte: int) -> list[Path]:
    """Damage one of these files; those that it changed."""
    file = every[number % len(every)]
    if how == "delete":
        file.unlink()
        return [file]
    if how == "swap":
        other = every[place % len(every)]
        first, second = file.read_bytes(), other.read_bytes()
        file.write_bytes(second)
        other.write_bytes(first)
        return [file, other]
    new = damaged(file.read_bytes(), how, place, byte)
    hypothesis.assume(new is not None)
    assert new is not None
    file.write_bytes(new)
    return [file]


def is_short(sentence: str) -> None:
    """One line, or nothing."""
    assert "\n" not in sentence
    assert len(sentence) < 500


# Data sets of a user's own.

PIXELS = np.random.default_rng(5).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = [number % 3 for number in range(12)]


def write_parquet(folder: Path) -> None:
    for split, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 4), ("test-00000-of-00001", 8)):
        images = [encode(one) for one in PIXELS[first : first + 4]]
        owners = [f"f{number % 2}" for number in range(4)]
        write_shard(folder / f"{split}.parquet", images, label=LABELS[first : first + 4], writer_id=owners)


def write_leaf(folder: Path) -> None:
    for split, first in (("train", 0), ("test", 8)):
        (folder / split).mkdir(parents=True)
        users = {
            f"f{one}": {
                "x": (PIXELS[one : one + 2].reshape(2, -1) // 51 / 5).tolist(),
                "y": LABELS[one : one + 2],
            }
            for one in range(first, first + 4, 2)
        }
        tree = {"users": list(users), "num_samples": [2] * len(users), "user_data": users}
        (folder / split / "all_data_0.json").write_text(json.dumps(tree))


def write_cifar(folder: Path) -> None:
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        rows = [bytes([number % 10]) + bytes(range(256)) * 12 for number in range(2)]
        (folder / "cifar-10-batches-bin" / name).write_bytes(b"".join(rows))


def write_tables(suffix: str) -> Callable[[Path], None]:
    def write_both(folder: Path) -> None:
        for split in ("train", "test"):
            write(folder / f"{split}{suffix}", TABLE | {"who": [f"p{number % 3}" for number in range(40)]})

    return write_both


IMAGES: dict[str, Callable[[Path], object]] = {"parquet": write_parquet, "leaf": write_leaf, "cifar": write_cifar}
SETS = IMAGES | {
    **{suffix: write_tables(suffix) for suffix in (".csv", ".npz", ".parquet")},
    "har": lambda folder: write_har(folder, "unpacked"),
    "har, zipped": lambda folder: write_har(folder, "archive in an archive"),
    "heart": write_heart,
    "shakespeare": lambda folder: write_shakespeare(folder, speeches(6)),
}


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of every format, a small set that can be read."""
    folder = tmp_path_factory.mktemp("sets")
    for name, make in SETS.items():
        make(folder / name)
        for split in ("train", "test"):
            samples = sources.load(str(folder / name), split, [])
            assert samples is not None
            assert len(samples.x) == len(samples.y) > 0
    return {name: folder / name for name in SETS}


@hypothesis.settings(FUZZ, max_examples=40 * TIMES)
@hypothesis.given(name=st.sampled_from(sorted(SETS)), number=st.integers(0, 10**6), damage=damages())
def test_a_damaged_file_of_a_data_set(
    name: str,
    number: int,
    damage: tuple[str, int, int],
    data_sets: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    tally: Counter[str],
) -> None:
    path = tmp_path_factory.mktemp("data") / name
    shutil.copytree(data_sets[name], path)
    do_damage(sorted(file for file in path.rglob("*") if file.is_file()), number, *damage)
    tally["damaged files"] += 1
    tally["damaged data files"] += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPFL_CACHE", str(path.parent / "cache"))
        for split in ("train", "test", "public"):
            try:
                samples = sources.load(str(path), split, [], ("train",))
            except CpflError as refused:
                is_short(str(refused).replace(str(path), ""))
                tally["damage refused"] += 1
                continue
            if samples is not None and split != "public":
                assert samples.y is not None
                assert len(samples.x) == len(samples.y) > 0
                if name in IMAGES:
                    assert samples.x.ndim == 4
                    assert samples.x.dtype == np.uint8
                    assert samples.y.min() >= 0
                elif samples.x.dtype != np.uint8:
                    assert np.isfinite(samples.x).all()
    shutil.rmtree(path.parent)


def overview(path: Path) -> None:
    from cpfl.reports import tables

    tables.overview(path)


def contents(path: Path) -> None:
    run = cpfl.load_run(path)
    _ = run.experiment, run.summary, run.rounds


READERS: tuple[Callable[[Path], None], ...] = (overview, contents)
