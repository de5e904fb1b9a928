"""The space: what is searched by default, what a user changes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpfl.errors import SettingError
from cpfl.settings import Experiment
from cpfl.tuning.space import Dimension, changed_space, dimension, read_space, settings_of

BASE = Experiment(clients=20)


def test_values_and_ranges() -> None:
    assert dimension("cohorts", "1,2,4") == Dimension("cohorts", (1, 2, 4))
    assert dimension("federation.lr", "0.01..0.1:log") == Dimension("federation.lr", (), 0.01, 0.1, True)
    assert dimension("federation.local_epochs", {"low": 1, "high": 4}).whole
    when = "federation.server = fedavgm"
    given = {"values": [0.3, 1.0], "when": when}
    assert dimension("federation.server_args.lr", given) == Dimension(
        "federation.server_args.lr", (0.3, 1.0), when=when
    )


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("federation.participation", "0.5..1.5", r"= 0.5 to 1.5 is outside of what federation.participation takes: ab"),
        ("federation.local_epochs", [1, 0], r"= 1, 0 is outside of what federation.local_epochs takes: 1 or more"),
        ("federation.straggler_policy", "drop,wait", "is outside of what federation.straggler_policy takes: drop, pa"),
        ("federation.server", "fedsgd", "is outside of what federation.server takes: mean"),
        ("federation.lr", {"low": 0.1, "high": 0.01}, "low = 0.1, high = 0.01: numbers, low below high"),
        ("federation.local_epochs", {"low": 1.5, "high": 4}, "federation.local_epochs"),
        ("federation.learning", [1], "there is no setting federation.learning"),
        ("cohorts", [], "search.cohorts needs a list of values or a range"),
        ("cohorts", {"values": [1], "low": 1}, "search.cohorts takes values, or low and high"),
    ],
)
def test_what_is_refused(key: str, given: object, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        dimension(key, given)


def test_one_cohort_is_always_searched() -> None:
    (found,) = changed_space(BASE, [], {"cohorts": [4, 8]}, [])
    assert found.values == (1, 4, 8)
    (found,) = changed_space(BASE, [], {"cohorts": {"low": 4, "high": 6}}, [])
    assert found.values == (1, 4, 5, 6)
    with pytest.raises(SettingError, match="cohorts = 99 is more than clients = 20"):
        changed_space(BASE, [], {"cohorts": [4, 99]}, [])


def test_other_values_have_an_effect_where_the_default_ones_have() -> None:
    space = [Dimension("assignment.rule", ("random",), when="cohorts != 1")]
    (found,) = changed_space(BASE, space, {"assignment.rule": ["speed"]}, [])
    assert found == Dimension("assignment.rule", ("speed",), when="cohorts != 1")


def test_what_is_fixed_is_not_searched() -> None:
    space = [Dimension("cohorts", (1, 2)), Dimension("federation.participation", (0.5, 1.0))]
    assert [one.key for one in changed_space(BASE, space, {}, ["federation.participation"])] == ["cohorts"]
    with pytest.raises(SettingError, match="cohorts is given twice"):
        changed_space(BASE, space, {"cohorts": [1, 2]}, ["cohorts"])


def test_only_what_has_an_effect_is_set() -> None:
    space = [
        Dimension("cohorts", (1, 2)),
        Dimension("assignment.rule", ("random", "speed"), when="cohorts != 1"),
        Dimension("meetings.rule", ("none", "mean")),
        Dimension("meetings.interval", ("1h",)),
        Dimension("federation.deadline", (0, 5.0)),
        Dimension("federation.straggler_policy", ("drop", "partial")),
        Dimension("federation.server", ("mean", "fedavgm")),
        Dimension("federation.server_args.lr", (0.3,), when="federation.server = fedavgm"),
    ]
    first = settings_of(space, BASE, lambda one: one.values[0])
    plain = {"cohorts": 1, "federation.deadline": 0, "federation.server": "mean"}
    assert first == plain
    last = settings_of(space, BASE, lambda one: one.values[-1])
    assert last == {one.key: one.values[-1] for one in space} | {"meetings.final": "merge"}


def test_a_space_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        """
        [search]
        cohorts = [1, 2]
        [search.federation]
        lr = {low = 0.01, high = 0.1, log = true}
        [fixed.federation]
        participation = 0.5
        """
    )
    search, fixed = read_space(path)
    assert search == {"cohorts": [1, 2], "federation.lr": {"low": 0.01, "high": 0.1, "log": True}}
    assert fixed == {"federation.participation": 0.5}
    path.write_text("[searched]\n")
    with pytest.raises(SettingError, match="has 'searched': a space has the tables"):
        read_space(path)
    path.write_text("search = 3\n")
    with pytest.raises(SettingError, match="are tables"):
        read_space(path)
    with pytest.raises(SettingError, match="cannot read the space"):
        read_space(tmp_path / "none.toml")
