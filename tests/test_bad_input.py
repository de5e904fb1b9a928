"""A user's mistakes: one clear sentence on stderr, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

import cpfl
from cpfl.runs.folder import SCHEMA

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Answer, Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")


def refused(answer: Answer, *words: str) -> None:
    """One sentence, which has all these words."""
    assert answer.code == 2, answer
    assert answer.err.startswith("cpfl: "), answer.err
    assert len(answer.err.splitlines()) == 1, answer.err
    for word in words:
        assert word in answer.err, f"{word!r} is not in: {answer.err}"


SETTINGS: dict[str, tuple[str, ...]] = {
    # unknown keys, with the nearest right one
    "cohort=4": ("cohort;", "did you mean cohorts?"),
    "data.alhpa=1": ("data.alhpa", "did you mean data.alpha?"),
    "federatoin.lr=1": ("federatoin.lr", "did you mean federation.lr?"),
    "alpha=1": ("no setting alpha", "did you mean data.alpha?"),
    "data.alpha.beta=1": ("data.alpha.beta", "no setting"),
    "cohorts": ("key=value", "'cohorts'"),
    "=4": ("key=value", "'=4'"),
    # wrong types
    "cohorts=four": ("cohorts = 'four'", "integer"),
    "cohorts=2.5": ("cohorts = 2.5", "integer"),
    "cohorts=true": ("cohorts", "integer"),
    "cohorts=[1,2]": ("cohorts = [1, 2]", "integer"),
    "federation.lr=fast": ("federation.lr = 'fast'", "number"),
    "federation.lr=true": ("federation.lr", "number"),
    "data.augment_validation=perhaps": ("data.augment_validation", "perhaps"),
    "data=5": ("data = 5",),
    # ranges
    "cohorts=0": ("cohorts = 0", "1"),
    "cohorts=41": ("cohorts = 41", "clients = 40", "1 to 40"),
    "clients=3": ("cohorts = 4", "clients = 3"),
    "data.alpha=0": ("data.alpha = 0", "greater than or equal to 0.000001"),
    "data.alpha=-1": ("data.alpha = -1", "greater than or equal to 0.000001"),
    "federation.participation=0": ("federation.participation = 0", "greater than 0"),
    "federation.participation=1.5": ("federation.participation = 1.5", "1"),
    "federation.momentum=1": ("federation.momentum = 1", "less than 1"),
    "distillation.epochs=0": ("distillation.epochs = 0", "1"),
    "distillation.quorum=0": ("distillation.quorum = 0", "0"),
    "seed=-1": ("seed = -1", "0"),
    "max_rounds=0": ("max_rounds = 0", "1"),
    # not finite
    "data.alpha=nan": ("data.alpha = nan", "finite"),
    "data.alpha=inf": ("data.alpha = inf", "finite"),
    "federation.lr=nan": ("federation.lr = nan", "finite"),
    "federation.participation=nan": ("federation.participation = nan",),
    "stopping.max_hours=inf": ("stopping.max_hours = inf", "finite"),
    "distillation.temperature=nan": ("distillation.temperature = nan", "finite"),
    "devices.compute_ms=nan": ("devices.compute_ms = nan", "finite"),
    "data.std=[nan]": ("data", "std"),
    "data.mean=[nan]": ("data", "mean"),
    "data.mean=[0.5, 0.5]": ("data.mean", "2", "1"),
    # choices
    "data.split=random": ("data.split = 'random'", "'dirichlet'", "'iid'"),
    "distillation.aggregation=mean": ("distillation.aggregation = 'mean'", "logits", "probabilities"),
    "distillation.recipe=[]": ("distillation.recipe = []", "'cpfl'", "'paper'"),
    "distillation.recipe={a = 1}": ("distillation.recipe = {'a': 1}", "'cpfl'", "'paper'"),
    "federation.server=[]": ("federation.server = []", "string"),
    "federation.client={a = 1}": ("federation.client = {'a': 1}", "string"),
    "stopping.rule=never": ("stopping.rule = 'never'", "plateau"),
    "stopping.rule=rounds": ("rounds", "at least 1"),
    "stopping.rule=budget": ("max_hours, max_cpu_hours or max_traffic_gb",),
    "stopping.eval_interval=0": ("stopping.eval_interval = 0", "1"),
    "stopping.min_gain=-1": ("stopping.min_gain = -1", "0"),
    "stopping.eval_window=3": ("stopping.eval_window = 3", "4"),
    "stopping.client_fraction=0": ("stopping.client_fraction = 0", "greater than 0"),
    "stopping.metric=nobody": ("stopping.metric = 'nobody'", "'ensemble-accuracy'", "'public-agreement'"),
    "snapshots=often": ("snapshots = 'often'", "5h", "50 rounds"),
    "snapshots=0h": ("snapshots = '0h'", "above 0"),
    "distillation.at=soon": ("at = 'soon'", "10h"),
    "data.classes=5": ("9", "data.classes = 5", "0 to 4"),
    "data.split=column": ("column",),
    "clients=2000": ("clients = 2000", "1438"),
    "data.train_limit=5": ("data.train_limit",),
    # data
    "data.train=mnist-writers": ("mnist-writers", "was not found at", "train-*.parquet"),
    "data.train=digit": ("'digit'", "did you mean digits?"),
    "data.train=./nowhere": ("./nowhere", "not a folder"),
    "data.train=letters": ("labels",),
    "data.train=fedscale": ("fedscale", "device trace"),
    "data.augment=crop-flip-cutout": ("data.augment", "8"),  # a hole of 16×16 blanks an image of 8×8
    # devices
    "devices.trace=nowhere.csv": ("devices.trace = 'nowhere.csv'", "no file"),
    # models
    "model.name=mpl": ("model.name = 'mpl'", "mlp"),
    "model.name=nowhere:Net": ("model.name = 'nowhere:Net'", "nowhere"),
    "model.name=torch.nn:Nothing": ("model.name = 'torch.nn:Nothing'", "Nothing"),
    "model.name=:Net": ("model.name = ':Net'", "module:Class"),
    "model.name=os:getcwd": ("os:getcwd", "torch.nn.Module"),
    "model.name=torch.nn:Flatten": ("(64,)", "(10,)", "one logit for each class"),
    "model.name=torch.nn:Linear": ("torch.nn:Linear", "cannot be built"),
    "model.name=gn-lenet": ("(1, 8, 8)",),
    "model.args.hiden=3": ("mlp", "hiden"),
    "model.start=given": ('model.start = "given"', "given in Python"),
    "model.start=nowhere": ("model.start = 'nowhere'", "fresh, given, or a safetensors file"),
    "model.start=/dev/null": ("model.start = '/dev/null'", "is no file"),
    "distillation.student=mpl": ("distillation.student", "mlp"),
    "model.args.foo=1": ("model.args.foo", "mlp", "it takes hidden"),
    # what is allowed, in words
    "name=a/b": ("name = 'a/b'", "letters, digits, '_', '.' and '-' are allowed"),
    "seed=07:32:00": ("seed = 07:32:00 is not allowed", "integer"),
    "data.public_std=[0.5]": ("data.public_std is given without data.public_mean",),
    "data.std=[1e-40]": ("data.std must be 1e-09 or more",),
    "federation.local_steps=3000000": ("federation.local_steps = 3000000", "1000000"),
    "federation.local_steps=1000000": ("federation.local_steps = 1,000,000", "at most 10,000,000 are possible"),
    "federation.local_epochs=100000": ("federation.local_epochs = 100,000", "at most 10,000,000 are possible"),
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("stopping.metric=public-agreement", "cohorts=1"), ("stopping.metric", "cohorts must be 2 or more")),
        (("data.validation=0",), ("stopping.metric", "data.validation must be above 0")),
        (
            ("data.validation_min_samples=5000",),
            ("stopping.metric", "no client keeps any", "data.validation_min_samples"),
        ),
    ],
)
def test_nobody_to_evaluate(
    cpfl_command: Command, tmp_path: Path, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    chosen = [word for setting in ("stopping.rule=joint", *settings) for word in ("--set", setting)]
    refused(cpfl_command("run", "digits", *QUICK, *chosen, "--out", "run"), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting(cpfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing is downloaded for a mistake
    extra: tuple[str, ...] = ()
    if setting.startswith("data.std"):
        extra = ("--set", "data.mean=[0.5]")
    elif setting.startswith("data.mean"):
        extra = ("--set", "data.std=[0.5, 0.5]" if "," in setting else "data.std=[0.5]")
    answer = cpfl_command("run", "digits", *QUICK, *extra, "--set", setting, "--out", "run")
    refused(answer, *SETTINGS[setting])
    assert not (tmp_path / "run").exists()


OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run", "digts"): ("'digts'", "did you mean digits?"),
    ("run", "nothing-like-it"): ("nothing-like-it", "cifar10", "digits", "femnist"),
    ("run", "nowhere.toml"): ("nowhere.toml", "No such file"),
    ("run", "digits", "--device", "banana"): ("device = 'banana'", "cpu", "cuda"),
    ("run", "digits", "--device", "meta"): ("device = 'meta'",),
    ("run", "digits", "--device", "mps"): ("device = 'mps' cannot be used: this machine or",),
    ("run", "digits", "--engine", "warp"): ("engine = 'warp'", "reference"),
    ("run", "digits", "--data", "nowhere"): ("data = 'nowhere'", "not a folder"),
    ("sweep", "digits", "--cohorts", "1,two"): ("--cohorts", "1,two", "1,2,4"),
    ("sweep", "digits", "--cohorts", ""): ("--cohorts", "1,2,4"),
    ("sweep", "digits", "--cohorts", "1,,2"): ("--cohorts", "1,,2"),
    ("sweep", "digits", "--cohorts", "0,1"): ("cohorts = 0",),
    ("sweep", "digits", "--cohorts", "1,50"): ("cohorts = 50", "clients = 40"),
    ("sweep", "digits", "--cohorts", "1", "--seeds", "a"): ("--seeds", "'a'"),
    ("sweep", "digits", "--cohorts", "1", "--seeds", "-1"): ("seed = -1",),
}


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_an_option(cpfl_command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    refused(cpfl_command(*words, *QUICK, "--out", "out"), *OPTIONS[words])
    assert not (tmp_path / "out").exists()


DISTILL: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--at", "soon"): ("at = 'soon'", "10h"),
    ("--at", "-1h"): ("at = '-1h'",),
    ("--at", "nanh"): ("at = 'nanh'",),
    ("--quorum", "0"): ("quorum = 0",),
    ("--quorum", "1.5"): ("quorum = 1.5", "1"),
    ("--quorum", "nan"): ("quorum = nan",),
    ("--at", "1h", "--quorum", "0.5"): ("at and quorum exclude each other",),
    ("--weights", "equal"): ("distillation.weights = 'equal'", "labels", "uniform"),
    ("--aggregation", "mean"): ("distillation.aggregation = 'mean'", "logits"),
    ("--recipe", "secret"): ("distillation.recipe = 'secret'", "'paper'"),
    ("--set", "distillation.recipe=[]"): ("distillation.recipe = []", "'cpfl'", "'paper'"),
    ("--unfinished", "wait"): ("distillation.unfinished = 'wait'", "'latest'", "'drop'"),
    ("--student", "mpl"): ("'mpl'", "mlp"),
    ("--set", "cohorts=2"): ("distillation", "cohorts"),
    ("--set", "distillation.epochs=many"): ("distillation.epochs = 'many'", "integer"),
    ("--set", "distillation.epoch=3"): ("did you mean distillation.epochs?",),
    ("--device", "banana"): ("device = 'banana'",),
}


@pytest.mark.parametrize("words", DISTILL, ids=" ".join)
def test_a_distillation(cpfl_command: Command, finished: Path, words: tuple[str, ...]) -> None:
    refused(cpfl_command("distill", finished, *words), *DISTILL[words])
    assert list((finished / "distillations").iterdir()) == []


def test_an_option_that_is_no_number(cpfl_command: Command, finished: Path) -> None:
    answer = cpfl_command("distill", finished, "--quorum", "most")
    assert answer.code == 2
    assert "--quorum" in answer.err
    assert "most" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"cohorts = = 4", ("mine.toml", "not valid TOML", "line 1")),
        (b"cohorts = 4\ncohorts = 5", ("mine.toml", "not valid TOML")),
        (b"\xff\xfe\x00", ("mine.toml",)),
        (b"[data]\nalpa = 1", ("data.alpa", "did you mean data.alpha?")),
        (b"[dat]\nalpha = 1", ("dat",)),
        (b"data = 3", ("data = 3",)),
        (b"\xef\xbb\xbfalpa = 1", ("no setting alpa",)),  # begins with a byte order mark
    ],
)
def test_a_broken_experiment(cpfl_command: Command, tmp_path: Path, text: bytes, words: tuple[str, ...]) -> None:
    (tmp_path / "mine.toml").write_bytes(text)
    refused(cpfl_command("run", "mine.toml", "--out", "run"), *words)
    assert not (tmp_path / "run").exists()


# --- traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".pkl"])
@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ((0.0, 6000.0), ("computation = 0.0", "1e-06 to 1,000,000,000 is allowed")),
        ((50.0, -1.0), ("communication = -1.0", "0.001 to 1,000,000,000 is allowed")),
        ((float("nan"), 6000.0), ("computation = nan",)),
        ((50.0, float("inf")), ("communication = inf",)),
    ],
)
def test_impossible_speeds(
    cpfl_command: Command, tmp_path: Path, suffix: str, speeds: tuple[float, float], words: tuple[str, ...]
) -> None:
    trace = tmp_path / f"trace{suffix}"
    if suffix == ".csv":
        trace.write_text(
            f"client_id,computation_ms_per_sample,communication_kbps\na,20,3000\nbad,{speeds[0]},{speeds[1]}\n"
        )
    else:
        devices = {"a": (20.0, 3000.0), "bad": speeds}
        trace.write_bytes(pickle.dumps({k: {"computation": c, "communication": n} for k, (c, n) in devices.items()}))
    answer = cpfl_command("run", "digits", *QUICK, "--set", f"devices.trace={trace.name}", "--out", "run")
    refused(answer, trace.name, "device bad", *words)
    assert not (tmp_path / "run").exists()


class Payload:
    """What an attacker would pickle: loading it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("name", ["trace.pkl", "trace.pickle", "fedscale/client_device_capacity"])
