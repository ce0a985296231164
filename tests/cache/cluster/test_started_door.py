"""`stoker cache start --http`: the door as people open it, in a process beside the worker."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path

import pytest

from tests.cache.cluster.started import Started

pytestmark = pytest.mark.integration


def ask(address: str, path: str, token: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def opened(started: Started, node: str, join: str, *options: str) -> tuple[str, str]:
    """A worker with a door: its address, and the token."""
    started.start(node, join, "--http", "127.0.0.1:0", *options)
    said = "\n".join(started.wait(node))
    found = re.search(r"HTTP at http://([\d.:]+): .* token of (\S+)", said)
    assert found is not None, said
    return found[1], Path(found[2]).read_text().strip()


def test_objects_health_and_metrics(started: Started) -> None:
    (node,), join = started.nodes(1)
    path = started.folder / "object"
    path.write_bytes(b"cached " * 300_000)
    address, token = opened(started, node, join)
    assert ask(address, "/healthz") == (200, b"ok\n")
    assert ask(address, f"/files{path}")[0] == 401
    assert ask(address, f"/files{path}", token) == (200, path.read_bytes())
    assert b"stoker_cache_members 1.0\n" in ask(address, "/metrics", token)[1]
    assert "handed over" not in started.end(node)
    with pytest.raises(ConnectionRefusedError):
        ask(address, "/healthz")


def test_the_door_goes_with_its_worker_however_that_ends(started: Started) -> None:
    (node,), join = started.nodes(1)
    address, _ = opened(started, node, join)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as waiting:
        waiting.settimeout(20)
        started.kill(node)
        assert waiting.recv(1) == b""  # closed as the door's process ends


def test_a_second_start_keeps_the_token(started: Started) -> None:
    (node,), join = started.nodes(1)
    _, token = opened(started, node, join)
    started.end(node)
    assert opened(started, node, join)[1] == token


@pytest.mark.parametrize("address", ["8080", "localhost", "localhost:http", "localhost:99999"])
def test_an_address_that_is_none(started: Started, address: str) -> None:
    found = started.command("start", "--mount", "files=file://", "--http", address, "--dir", str(started.folder / "p"))
    assert found.returncode == 2
    assert f"`--http` must be HOST:PORT such as 127.0.0.1:8080, got '{address}'" in found.stderr


def test_an_address_that_is_taken(started: Started) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        folder = str(started.folder / "p")
        found = started.command("start", "--mount", "files=file://", "--http", address, "--dir", folder)
    assert found.returncode == 2
    assert f"`--http` must be an address that is free, got {address}: Address already in use" in found.stderr
    assert "Traceback" not in found.stderr
