"""How fast every client is: device traces, a synthetic fleet, fixed speeds."""

import csv
import pickle
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.devices.availability import Availability, find_trace
from cpfl.errors import DataError, first_line
from cpfl.randomness import stream
from cpfl.settings import Devices
from cpfl.settings.types import MOST
from cpfl.user_files import check_readable

Speeds = NDArray[np.float64]
LEAST = {"computation": 1e-6, "communication": 1e-3}  # as devices.compute_ms and devices.network_kbps
FEDSCALE_FILES = ("client_device_capacity*.csv", "client_device_capacity*.pkl", "client_device_capacity")


@dataclass(frozen=True)
class Fleet:
    """Speeds of the experiment's clients, in order."""

    compute_ms: Speeds  # milliseconds per sample, inference
    network_kbps: Speeds  # kbit/s
    availability: Availability | None = None  # None: always

    def training_seconds(self, client: int, steps: int, batch_size: int) -> float:
        """Forward and backward cost three times the inference that the trace measured."""
        return 3 * steps * batch_size * float(self.compute_ms[client]) / 1000

    def transfer_seconds(self, client: int, size: int) -> float:
        """One model one way."""
        return size / (float(self.network_kbps[client]) * 1024 / 8)


def fleet(devices: Devices, clients: int, seed: int, roots: Sequence[Path]) -> Fleet:
    """The clients' devices, drawn with the run's seed."""
    if devices.trace == "fixed":
        return Fleet(np.full(clients, devices.compute_ms), np.full(clients, devices.network_kbps))
    rng = stream(seed, "devices")
    if devices.trace == "synthetic":
        compute, network = rng.random((2, clients)) * 100
        known = tomllib.loads(resources.files("cpfl.devices").joinpath("synthetic.toml").read_text(encoding="utf-8"))
        network_kbps = np.exp(np.interp(network, known["percent"], np.log(known["network_kbps"])))
        return Fleet(np.interp(compute, known["percent"], known["compute_ms"]), network_kbps)
    allowed = "a csv or pickle file, fedscale, synthetic or fixed"
    compute_ms, network_kbps = read_trace(find_trace("devices.trace", devices.trace, roots, FEDSCALE_FILES, allowed))
    rows = rng.choice(len(compute_ms), clients, replace=clients > len(compute_ms))
    return Fleet(compute_ms[rows], network_kbps[rows])


def read_trace(path: Path) -> tuple[Speeds, Speeds]:
    """Milliseconds per sample and kbit/s of every device in a csv or in FedScale's own pickle."""
    try:
        check_readable(path)
        with path.open("rb") as file:
            pickled = file.read(1) == b"\x80"  # how every binary pickle begins; FedScale's own file has no suffix
    except OSError as error:
        raise DataError(f"the device trace {path} cannot be read: {error.strerror}") from None
    rows = _read_pickle(path) if pickled or path.suffix in {".pkl", ".pickle"} else _read_csv(path)
    if not rows:
        raise DataError(f"the device trace {path} has no devices")
    for device, *speeds in rows:
        for (key, least), value in zip(LEAST.items(), speeds, strict=True):
            if not least <= value <= MOST:
                allowed = f"{least:g} to {MOST:,} is allowed"
                raise DataError(f"device {device} of the trace {path} has {key} = {value}: {allowed}")
    _, compute_ms, network_kbps = zip(*rows, strict=True)
    return np.array(compute_ms), np.array(network_kbps)


def _read_csv(path: Path) -> list[tuple[str, float, float]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            found = [next((n for n in names if n.startswith(key)), None) for key in ("computation", "communication")]
            if None in found:
                raise DataError(
                    f"the device trace {path} needs the columns computation_ms_per_sample and communication_kbps; "
                    f"it has {', '.join(names) or 'none'}"
                )
            return [
                (row.get("client_id") or str(line), *(float(row[name]) for name in found))  # type: ignore[misc]
                for line, row in enumerate(reader, 1)
            ]
    except (ValueError, TypeError, csv.Error) as error:
        raise DataError(f"the device trace {path} is not a csv of numbers: {first_line(error)}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Admits containers and numbers only: a pickle that names any class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it contains {module}.{name}; only plain containers and numbers are admitted")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def _read_pickle(path: Path) -> list[tuple[str, float, float]]:
    try:
        with path.open("rb") as file:
            tree = _PlainUnpickler(file).load()
        return [(str(device), float(row["computation"]), float(row["communication"])) for device, row in tree.items()]
    except Exception as error:  # a hostile or truncated pickle can raise anything
        raise DataError(f"the device trace {path} is not FedScale's pickle: {first_line(error)}") from None