def test_a_hostile_pickle(cpfl_command: Command, tmp_path: Path, name: str) -> None:
    trace = tmp_path / name
    trace.parent.mkdir(exist_ok=True)
    trace.write_bytes(pickle.dumps({1: {"computation": Payload(tmp_path / "pwned"), "communication": 1.0}}))
    chosen = "fedscale" if "/" in name else name
    answer = cpfl_command(
        "run", "digits", *QUICK, "--set", f"devices.trace={chosen}", "--data", tmp_path, "--out", "run"
    )
    refused(answer, trace.name, "mkdir")
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", ("columns",)),
        ("none.csv", b"computation,communication\n", ("no devices",)),
        ("other.csv", b"a,b\n1,2\n", ("computation_ms_per_sample", "a, b")),
        ("words.csv", b"computation,communication\nfast,slow\n", ("numbers", "fast")),
        ("short.csv", b"computation,communication\n50\n", ("numbers",)),
        ("binary.csv", b"\x80\x04\x00", ("csv",)),
        ("torn.pkl", pickle.dumps({1: {"computation": 1.0}})[:-4], ("pickle",)),
        ("list.pkl", pickle.dumps([1, 2]), ("pickle",)),
        ("empty.pkl", pickle.dumps({}), ("no devices",)),
        ("part.pkl", pickle.dumps({1: {"computation": 1.0}}), ("communication",)),
    ],
)
def test_a_broken_trace(
    cpfl_command: Command, tmp_path: Path, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(cpfl_command("run", "digits", *QUICK, "--set", f"devices.trace={name}", "--out", "run"), name, *words)
    assert not (tmp_path / "run").exists()


# --- sets of images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "fit", "words"),
    [
        (12, "exact", ("(1, 12, 12)", "(1, 8, 8)", "data.public_fit")),
        (6, "crop", ("6×6", "8×8", "data.public_fit=resize")),
    ],
)
def test_a_public_set_that_does_not_fit(
    cpfl_command: Command, tmp_path: Path, side: int, fit: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "images").mkdir()
    for i in range(20):
        Image.fromarray(np.full((side, side), i, np.uint8)).save(tmp_path / "images" / f"{i}.png")
    cpfl_command("data", "import", "small", "images", "--data", "data").good()
    words_ = ("--set", "data.public=small", "--set", f"data.public_fit={fit}", "--data", "data", "--out", "run")
    refused(cpfl_command("run", "digits", *QUICK, *words_), *words)
    assert not (tmp_path / "run").exists()


