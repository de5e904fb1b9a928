"""The command that measures a machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from cpfl import bench as measuring
from cpfl.cli.options import AsJson, Device, console, notes, show_json
from cpfl.opening import torch_device


def add_to(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command()(bench)


def bench(
    preset: Annotated[str, typer.Option(help="Whose model and clients: cifar10 or femnist.")] = "cifar10",
    cohorts: Annotated[int, typer.Option(min=1, help="n.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every cohort to measure over.")] = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how many samples a second this machine trains: the plain loop, the fast engines, and their ratio.

    Example: cpfl bench
    """
    place = torch_device(device)
    rates: list[measuring.Rate] = []
    with notes.status("the plain loop …") as status:
        for rate in measuring.bench(preset, cohorts, rounds, place):
            rates.append(rate)
            status.update(f"{rate.engine}, {rate.precision}: {rate.samples_per_second:,.0f} samples/s …")
    if as_json:
        show_json([asdict(rate) for rate in rates])
        return
    table = Table(title=f"{preset}, n = {cohorts}, on {place}", title_justify="left")
    for name in ("engine", "arithmetic"):
        table.add_column(name)
    for name in ("samples/s", "against the loop", "first round after"):
        table.add_column(name, justify="right")
    for rate in rates:
        table.add_row(
            "plain loop" if rate.engine == "reference" else rate.engine,
            rate.precision,
            f"{rate.samples_per_second:,.0f}",
            f"{rate.samples_per_second / rates[0].samples_per_second:.1f}×",
            f"{rate.seconds_to_first_round:.1f} s",
        )
    console.print(table)
