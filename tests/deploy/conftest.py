"""A real fleet on this machine, which all tests share: a SuperLink and nodes. Every test has its own app and run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import cpfl

pytest.importorskip("flwr", reason="a real federation needs Flower: pip install 'cpfl[flower]'")

from cpfl.deploy.local_fleet import LocalFleet, descendants, listens
from cpfl.settings import experiment_file

APP = Path(__file__).parent / "app"
PRELOAD = ["cpfl.data.embedded", "flwr.serverapp.strategy", "no_such_module"]  # an unknown module does no harm


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the shared fleet come last in this folder: its nodes poll, and would slow the others down."""
    places = [place for place, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    own = sorted((items[place] for place in places), key=lambda item: "fleet" in getattr(item, "fixturenames", ()))
    for place, item in zip(places, own, strict=True):
        items[place] = item


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
                self.calls.append(link.recv(200))

    def close(self) -> None:
        self._door.close()


class Fleet(LocalFleet):
    """A fleet with the test app, whose connections to other machines end in a trap.

    The SuperLink has a database, so that it knows its nodes after a restart.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, preload=PRELOAD)
        self.superlink_options = ["--database", self.folder / "superlink.db"]
        self.trap = Trap()
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            self.environment |= {name: self.trap.address, name.lower(): self.trap.address}
        self.environment |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

    def app(
        self,
        folder: Path,
        experiment: cpfl.Experiment,
        strategies: Sequence[str] = (),
        faults: Mapping[int, Sequence[str]] | None = None,
        gates: Mapping[int, int] | None = None,
    ) -> Path:
        """The digits app with these settings, in a new folder.

        strategies: of cohorts. faults: of clients, by round. gates: the round from which a client waits while `gate`
        exists.
        The clock skips a day when a file `skip` is made, and when all clients that are waited for are in `asleep`.
        """
        shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "experiment.toml").write_text(experiment_file.to_toml(experiment))
        tables = {"faults": faults or {}, "gates": gates or {}}
        lines = [f'held = "{folder}-held"', f"strategies = {list(strategies)}"]
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{client} = {value!r}" for client, value in table.items())]
        (folder / "scenario.toml").write_text("\n".join(lines))
        (self.held(folder) / "asleep").mkdir(parents=True)
        return folder

    @staticmethod
    def held(app: Path) -> Path:
        """The folder with which a test holds nodes and the clock of its app."""
        return app.with_name(f"{app.name}-held")

    def nodes(self, clients: Iterable[int]) -> None:
        """Nodes for these clients are running."""
        for client in clients:
            if f"node-{client}" not in self.processes:
                self.register(f"node-{client}")
                self.start_node(f"node-{client}", {"client": client, "min_clients": 2})

    def kill(self, name: str) -> None:
        """Kill one process and all its descendants."""
        process = self.processes.pop(name)
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        while name == "superlink" and listens(self.port):  # its fork ends a moment after it
            time.sleep(0.05)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that happens while the run lasts."""
        while not true():
            assert self.processes["run"].poll() is None, f"the run ended\n{self.tail('run', 3000)}"
            time.sleep(0.1)

    def finish(self) -> None:
        """The run completes."""
        ended = self.wait()
        assert ended == "finished:completed", f"{ended}\n{self.tail('run', 3000)}\n{self.tail('superlink', 3000)}"


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink, for which tests start the nodes that they need; nobody may call another machine."""
    local = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        local.start_superlink()
        yield local
    finally:
        local.stop()
        local.trap.close()
    assert local.trap.calls == [], "somebody called home"
