"""Commands about this machine: doctor, bench."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from cpfl.cli.options import AsJson, DataFolder, Device, notes, one_of, say, show_json, show_table

MARKS = {True: "ok ", False: "BAD", None: "-  "}  # None: an optional part that is not installed


def doctor(data: DataFolder = None, as_json: AsJson = False) -> None:
    """Check this machine: versions, devices, disk space, extras, data sets. Exit code 1 if something does not work.

    Example: cpfl doctor
    """
    from cpfl.diagnostics import examine

    checks = examine(data)
    if as_json:
        show_json([{"what": what, "fine": fine, "found": found} for what, fine, found in checks])
    else:
        for what, fine, found in checks:
            say(f"{MARKS[fine]}  {what:<16} {found}".rstrip())
    if any(fine is False for _, fine, _ in checks):
        raise typer.Exit(1)


def bench(
    preset: Annotated[
        str, typer.Option(**one_of("cifar10", "femnist"), help="Whose model and clients are used.")
    ] = "cifar10",
    cohorts: Annotated[int, typer.Option("--cohorts", "-n", min=1, help="Number of cohorts, n.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each cohort that are measured.")] = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how many samples a second this machine trains with each engine, compared with a plain loop.

    Example: cpfl bench
    """
    from cpfl.diagnostics import bench as measure
    from cpfl.engines.create import torch_device

    found_device = torch_device(device)
    rates = []
    with notes.status(Text("the plain loop …")) as status:
        for rate in measure(preset, cohorts, rounds, found_device):
            rates.append(rate)
            status.update(Text(f"{rate.engine}, {rate.precision}: {rate.samples_per_second:,.0f} samples/s …"))
    if as_json:
        show_json([asdict(rate) for rate in rates])
        return
    rows = []
    for rate in rates:
        name, throughput = "plain loop" if rate.engine == "reference" else rate.engine, rate.samples_per_second
        ratio, first = throughput / rates[0].samples_per_second, rate.seconds_to_first_round
        rows.append((name, rate.precision, f"{throughput:,.0f}", f"{ratio:.1f}×", f"{first:.1f} s"))
    numbers = ("samples/s", "against the loop", "first round after")
    show_table(rows, ("engine", "arithmetic"), numbers, f"{preset}, n = {cohorts}, on {found_device}")
