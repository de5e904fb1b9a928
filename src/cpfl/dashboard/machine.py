"""How busy this machine is: processor, memory, and GPUs where there are any."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

GPU_SECONDS = 10.0  # between two questions to nvidia-smi, which takes a moment to answer
TIMEOUT = 5.0  # seconds; a GPU that hangs does not hold up the page
QUERY = ("--query-gpu=index,memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")
GIGA = 1e9
MEMORY = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


class Machine:
    """What the page says of the machine."""

    def __init__(self) -> None:
        self._gpus: dict[str, str] = {}
        self._asked = -GPU_SECONDS

    def facts(self) -> dict[str, str]:
        """Load, memory and GPUs in words; what this machine does not tell is left out."""
        if time.monotonic() - self._asked >= GPU_SECONDS:
            self._asked, self._gpus = time.monotonic(), gpus()
        return {"load of this machine": load(), "memory of this machine": memory(), **self._gpus}


def load() -> str:
    """Processes that wait for a core or use one, on average over the last minute."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def memory() -> str:
    """Used memory; Linux tells it."""
    try:
        found = {key: int(kilobytes) * 1024 for key, kilobytes in MEMORY.findall(Path("/proc/meminfo").read_text())}
        used = found["MemTotal"] - found["MemAvailable"]
    except (OSError, KeyError):
        return "–"
    return f"{used / GIGA:.1f} of {found['MemTotal'] / GIGA:.1f} GB"


def gpus() -> dict[str, str]:
    """Used memory and utilization of every NVIDIA GPU, from nvidia-smi; empty: there is none."""
    if shutil.which("nvidia-smi") is None:
        return {}
    try:
        done = subprocess.run(["nvidia-smi", *QUERY], capture_output=True, text=True, timeout=TIMEOUT, check=True)
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        return {f"GPU {index}": _gpu(used, whole, busy) for index, used, whole, busy in rows}
    except (OSError, subprocess.SubprocessError, ValueError):  # no driver, or an answer of another form
        return {}


def _gpu(used: str, whole: str, busy: str) -> str:
    """nvidia-smi counts in MiB, and says [N/A] of what a GPU does not know."""
    gigabytes = [int(text) * 2**20 / GIGA for text in (used, whole)]
    text = f"{gigabytes[0]:.1f} of {gigabytes[1]:.1f} GB"
    return f"{text}, {busy} % busy" if busy.isdecimal() else text
