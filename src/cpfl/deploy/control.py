"""Asking a SuperLink's control side without starting the flwr program each time."""

from __future__ import annotations

from pathlib import Path

from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor


def register(address: str, ca: Path | None, public_key: Path) -> int:
    """What `flwr supernode register` does; the node's number."""
    with _client(address, ca) as client:
        return int(client.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(public_key))).node_id)


def status(address: str, ca: Path | None, run: int) -> str:
    """What `flwr ls` says of a run: running, finished:completed …"""
    with _client(address, ca) as client:
        found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return ":".join(word for word in (found.status, found.sub_status) if word)


def traffic(address: str, ca: Path | None, run: int) -> tuple[int, int]:
    """Bytes that a run sent to its nodes and received from them, as the SuperLink counts them."""
    with _client(address, ca) as client:
        found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
        return int(found.bytes_sent), int(found.bytes_recv)


def _client(address: str, ca: Path | None) -> ControlHttpClient:
    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