def test_a_column_that_is_not_there(cpfl_command: Command, tmp_path: Path) -> None:
    words = ("--set", "data.split=column", "--set", "data.column=writer", "--out", "run")
    refused(cpfl_command("run", "digits", *QUICK, *words), "data.column = 'writer'", "its columns: none")
    assert not (tmp_path / "run").exists()


# --- folders --------------------------------------------------------------------------------------------------------


def test_an_out_that_exists(cpfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    (tmp_path / "file").write_text("text")
    for out in ("mine", "file"):
        refused(cpfl_command("run", "digits", *QUICK, "--out", out), out, "exists", "choose another folder")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]
    assert (tmp_path / "file").read_text() == "text"
    (tmp_path / "empty").mkdir()
    cpfl_command("run", "digits", *QUICK, "--out", "empty").good()


@pytest.mark.parametrize("out", ["file/run", "/proc/nowhere/run", "/dev/null/run", "x" * 300, "a/" + "x" * 300])
def test_an_impossible_out(cpfl_command: Command, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("text")
    refused(cpfl_command("run", "digits", *QUICK, "--out", out), out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_out(cpfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(cpfl_command("run", "digits", *QUICK, "--out", "locked/run"), "locked/run", "Permission denied")


READERS = (("resume",), ("distill",), ("export", "--no-onnx"), ("predict", "IMAGES"))


@pytest.mark.parametrize("reader", READERS, ids=lambda words: words[0])
def test_a_folder_that_is_no_run(cpfl_command: Command, tmp_path: Path, reader: tuple[str, ...]) -> None:
    command, *rest = reader
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").write_text("text")
    for path in ("nowhere", "mine", "file"):
        refused(cpfl_command(command, path, *rest), path, "not a run folder")
    assert {path.name for path in tmp_path.rglob("*")} == {"mine", "file"}


@pytest.mark.parametrize("reader", READERS[2:], ids=lambda words: words[0])
def test_an_unfinished_run_has_no_model(cpfl_command: Command, unfinished: Path, reader: tuple[str, ...]) -> None:
    command, *rest = reader
    refused(cpfl_command(command, unfinished, *rest), "unfinished", "cpfl resume")
    assert not (unfinished / "export").exists()


def test_a_distillation_that_is_not_there(cpfl_command: Command, finished: Path) -> None:
    answer = cpfl_command("export", finished, "--distillation", "nope", "--no-onnx")
    refused(answer, "nope")
    assert "unfinished" not in answer.err  # the run is finished: it is the name that is wrong


def test_images_that_are_not_there(cpfl_command: Command, finished: Path, tmp_path: Path) -> None:
    refused(cpfl_command("predict", finished, "nowhere"), "nowhere")
    (tmp_path / "empty").mkdir()
    refused(cpfl_command("predict", finished, "empty"), "empty", "no images", ".png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG not really")
    refused(cpfl_command("predict", finished, "broken.png"), "broken.png", "its format is unknown, or it is damaged")


DAMAGE: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "toml broken": ("experiment.toml", b"cohorts = = 4", ("experiment.toml", "TOML")),
    "toml binary": ("experiment.toml", b"\xff\xfe\x00", ("experiment.toml",)),
    "toml unknown key": ("experiment.toml", b"flavour = 3", ("flavour",)),
    "toml missing": ("experiment.toml", b"", ("experiment.toml",)),
    "json broken": ("run.json", b'{"schema": 2', ("run.json", "damaged")),
    "json no object": ("run.json", b"[1]", ("run.json", "damaged")),
    "json lacks the rest": ("run.json", b'{"schema": %d}' % SCHEMA, ("run.json", "damaged")),
    "newer schema": ("run.json", b'{"schema": 99, "cohorts": []}', ("schema 99", f"schema {SCHEMA}")),
    "no schema": ("run.json", b"{}", ("schema",)),
}


@pytest.mark.parametrize("command", ["resume", "distill"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder(cpfl_command: Command, unfinished: Path, tmp_path: Path, kind: str, command: str) -> None:
    name, content, words = DAMAGE[kind]
    shutil.copytree(unfinished, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    if not content:
        (tmp_path / "run" / name).unlink()
    refused(cpfl_command(command, "run"), *words)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("command", ["export", "distill"])
@pytest.mark.parametrize("name", ["global", "cohort-0001"])
def test_a_damaged_model(cpfl_command: Command, finished: Path, tmp_path: Path, command: str, name: str) -> None:
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "models" / f"{name}.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    answer = cpfl_command(command, "run", *(["--no-onnx"] if command == "export" else []))
    if (command == "export") == (name == "global"):
        refused(answer, f"{name}.safetensors", "damaged", "checksum")
    else:
        answer.good()  # it is not needed for that


def test_a_damaged_summary(cpfl_command: Command, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text('{"cohorts"')
    refused(cpfl_command("resume", "run"), "summary.json", "damaged")


class Deep(nn.Sequential):
    """Without a squashing layer: what grows, grows."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))


# --- numbers that are not ---------------------------------------------------------------------------------------------


def test_a_client_that_diverges(cpfl_command: Command, tmp_path: Path) -> None:
    """Named: cohort, client, round. What was there before it stays readable."""
    answer = cpfl_command("run", "digits", *QUICK, "--set", "federation.lr=1e30", "--out", "run")
    refused(answer, "client", "cohort", "round 1", "nan", "federation.lr")
    (row,) = cpfl_command("list", tmp_path, "--json").good().json
    assert row["state"] == "0 of 4 cohorts stopped"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["schema"] == SCHEMA
    refused(cpfl_command("resume", "run"), "client", "cohort", "round 1")


def test_damaged_records(cpfl_command: Command, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "rounds" / "cohort-0000.jsonl").write_text("{\n")
    refused(cpfl_command("distill", "run"), "cohort-0000.jsonl", "damaged")


def test_a_client_that_diverges_later(tmp_path: Path) -> None:
    """Earlier rounds stay: one wild client of many, in a cohort that had begun well."""
    x, y = RNG.normal(size=(80, 5)).astype(np.float32), np.arange(80) % 3
    settings = {"clients": 4, "cohorts": 1, "max_rounds": 60, "federation.lr": 20.0, "federation.momentum": 0.95}
    with pytest.raises(cpfl.CpflError, match=r"client \d+ in cohort 0 became (nan|inf) in round \d+"):
        cpfl.run("digits", train=(x * 100, y), public=x, model=Deep, settings=settings, out=tmp_path / "run")
    run = cpfl.load_run(tmp_path / "run")
    assert run.summary == {}
    assert [record["round"] for record in run.rounds] == list(range(1, len(run.rounds) + 1))


def test_a_student_that_diverges(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", *QUICK, "--set", "distillation.lr=1e30", "--out", "run")
    refused(answer, "distillation.lr")
    (row,) = cpfl_command("list", tmp_path, "--json").good().json
    assert row["state"] == "4 of 4 cohorts stopped"
    cpfl_command("distill", "run", "--set", "distillation.lr=0.001").good()


# --- arrays from Python -----------------------------------------------------------------------------------------------

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
P = RNG.normal(size=(40, 5)).astype(np.float32)
HOLED = np.where(np.arange(300).reshape(60, 5) == 7, np.nan, X)

ARRAYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no labels": ({"train": X}, ("train", "tuple")),
    "labels short": ({"train": (X, Y[:50])}, ("labels", "50", "60")),
    "labels float": ({"train": (X, Y.astype(float))}, ("labels", "float64")),
    "labels as text": ({"train": (X, Y.astype(str))}, ("labels",)),
    "labels one-hot": ({"train": (X, np.eye(3, dtype=int)[Y])}, ("labels", "(60, 3)")),
    "labels negative": ({"train": (X, Y - 1)}, ("-1", "count from 0")),
    "inputs of one axis": ({"train": (X[:, 0], Y)}, ("(60,)",)),
    "inputs NaN": ({"train": (HOLED, Y)}, ("finite",)),
    "inputs text": ({"train": (np.full((60, 5), "blue"), Y)}, ("inputs",)),
    "inputs ragged": ({"train": ([[1.0], [1.0, 2.0]], Y[:2])}, ("inputs",)),
    "train empty": ({"train": (X[:0], Y[:0])}, ("training set", "empty")),
    "test empty": ({"test": (X[:0], Y[:0])}, ("test set", "empty")),
    "test other shape": ({"test": (X[:, :4], Y)}, ("test", "(4,)", "(5,)")),
    "test label beyond": ({"test": (X, Y + 1)}, ("3", "0 to 2")),
    "public empty": ({"public": P[:0]}, ("public set", "empty")),
    "public other shape": ({"public": P[:, :4]}, ("public", "(4,)", "(5,)")),
    "public with labels": ({"public": (P, Y[:40])}, ("public",)),
    "columns short": ({"train": (X, Y, {"who": Y[:10]})}, ("who", "10", "60")),
    "columns no dict": ({"train": (X, Y, Y)}, ("columns",)),
    "model a word": ({"model": "mlp"}, ("model",)),
    "model no module": ({"model": lambda: 5}, ("torch.nn.Module",)),
    "model needs arguments": ({"model": nn.Linear}, ("Linear",)),
    "model other inputs": ({"model": lambda: nn.Linear(7, 3)}, ("(5,)",)),
    "model other classes": ({"model": lambda: nn.Linear(5, 4)}, ("(4,)", "(3,)", "one logit for each class")),
    "too many clients": ({"settings": {"clients": 61, "cohorts": 2}}, ("clients = 61", "60")),
    "column missing": ({"settings": {"data.split": "column", "data.column": "who"}}, ("'who'", "none")),
    "classes too few": ({"settings": {"data.classes": 2}}, ("data.classes = 2", "0 to 1")),
    "augmented table": ({"settings": {"data.augment": "crop-flip-cutout"}}, ("data.augment", "images")),
    "engine": ({"engine": "warp"}, ("warp", "reference")),
    "preset": ({"experiment": "digts"}, ("digits",)),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(tmp_path: Path, case: str) -> None:
    wrong, words = ARRAYS[case]
    given: dict[str, Any] = {
        "experiment": "digits",
        "train": (X, Y),
        "test": (X, Y),
        "public": P,
        "model": lambda: nn.Linear(5, 3),
        "out": tmp_path / "run",
    }
    few = {"clients": 4, "cohorts": 2, "max_rounds": 1, "distillation.epochs": 1}
    given |= wrong
    given["settings"] = few | wrong.get("settings", {})
    with pytest.raises(cpfl.CpflError) as reported:
        cpfl.run(given.pop("experiment"), **given)
    sentence = str(reported.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"cohorts": 0}, {"cohorts": 50}, {"cohort": 4}, {"data": {"alpha": float("nan")}}])
def test_an_experiment_in_python(wrong: dict[str, Any]) -> None:
    """The same sentence as on the command line, not pydantic's page."""
    with pytest.raises(cpfl.CpflError) as reported:
        cpfl.Experiment(**wrong)
    assert "\n" not in str(reported.value)
