"""A small client of etcd 3.4 or newer, over its JSON gateway and the standard library.

Leases, puts, ranges, one kind of transaction and a watch: what membership needs. Own instead of a package: the gRPC
clients for Python are unmaintained or break each other when two are loaded into one process.

Note: for one thread at a time; a watch has its own connection and thread.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stoker.core.errors import MembershipError

MAX_ANSWER_BYTES = 16 << 20
DEFAULT_PORT = 2379


class KeyValue(NamedTuple):
    """A key with its value and the revision of its last change."""

    key: str
    value: bytes
    revision: int


class Etcd:
    """Asks the members of an etcd cluster, one after another until one answers.

    Args:
        endpoints: ``host:port`` of each.
        timeout_s: for connecting, and for each wait for an answer.
    """

    def __init__(self, endpoints: Sequence[str], timeout_s: float = 1.0) -> None:
        self._endpoints = [_split(endpoint) for endpoint in endpoints]
        self._timeout_s = timeout_s
        self._current = 0
        self._connection: http.client.HTTPConnection | None = None

    def grant(self, ttl_s: int) -> int:
        """A new lease that ends ``ttl_s`` seconds after it was last kept alive; its id."""
        return int(self._call("/v3/lease/grant", {"TTL": ttl_s})["ID"])

    def keep_alive(self, lease: int) -> bool:
        """Renews a lease; False when it has ended."""
        result = self._call("/v3/lease/keepalive", {"ID": lease}).get("result", {})
        return int(result.get("TTL", 0)) > 0

    def revoke(self, lease: int) -> None:
        """Ends a lease and removes its keys."""
        self._call("/v3/lease/revoke", {"ID": lease})

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        """Sets a key, for as long as the lease lives (0: for ever)."""
        self._call("/v3/kv/put", {"key": _b64(key), "value": _b64(value), "lease": lease})

    def get(self, key: str) -> KeyValue | None:
        """One key."""
        items = self._items({"key": _b64(key)})
        return items[0] if items else None

    def range(self, prefix: str) -> list[KeyValue]:
        """All keys with a prefix."""
        return self._items({"key": _b64(prefix), "range_end": _b64(_after(prefix))})

    def delete(self, key: str) -> None:
        """Removes a key."""
        self._call("/v3/kv/deleterange", {"key": _b64(key)})

    def swap(self, key: str, revision: int, value: bytes) -> bool:
        """Sets a key if its last change is still that of ``revision`` (0: it does not exist); whether it did."""
        compare = {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        put = {"request_put": {"key": _b64(key), "value": _b64(value)}}
        return bool(self._call("/v3/kv/txn", {"compare": [compare], "success": [put]}).get("succeeded", False))

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _items(self, question: dict[str, Any]) -> list[KeyValue]:
        answer = self._call("/v3/kv/range", question)
        return [
            KeyValue(
                base64.b64decode(item["key"]).decode("utf-8", "replace"),
                base64.b64decode(item.get("value", "")),
                int(item["mod_revision"]),
            )
            for item in answer.get("kvs", [])
        ]

    def _call(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first endpoint that gives one; raises :class:`MembershipError`."""
        failures: list[str] = []
        # Once more than there are endpoints: a connection kept from before may have been closed by the other side.
        for _ in range(len(self._endpoints) + 1):
            try:
                return self._ask(path, question)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                failures.append(f"{self._name}: {type(error).__name__} {error}")
                kept = self._connection is not None and len(failures) == 1
                self.close()
                if not kept:
                    self._current = (self._current + 1) % len(self._endpoints)
        raise MembershipError(f"`etcd` must answer {path}, got {'; '.join(failures)}", failures=failures)

    def _ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        if self._connection is None:
            host, port = self._endpoints[self._current]
            self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        self._connection.request("POST", path, json.dumps(question), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES)
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}: {data[:200].decode('utf-8', 'replace')}")
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        return answer  # pyright: ignore[reportUnknownVariableType]  # JSON

    @property
    def _name(self) -> str:
        host, port = self._endpoints[self._current]
        return f"{host}:{port}"


class KeyWatch:
    """Tells of changes under a prefix, from a thread of the caller's.

    Args:
        endpoint: ``host:port``.
        prefix: of the keys.
        timeout_s: for connecting; silence is no failure once the watch stands.
    """

    def __init__(self, endpoint: str, prefix: str, timeout_s: float = 1.0) -> None:
        host, port = _split(endpoint)
        self._prefix = prefix
        self._closed = False
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def run(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` once the watch stands and after every change, until the stream ends or is closed.

        Raises:
            OSError: the connection broke.
            http.client.HTTPException: the answer is none of etcd's.
        """
        try:
            self._run(changed)
        finally:
            self._connection.close()

    def _run(self, changed: Callable[[], None]) -> None:
        create = {"create_request": {"key": _b64(self._prefix), "range_end": _b64(_after(self._prefix))}}
        self._connection.request("POST", "/v3/watch", json.dumps(create), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}")
        sock = self._connection.sock
        if sock is not None:
            sock.settimeout(None)
            # Without traffic a dead peer is noticed by keep-alives only.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        with response:
            while not self._closed and response.readline(MAX_ANSWER_BYTES):
                changed()

    def close(self) -> None:
        """Stops :meth:`run`, whose thread then closes the connection."""
        self._closed = True
        sock = self._connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself


def _split(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon:
        return endpoint, DEFAULT_PORT
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"`{endpoint}` must be host:port with a port of 1 to 65535, got {port!r}")
    return host.strip("[]"), int(port)


def _b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode("ascii")


def _after(prefix: str) -> bytes:
    """The first key after all keys with a prefix; prefixes end in ASCII."""
    data = prefix.encode()
    return data[:-1] + bytes((data[-1] + 1,))
