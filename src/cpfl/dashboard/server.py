"""The dashboard over HTTP: two addresses to read, nothing to write, and only under this machine's names."""

import contextlib
import errno
import io
import ipaddress
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from cpfl.dashboard.dashboard import ADDRESS, Dashboard
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
TOO_MANY = b"Too many pages are open; close some and try again.\n"
FULL = b"\r\n".join(
    (
        b"HTTP/1.1 503 Service Unavailable",
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Length: %d" % len(TOO_MANY),
        b"Retry-After: 10",
        b"Connection: close",
        b"",
        TOO_MANY,
    )
)


class Server(socketserver.ThreadingTCPServer):
    """Serves the dashboard of one folder; closing it ends every answer in progress.

    It is no HTTPServer: that one looks up this machine's name, which may take long.
    """

    daemon_threads = allow_reuse_address = True
    request_queue_size = 512  # browsers that the kernel lets wait while others are answered
    connections = 256  # at a time, each with a thread; one more is told to come back later
    request_seconds = 30.0  # for one request to arrive, however it is cut up, and for its answer to be taken
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, folder: Path, host: str, port: int) -> None:
        if not folder.is_dir():
            raise RunFolderError(f"there is no folder {folder}")
        self.dashboard = Dashboard(folder)
        self._open, self._counting = 0, threading.Lock()
        self.names = {name.lower() for name in (*LOCAL, host)}
        if not is_local(host):
            self.names.add(socket.gethostname().lower())
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            first = min(found, key=lambda one: one[0] != socket.AF_INET)  # localhost is both: 127.0.0.1 first
            self.address_family = first[0]
            super().__init__((str(first[4][0]), int(first[4][1])), Handler)
        except OSError as error:
            raise SettingError(_reason(error, host, port)) from None

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Answer in a thread of its own, or refuse at once where there are too many."""
        with self._counting:
            full = self._open >= self.connections
            self._open += not full
        if not full:
            try:
                super().process_request(request, client_address)
            except Exception:  # no thread could be started: nothing else ends this connection
                with self._counting:
                    self._open -= 1
                raise
            return
        request.settimeout(0)  # nobody waits for one who is refused
        with contextlib.suppress(OSError):
            request.sendall(FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Answer all requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self._open -= 1

    def handle_error(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Ignore a browser that has left, and the end of the server; anything else is a bug and is shown."""
        # Ctrl-C while a connection is accepted closes it under the thread that answers.
        ends = -1 in (self.fileno(), request.fileno())
        if not (ends or isinstance(sys.exception(), ConnectionError | TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The URL for a browser."""
        name, port = map(str, self.server_address[:2])
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page and of its updates; everything else is refused."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "cpfl", ""

    def setup(self) -> None:
        """Read requests with a limit on the time of a whole one."""
        super().setup()
        self.rfile.close()
        self._arriving = _Arriving(self.connection, self.server)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self._arriving.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer with the page or its update."""
        path = self.path.partition("?")[0]
        if not self._known_host():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This dashboard answers to another name.")
        elif path == "/":
            text = self.server.dashboard.page()
            self._answer(HTTPStatus.OK, text, "text/html; charset=utf-8", {"Cache-Control": "no-store"})
        elif path == ADDRESS:
            text, tag = self.server.dashboard.fresh()
            known = self.headers.get("If-None-Match") == tag
            status = HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK
            caching = {"ETag": tag, "Cache-Control": "no-cache"}
            self._answer(status, b"" if known else text, "application/json", caching)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here; the page is at /.")

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Refuse any other method; the base class looks it up by name."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._not_allowed

    def _not_allowed(self) -> None:
        self.close_connection = True  # what it sends is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "The dashboard can only be read.", {"Allow": "GET, HEAD"})

    def _refuse(self, status: HTTPStatus, sentence: str, more: dict[str, str] | None = None) -> None:
        self._answer(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8", more or {})

    def _answer(self, status: HTTPStatus, text: bytes, kind: str, more: dict[str, str]) -> None:
        self.connection.settimeout(self.server.request_seconds)  # Python's sendall takes no longer in all
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
        """Log nothing: a line for every request would fill the terminal."""


class _Arriving(io.RawIOBase):
    """What a client sends; a request that is not complete in time is a TimeoutError, whether or not bytes come."""

    def __init__(self, line: socket.socket, server: Server) -> None:
        self._line, self._server = line, server
        self._end = 0.0

    def begin(self) -> None:
        """Start the time of a new request."""
        self._end = self._server.clock() + self._server.request_seconds

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Wait for bytes as long as the request has time left."""
        left = self._end - self._server.clock()
        if left <= 0:
            raise TimeoutError
        self._line.settimeout(left)
        return self._line.recv_into(buffer)


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _reason(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"host {host} is not known: a name or address of this machine is needed, such as 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another port, or 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host {host} is not an address of this machine"
    return f"cannot open port {port} of {host}: {error.strerror}"
