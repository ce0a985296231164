"""The HTTP endpoint for curl and Prometheus: objects by GET with Range, ``/metrics`` and ``/healthz``; HTTP or HTTPS.

It is not the fast path. It is an ordinary client of a worker, so that it can run in a separate process: rendering text
in the process that serves hits would delay them. Needs a token, checks the Host header against DNS rebinding, lists
nothing.
"""

from __future__ import annotations

import hmac
import http.server
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from stoker.cache.cluster.messages.frames import Object
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Strength, Version
from stoker.core.errors import ConfigError
from stoker.wire.tls import Certificate, worker_context

MIN_TOKEN_BYTES = 16
_TIMEOUT_S = 30.0
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_STOP_POLL_S = 0.05
_MAX_PATH = 4096


class Asks(Protocol):
    """What the HTTP endpoint needs of a client."""

    def stat(self, name: ObjectName) -> Object | None:
        """The object as its owner knows it."""
        ...

    def fetch(
        self, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]], into: list[memoryview]
    ) -> list[bool]:
        """Fills buffers with ranges; returns which succeeded."""
        ...


class DoorMount(NamedTuple):
    """A store that HTTP serves: its namespace, and the prefix of its objects' paths (``/`` for files)."""

    namespace: str
    root: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Settings of the HTTP endpoint.

    Attributes:
        host: address to listen on.
        port: 0 for a free one.
        token: that requests carry as ``Authorization: Bearer``; the caller reads it from a file.
        hosts: names that the Host header may have besides the address itself and localhost.
        mounts: by the names that stand for them in paths; nothing else can be reached.
        certificate: to encrypt with; None for plain HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(repr=False)
    hosts: tuple[str, ...] = ()
    mounts: Mapping[str, DoorMount] = field(default_factory=dict[str, DoorMount])
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        if len(self.token) < MIN_TOKEN_BYTES or not self.token.isascii():
            raise ConfigError(f"the HTTP token must be ASCII of at least {MIN_TOKEN_BYTES} characters")


