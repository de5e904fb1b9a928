"""How fast every client is: device traces, a synthetic fleet, fixed speeds."""

import csv
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.devices.availability import Availability, find_trace
from cpfl.errors import DataError
from cpfl.randomness import stream
from cpfl.settings import Devices

Speeds = NDArray[np.float64]
FEDSCALE_FILES = ("client_device_capacity*.csv", "client_device_capacity*.pkl", "client_device_capacity")

# Quantiles of FedScale's first 10,000 devices, so that the synthetic fleet has the real one's shape:
# two humps of compute speed (phones with and without an accelerator), log-spread networks, uncorrelated.
QUANTILE = (0, 5, 10, 20, 25, 30, 40, 45, 50, 55, 60, 62, 64, 66, 70, 75, 80, 85, 90, 95, 99, 100)
COMPUTE_MS = (15, 19, 21, 23, 24, 25, 28, 31, 41, 50, 72, 75, 117, 136, 140, 148, 154, 159, 175, 190, 193, 199)
NETWORK_KBPS = (
    1017, 1444, 1820, 2325, 2904, 3644, 4842, 5290, 6207, 7388, 8648, 9019,
    9564, 10313, 12113, 14507, 19872, 27686, 32546, 54111, 100207, 204057,
)  # fmt: skip


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
        return Fleet(
            np.interp(compute, QUANTILE, COMPUTE_MS),
            np.exp(np.interp(network, QUANTILE, np.log(NETWORK_KBPS))),
        )
    allowed = "a csv or pickle file, fedscale, synthetic or fixed"
    compute_ms, network_kbps = read_trace(find_trace("devices.trace", devices.trace, roots, FEDSCALE_FILES, allowed))
    rows = rng.choice(len(compute_ms), clients, replace=clients > len(compute_ms))
    return Fleet(compute_ms[rows], network_kbps[rows])


def read_trace(path: Path) -> tuple[Speeds, Speeds]:
    """Milliseconds per sample and kbit/s of every device in a csv or in FedScale's own pickle."""
    with path.open("rb") as file:
        pickled = file.read(1) == b"\x80"  # how every binary pickle begins; FedScale's own file has no suffix
    rows = _read_pickle(path) if pickled or path.suffix in {".pkl", ".pickle"} else _read_csv(path)
    if not rows:
        raise DataError(f"the device trace {path} has no devices")
    for device, *speeds in rows:
        for key, value in zip(("computation", "communication"), speeds, strict=True):
            if not (value > 0 and math.isfinite(value)):
                raise DataError(f"device {device} of the trace {path} has {key} = {value}: it must be above 0")
    _, compute_ms, network_kbps = zip(*rows, strict=True)
    return np.array(compute_ms), np.array(network_kbps)


def _read_csv(path: Path) -> list[tuple[str, float, float]]:
    try:
        with path.open(newline="") as file:
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
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"the device trace {path} is not a csv of numbers: {error}") from None


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
        raise DataError(f"the device trace {path} is not FedScale's pickle: {error}") from None
