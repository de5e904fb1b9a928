"""Absurd values of settings: refused in one short sentence before anything is written, or they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_runs
from forked import Forked

import cpfl
from cpfl.federation.optimizers import client_optimizer
from cpfl.privacy.label_counts import deviation
from cpfl.settings import Experiment, Federation, describe, experiment_file

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

LONGEST = 500  # characters of a sentence
FIXED = "devices.trace=fixed"
SHARDS = "data.split=shards"
# Settings of a command line, and words of the sentence that refuses them.
REFUSED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("privacy.epsilon=1e-308",): ("privacy.epsilon = 1e-308", "0, or 1e-06 or more"),
    ("privacy.epsilon=1", "privacy.delta=1e-308"): ("privacy.delta = 1e-308", "greater than or equal to"),
    ("federation.client=fedprox", "federation.client_args.mu=1e308"): ("client_args.mu = 1e+308", "at most 1e+38"),
    ("federation.server=fedavgm", "federation.server_args.lr=1e308"): ("server_args.lr = 1e+308", "at most 1e+38"),
    ("federation.server=fedadam", "federation.server_args.tau=1e300"): ("server_args.tau = 1e+300", "1e-12 to"),
    ("federation.server=fedadam", "federation.server_args.tau=1e-308"): ("server_args.tau = 1e-308", "1e-12 to"),
    ("federation.client=feddyn", "federation.client_args.alpha=1e-308"): ("client_args.alpha = 1e-308", "1e-12 to"),
    ("federation.client_args.weight_decay=1e39",): ("client_args.weight_decay = 1e+39", "at most 1e+38"),
    ("federation.lr=1e39",): ("federation.lr = 1e+39", "less than or equal to"),
    ("distillation.lr=1e38",): ("distillation.lr = 1e+38", "less than or equal to"),
    (FIXED, "devices.network_kbps=1e-308"): ("devices.network_kbps = 1e-308", "greater than or equal to 0.001"),
    (FIXED, "devices.compute_ms=1e308"): ("devices.compute_ms = 1e+308", "less than or equal to 1000000000"),
    (f"federation.batch_size={10**30}",): (f"federation.batch_size = {10**30}", "1000000000"),
    (f"federation.batch_size={2**63}",): (f"federation.batch_size = {2**63}", "1000000000"),
    (f"distillation.batch_size={2**63}",): (f"distillation.batch_size = {2**63}", "1000000000"),
    ("federation.participation=0.5", "federation.over_selection=1e308"): ("over_selection = 1e+308", "1000"),
    ("data.validation=0.999999999999",): ("data.validation = 0.999999999999", "0.99"),
    ("data.classes=1000000",): ("data.classes = 1000000", "100000"),
    (SHARDS, "data.shards=1000000000"): ("data.shards = 1000000000", "training samples", "1 to 35"),
    ("clients=1000000000",): ("clients = 1000000000", "1438 training samples"),
    (f"seed={2**63}",): (f"seed = {2**63}", str(2**63 - 1)),
    (f"snapshots={'9' * 400}h",): ("snapshots = '999", "5h"),
    (f"distillation.at={'9' * 400}h",): ("at = '999", "hours"),
    (f"name={'x' * 101}",): ("name = 'xxx", "100 characters"),
    # dates and times of TOML
    ("model.args.x=07:32:00",): ("model.args", "x = 07:32:00", "in quotes"),
    ("model.args.x=1979-05-27",): ("model.args", "x = 1979-05-27", "in quotes"),
    ("model.args.x=[1979-05-27T07:32:00Z]",): ("model.args", "x.0 = 1979-05-27 07:32:00+00:00", "in quotes"),
    ("federation.lr=07:32:00",): ("federation.lr", "number"),
    ("data.train=07:32:00",): ("data.train", "string"),
    # long, deep and large
    ("model.args.x=nan",): ("model.args.x = nan", "finite"),
    (f"model.args.x={10**30}",): (f"x = {10**30}", "64 bits"),
    (f"cohorts={'7' * 5000}",): ("'777", "too long"),
    (f"cohorts=0x{'f' * 5000}",): ("cohorts = a value that is too large", "1000000000"),
    (f"model.args.x={'[' * 50}1{']' * 50}",): ("model.args", "32 levels deep"),
    (f"model.args.x={'[' * 5000}1{']' * 5000}",): ("'[[[", "too deep"),
    (f"model.args.{'a.' * 5000}x=1",): ("model.args", "32 levels deep"),
    (f"model.args={{{'a.' * 5000}x=1}}",): ("'{a.a.", "too deep"),
    (f"cohorts={'x' * 100_000}",): ("cohorts = 'xxx", "integer"),
    (f"{'x' * 100_000}=1",): ("there is no setting xxx", "known here: name"),
    (f"data.train={'x' * 100_000}",): ("xxx",),
    (f"federation.client={'x' * 100_000}",): ("federation.client = 'xxx", "sgd"),
    (f"model.name={'x' * 100_000}:Net",): ("model.name = 'xxx",),
    (f"model.args.{'x' * 100_000}=1",): ("mlp", "xxx"),
    (f"devices.trace={'x' * 100_000}",): ("devices.trace = 'xxx",),
    # no text
    ('name="a\\u0000b"',): ("name = 'a\\x00b'", "are allowed"),
    ('data.train="\\u0000"',): ("data.train = '\\x00'", "no text"),
    ('model.name="a\\u0000:Net"',): ("model.name = 'a\\x00:Net'", "no text"),
    ('model.args.x="\\u0000"',): ("model.args", "x = '\\x00'", "no text"),
}


def is_sentence(text: str, *words: str) -> None:
    """One short line with all these words."""
    assert len(text.splitlines()) == 1, text[:2000]
    assert 0 < len(text) < LONGEST
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


@pytest.mark.parametrize("settings", REFUSED, ids=lambda settings: " ".join(settings)[:60])
def test_refused(cpfl_command: Command, tmp_path: Path, settings: tuple[str, ...]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    answer = cpfl_command("run", "digits", "--set", "max_rounds=2", *words, "--out", "run")
    assert answer.code == 2, answer.err[-2000:]
    is_sentence(answer.err.removesuffix("\n"), *REFUSED[settings])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"x = {'[' * 100_000}", ("mine.toml", "too deep")),
        (f"{'a.' * 5000}a = 1", ("mine.toml", "too deep")),
        ("[" + "a . 'b c'." * 2500 + "a]", ("mine.toml", "too deep")),
        (r"x = {" + r'"\" = [" . ' * 5000 + "a = 1}", ("mine.toml", "too deep")),
        (f"cohorts = {'7' * 5000}", ("mine.toml", "too long")),
        ("distillation = 3", ("distillation = 3", "a table of settings is needed")),
        ("[model.args]\nx = 07:32:00", ("model.args", "x = 07:32:00", "in quotes")),
        (f'name = "{"x" * 100_000}"', ("name = 'xxx",)),
        (f"{'x' * 100_000} = 1", ("there is no setting xxx",)),
    ],
)
def test_a_file(cpfl_command: Command, tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "mine.toml").write_text(text)
    for more in ((), ("--set", "federation.client=adam")):
        answer = cpfl_command("run", "mine.toml", *more, "--out", "run")
        assert answer.code == 2, answer.err[-2000:]
        is_sentence(answer.err.removesuffix("\n"), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("args", [{"x": [0.5] * 500}, {"x": "etc. " * 90}, {"x": "." * 500}, {"x.y.z": 1}])
def test_many_dots_are_no_deep_key(args: dict[str, object]) -> None:
    text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in args.items())
    assert len(experiment_file.parse_assignments([f"model.args={{{text}}}"])["model.args"]) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "\ud800"}, ("name = '\\ud800'", "unicode string")),
        ({"data.public": "\udcff"}, ("data.public = '\\udcff'", "no text")),
        ({"data.public_splits": ["train", "\udcff"]}, ("data.public_splits.1 = '\\udcff'", "no text")),
        ({"data.public_splits": ["a\0b"]}, ("data.public_splits.0 = 'a\\x00b'", "no text")),
        ({"model.by_cohort": {"0": "a\udcff:b"}}, ("model.by_cohort.0 = 'a\\udcff:b'", "no text")),
        ({"model.args": {"\udcff": 1}}, ("model.args", "'\\udcff' is no name")),
        ({"model.args": {"x": {"\udcff": 1}}}, ("model.args.x", "'\\udcff' is no name")),
        ({"model.args": {"x": {1: 1}}}, ("model.args.x", "1 is no name")),
        ({"model.args": {"x": [1.0, float("inf")]}}, ("model.args.x.1 = inf", "finite")),
        ({"model.args.x": object()}, ("x is a object", "a file cannot hold")),
        ({"cohorts": 10**5000}, ("cohorts = a value that is too large to be shown",)),
        ({"federation.batch_size": 10**5000}, ("federation.batch_size = a value that is too large to be shown",)),
        ({"\ud800": 1}, ("there is no setting '\\ud800'",)),
        ({"a\nb": 1}, ("there is no setting 'a\\nb'",)),
    ],
)
def test_python(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(cpfl.CpflError) as refused:
        experiment_file.load("digits", settings=settings)
    is_sentence(str(refused.value), *words)


@pytest.mark.parametrize(
    ("setting", "content", "words"),
    [
        ("devices.availability", "[" * 100_000, ("trace", "FedScale's json")),
        (
            "devices.availability",
            '{"a": {"active": [%s], "inactive": [2], "finish_time": 3}}' % ("7" * 5000),
            ("trace",),
        ),
        ("devices.trace", f"computation,communication\n{'9' * 200_000},1\n", ("trace", "csv")),
        ("devices.trace", "computation,communication\n1,1e-308\n", ("communication = 1e-308", "0.001")),
        ("devices.trace", "computation,communication\n1,\0\n", ("trace", "csv")),
    ],
)
def test_a_file_that_a_setting_names(
    cpfl_command: Command, tmp_path: Path, setting: str, content: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "trace").write_text(content)
    answer = cpfl_command("run", "digits", "--set", f"{setting}=trace", "--set", "max_rounds=2", "--out", "run")
    assert answer.code == 2, answer.err[-2000:]
    is_sentence(answer.err.removesuffix("\n"), *words)
    assert not (tmp_path / "run").exists()


def test_a_preset_that_is_no_name() -> None:
    with pytest.raises(cpfl.CpflError, match="neither a preset nor the name of a file"):
        experiment_file.load("a\0b.toml")


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    error = cpfl.CpflError(f"data.train = {'x' * 10_000} is unknown; known: digits")
    is_sentence(str(error), "data.train = xxx", " … ", "is unknown; known: digits")


def test_limits_are_documented() -> None:
    """`cpfl settings`, the page and the JSON schema show them."""
    allowed = {info.key: info.allowed for info in describe.all_settings()}
    assert allowed["privacy.epsilon"] == "0, or 1e-06 or more, at most 1,000,000,000"
    assert allowed["data.validation"] == "0 or more, at most 0.99"
    assert allowed["federation.batch_size"] == "1 or more, at most 1,000,000,000"
    assert allowed["seed"] == "0 or more, at most 9,223,372,036,854,775,807"
    for info in describe.all_settings():
        assert info.type not in ("number", "whole number") or ("at most" in info.allowed or "below" in info.allowed)
    tree = Experiment.model_json_schema()["$defs"]["Privacy"]["properties"]["epsilon"]
    assert tree["anyOf"] == [{"const": 0}, {"minimum": 1e-06}]


def test_control_characters_are_read_back(tmp_path: Path) -> None:
    chosen = experiment_file.load("digits", settings={"model.args": {"a\x7f\x01": "\x7f\n\u2028"}})
    (tmp_path / "experiment.toml").write_text(experiment_file.to_toml(chosen), encoding="utf-8")
    assert experiment_file.read_stored(tmp_path / "experiment.toml") == chosen


def test_the_noise_of_a_tiny_epsilon() -> None:
    """Two nearly equal roots were subtracted."""
    assert deviation(1e-6, 1e-5) == pytest.approx(4798525.9, rel=1e-6)


def test_the_largest_numbers_that_an_optimizer_takes() -> None:
    """What multiplies a tensor fits into float32."""
    client_optimizer(Federation(client="fedprox", client_args={"mu": 1e38}))


# --- lanes ------------------------------------------------------------------------------------------------------------

FULL = {"max_rounds": 2, "distillation.epochs": 1, "federation.batch_size": 10**6}


def test_a_full_batch_is_the_same_on_lanes(tmp_path: Path) -> None:
    settings = small_runs.SETTINGS | FULL | {"precision": "float64"}
    lines = {}
    for engine, size in (("reference", 10**6), ("lanes", 10**6), ("lanes", 1000)):
        out = tmp_path / f"{engine}-{size}"
        run = cpfl.run(
            "digits", engine=engine, device="cpu", out=out, settings=settings | {"federation.batch_size": size}
        )
        lines[engine, size] = [(one["loss"], one["validation"]) for one in run.rounds]
    assert lines["lanes", 10**6] == lines["lanes", 1000]  # to the bit: both are one batch of all samples
    for mine, expected in zip(lines["lanes", 10**6], lines["reference", 10**6], strict=True):
        assert mine == pytest.approx(expected, rel=1e-9)


def test_a_full_batch_needs_no_memory_of_its_own(tmp_path: Path) -> None:
    """10^6 rows for every lane and step took 8.8 GB."""
    words = ["run", "digits", "--engine", "lanes", "--device", "cpu", "--out", str(tmp_path / "run")]
    for key, value in (small_runs.SETTINGS | FULL).items():
        words += ["--set", f"{key}={value}"]
    process = Forked("limited:main", ["cpfl", str(2**30), "600", *words], small_runs.environment())
    _, error = process.communicate()
    assert process.returncode == 0, error[-3000:]
