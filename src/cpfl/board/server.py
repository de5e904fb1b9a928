"""The board over HTTP: two addresses to read, nothing to write, and only for those who asked this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
import socketserver
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cpfl.board.board import ADDRESS, Board
from cpfl.errors import RunFolderError, SettingError

HEADERS = {
    # The page's own policy says which scripts may run; this one adds what only a header can say.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LOCAL = ("localhost", "127.0.0.1", "::1")


class Server(ThreadingHTTPServer):
    """Answers for one board; closing it ends every answer that is under way."""

    daemon_threads = True

    def __init__(self, board: Board, host: str, port: int) -> None:
        self.board = board
        self.names = {name.lower() for name in (*LOCAL, host)}
        if not _loopback(host):
            self.names.add(socket.gethostname().lower())
        try:
            self.address_family, place = _place(host, port)
            super().__init__(place, Handler)
        except OSError as error:
            raise SettingError(_why(error, host, port)) from None

    def server_bind(self) -> None:
        """As a plain TCP server: the usual one asks a name server for this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has left is no news; anything else is a bug and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = self.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page and of what is fresh; everything else is refused."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds for a client that says nothing
    server_version, sys_version = "cpfl", ""

    def do_GET(self) -> None:
        """One of the two addresses."""
        path = self.path.partition("?")[0]
        if not self._known_host():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This board answers to another name.")
        elif path == "/":
            self._answer(
                HTTPStatus.OK, self.server.board.page(), "text/html; charset=utf-8", {"Cache-Control": "no-store"}
            )
        elif path == ADDRESS:
            text, tag = self.server.board.fresh()
            kept = {"ETag": tag, "Cache-Control": "no-cache"}
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, b"", "", kept)
            else:
                self._answer(HTTPStatus.OK, text, "application/json", kept)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here; the page is at /.")

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Any other method is not allowed; the base class looks it up by name."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._not_allowed

    def _not_allowed(self) -> None:
        self.close_connection = True  # what it sends is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "The board can only be read.", {"Allow": "GET, HEAD"})

    def _refuse(self, status: HTTPStatus, sentence: str, more: dict[str, str] | None = None) -> None:
        self._answer(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8", more or {})

    def _answer(self, status: HTTPStatus, text: bytes, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (HEADERS | more).items():
            self.send_header(key, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _known_host(self) -> bool:
        """Whether the browser meant us: a foreign page may have given this machine's address a name of its own."""
        given = self.headers.get_all("Host", [])
        if len(given) != 1:
            return False
        name = given[0].strip().lower()
        name = name[1 : name.find("]")] if name.startswith("[") else name.rpartition(":")[0] or name
        return name in self.server.names or name == self.connection.getsockname()[0]

    def log_message(self, *_: object) -> None:
        """Silence: a line for every look would fill the terminal."""


def serve(folder: Path, host: str, port: int, ready: Callable[[Server], None]) -> None:
    """Answer until Ctrl-C; `ready` is told when it begins."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}")
    with Server(Board(folder), host, port) as server:
        try:
            server.board.page()  # Vega's script takes seconds to make: not while somebody waits for it
            ready(server)
            server.serve_forever(poll_interval=0.5)
        except KeyboardInterrupt:
            pass


def local(host: str) -> bool:
    """Whether only this machine can ask."""
    return _loopback(host)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _place(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)  # localhost is both: 127.0.0.1 first
    return family, (str(place[0]), int(place[1]))


def _why(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"--host {host} is not known: a name or address of this machine, such as 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another with --port, or 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"cannot open port {port} of {host}: {error.strerror}"
