"""cpfl bench: how fast this machine is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command


def test_the_loop_the_engines_and_their_ratio(cpfl_command: Command) -> None:
    said = cpfl_command("bench", "--cohorts", "1", "--rounds", "1", "--device", "cpu").good().out
    rows = re.findall(r"(plain loop|workers|lanes)\W+(float32|bf16)\W+([\d,]+)\W+([\d.]+)×\W+[\d.]+ s", said)
    assert [row[:2] for row in rows] == [
        ("plain loop", "float32"),
        ("workers", "float32"),
        ("workers", "bf16"),
        ("lanes", "float32"),
    ]
    rates = [float(row[2].replace(",", "")) for row in rows]
    for rate, row in zip(rates, rows, strict=True):
        assert float(row[3]) == pytest.approx(rate / rates[0], abs=0.06)


def test_only_presets_of_the_paper(cpfl_command: Command) -> None:
    answer = cpfl_command("bench", "--preset", "digits")
    assert answer.code == 2
    assert "preset = 'digits' is not allowed: cifar10 or femnist" in answer.err