class Door:
    """Listens and answers in threads.

    Args:
        settings: where and for whom.
        client: asks the cluster.
        status: of the worker, for ``/metrics`` and ``/healthz``; None when it does not answer.
    """

    def __init__(self, settings: DoorSettings, client: Asks, status: Callable[[], dict[str, Any] | None]) -> None:
        self.settings = settings
        self.client = client
        self.status = status
        tls = None if settings.certificate is None else worker_context(settings.certificate)
        self._server = _Server((settings.host, settings.port), self)
        if tls is not None:
            # The answering thread makes the handshake, with its own time-out.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="stoker-http", daemon=True
        )

    @property
    def address(self) -> str:
        """``host:port``, with the port that was given."""
        host, port = self._server.server_address[:2]
        return f"{host if isinstance(host, str) else host.decode()}:{port}"

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def is_known_host(self, header: str) -> bool:
        """Whether a Host header names this endpoint; a web page that rebinds its DNS name to it does not."""
        host = urlsplit(f"//{header}").hostname or ""
        return host in {"localhost", "127.0.0.1", "::1", self.settings.host, *self.settings.hosts}

    def is_token(self, header: str) -> bool:
        """Whether an Authorization header carries the token."""
        kind, _, token = header.partition(" ")
        given, wanted = token.strip().encode("utf-8", "surrogateescape"), self.settings.token.encode()
        return kind.lower() == "bearer" and hmac.compare_digest(given, wanted)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], door: Door) -> None:
        self.door = door
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnected; reports every other error in a line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            sys.stderr.write(f"stoker cache: the HTTP endpoint could not answer ({error!r}); please report it\n")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  # it is always ours
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    server_version = "stoker"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:  # the base class's name
        """No log: paths may be private."""

    def do_GET(self) -> None:
        """Answers with a body."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answers without one."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        door = self.server.door
        if not door.is_known_host(self.headers.get("Host", "")):
            why = "this Host is not served here; see --http-host of stoker cache start\n"
            return self._text(HTTPStatus.MISDIRECTED_REQUEST, why)
        path = unquote(urlsplit(self.path).path, errors="surrogateescape")
        if path == "/healthz":
            return self._health()
        if not door.is_token(self.headers.get("Authorization", "")):
            return self._text(HTTPStatus.UNAUTHORIZED, "a token is needed: curl -H 'Authorization: Bearer ...'\n")
        if path == "/metrics":
            status = door.status()
            if status is None:
                return self._text(HTTPStatus.SERVICE_UNAVAILABLE, "the worker does not answer\n")
            from stoker.cache.cluster.server.metrics import metrics_of  # of an extra, for those who ask

            text, kind = metrics_of(status)
            return self._text(HTTPStatus.OK, text.decode(), kind)
        name, _, key = path.lstrip("/").partition("/")
        mount = door.settings.mounts.get(name)
        if mount is None or not key or key.endswith("/") or len(path) > _MAX_PATH:
            return self._text(HTTPStatus.NOT_FOUND, "objects are at /MOUNT/PATH; folders are not listed\n")
        return self._object(ObjectName(mount.namespace, mount.root + key), with_body=with_body)

    def _health(self) -> None:
        status = self.server.door.status()
        if status is None:
            return self._text(HTTPStatus.SERVICE_UNAVAILABLE, "the worker does not answer\n")
        if status.get("draining"):
            return self._text(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
        return self._text(HTTPStatus.OK, "ok\n")

    def _object(self, name: ObjectName, *, with_body: bool) -> None:
        found = self.server.door.client.stat(name)
        if found is None:
            return self._text(HTTPStatus.NOT_FOUND, "no such object, or its worker is lost\n")
        version = found.version
        span = range_of(self.headers.get("Range"), version.size)
        if span is None:
            self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, [("Content-Range", f"bytes */{version.size}")])
            return None
        start, end = span
        headers = [("Accept-Ranges", "bytes"), ("Content-Type", "application/octet-stream")]
        if version.strength >= Strength.ETAG and version.token.isascii() and version.token.isprintable():
            headers.append(("ETag", '"' + version.token.strip('"').replace('"', "") + '"'))
        status = HTTPStatus.OK
        if (start, end) != (0, version.size) or self.headers.get("Range"):
            status = HTTPStatus.PARTIAL_CONTENT
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{version.size}"))
        return self._send(name, version, start, end, status, headers, with_body=with_body)

    def _send(
        self, name: ObjectName, version: Version, start: int, end: int, status: HTTPStatus,
        headers: list[tuple[str, str]], *, with_body: bool,
    ) -> None:  # fmt: skip
        """Sends page by page; once bytes have gone out, a failure can only be shown by ending early."""
        buffer = memoryview(bytearray(min(PAGE_BYTES, max(end - start, 1))))
        for position in range(start, end, PAGE_BYTES) if with_body else ():
            part = buffer[: min(PAGE_BYTES, end - position)]
            (came,) = self.server.door.client.fetch(name, version, [(position, position + len(part))], [part])
            if not came and position == start:
                return self._text(HTTPStatus.BAD_GATEWAY, "the object changed, or its worker and store do not answer\n")
            if not came:
                self.close_connection = True
                return None
            if position == start:
                self._head(status, end - start, headers)
            self.wfile.write(part)
        if not with_body or start == end:
            self._head(status, end - start, headers)
        return None

    def _text(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        headers = [("Content-Type", kind)]
        if status is HTTPStatus.UNAUTHORIZED:
            headers.append(("WWW-Authenticate", "Bearer"))
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, length: int, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for key, value in (*headers, ("Content-Length", str(length)), ("X-Content-Type-Options", "nosniff")):
            self.send_header(key, value)
        self.end_headers()


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """Start and end of a Range header; everything without a usable one; None for an unsatisfiable one.

    Args:
        header: as it came.
        size: of the object (bytes).
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return 0, size
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else None
    start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end) if start < end else None
