"""Real fleets on this machine: a SuperLink, nodes, an app; bounded in time and ended with the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cpfl

pytest.importorskip("flwr", reason="a real federation needs Flower: pip install 'cpfl[flower]'")

from cpfl.deploy.local_fleet import LocalFleet, descendants
from cpfl.settings import experiment_file

APP = Path(__file__).parent / "app"
PRELOAD = ["sklearn.datasets", "flwr.serverapp.strategy", "no_such_module"]  # an unknown module does no harm


@pytest.fixture(scope="session", autouse=True)
def loopback_network() -> None:
    """Some sandboxes have no loopback network."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        pytest.skip(f"no loopback network: {error}")


class Trap:
    """A proxy that records every connection to another machine."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            with link:
                link.settimeout(1.0)
                with contextlib.suppress(OSError):
                    self.calls.append(link.recv(200))

    def close(self) -> None:
        self._door.close()


class Fleet(LocalFleet):
    """A fleet with the test app, whose connections to other machines end in a trap."""

    def __init__(self, folder: Path, persistent: bool = False, **options: Any) -> None:
        """`persistent`: the SuperLink has a database, so that it knows its nodes after a restart."""
        super().__init__(folder, **options)
        self.superlink_options = ["--database", self.folder / "superlink.db"] if persistent else []
        self.trap = Trap()
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            self.environment |= {name: self.trap.address, name.lower(): self.trap.address}
        self.environment |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

    def app(self, experiment: cpfl.Experiment, strategies: str = "") -> Path:
        """The digits app with these settings; a strategy for each cohort if named."""
        folder = self.folder / "app"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "experiment.toml").write_text(experiment_file.to_toml(experiment))
        (folder / "strategies.md").write_text(strategies)
        return folder

    def nodes(self, count: int, **config: Any) -> None:
        """Start so many sound nodes, client 0 first."""
        for client in range(count):
            self.node(client, **config)

    def node(self, client: int, **config: Any) -> None:
        """Start a node for a client."""
        name = f"node-{client}"
        if not (self.folder / "keys" / name).exists():
            self.register(name)
        self.start_node(name, {"client": client, "min_clients": 2, **config})

    def kill(self, name: str) -> None:
        """Kill one process and all its descendants."""
        process = self.processes.pop(name)
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(5)

    def finish(self, seconds: float) -> None:
        """The run completes in time."""
        ended = self.wait(seconds)
        assert ended == "finished:completed", f"{ended}\n{self.tail('run', 3000)}\n{self.tail('superlink', 3000)}"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets; ends what they started, also when a test fails."""
    made: list[Fleet] = []

    def make(name: str = "fleet", **options: Any) -> Fleet:
        made.append(Fleet(tmp_path / name, preload=PRELOAD, **options))
        made[-1].start_superlink()
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.stop()
            one.trap.close()
