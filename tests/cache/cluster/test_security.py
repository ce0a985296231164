"""Secrets, proofs, grants, and what a worker does with strangers and garbage."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from stoker.cache.cluster.messages import frames
from stoker.cache.cluster.messages.frames import Blob, Hello, Kind, Read, Refused, Welcome
from stoker.cache.cluster.messages.handshake import Identity, greet, receive
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.grants import Grant, may_read, under
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule
from stoker.core.errors import ClusterError, PeerLostError, PeerRefusedError, WireError
from stoker.wire import secrets
from stoker.wire.secrets import Secrets, load_secrets
from tests.cache.cluster.nodes import Nodes, fetch

SECRET = b"0123456789abcdef"
Result = TypeVar("Result")


def secret_file(path: Path, text: str = "0123456789abcdef\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("path", "prefix", "expected"),
    [
        ("a/b", "", True),
        ("a/b", "a", True),
        ("a/b", "a/", True),
        ("ab", "a", False),
        ("a", "a", True),
        ("", "a", False),
    ],
)
def test_prefixes_are_whole_parts(path: str, prefix: str, expected: bool) -> None:
    assert under(path, prefix) is expected


def test_what_is_not_granted_is_denied() -> None:
    grants = [Grant("guest", "s3||", "bucket/open"), Grant("uid:7")]
    assert may_read(grants, "guest", "s3||", "bucket/open/a")
    assert not may_read(grants, "guest", "s3||", "bucket/open/../a")
    assert not may_read(grants, "guest", "gs||", "bucket/open/a")
    assert not may_read(grants, "default", "s3||", "bucket/open/a")
    assert may_read(grants, "uid:7", "gs||", "any")
    assert not may_read([], "guest", "s3||", "a")


def identity(secret: bytes | None, name: str = "default", **more: object) -> Identity:
    return Identity(name, None if secret is None else Secrets({name: secret}), **more)  # type: ignore[arg-type]


def greeted(client: Identity, worker: Identity) -> tuple[Welcome | Exception, Hello | Exception]:
    """What each side of a greeting over TCP ends with."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outcome: list[Hello | Exception] = []

        def serve() -> None:
            channel = NodeChannel(listener.accept()[0], 5.0)
            outcome.append(_outcome(lambda: receive(channel, worker, 3, False, 1)))
            channel.close()

        thread = threading.Thread(target=serve)
        thread.start()
        channel = NodeChannel(socket.create_connection(listener.getsockname()), 5.0)
        answer: Welcome | Exception = _outcome(lambda: greet(channel, client, 1))
        channel.close()
        thread.join()
    return answer, outcome[0]


def _outcome(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except (ClusterError, WireError) as error:
        return error


def test_both_sides_know_the_secret() -> None:
    answer, hello = greeted(identity(SECRET, node="w1"), identity(SECRET, node="w2"))
    assert isinstance(answer, Welcome)
    assert (answer.node, answer.clients) == ("w2", 3)
    assert isinstance(hello, Hello)
    assert (hello.identity, hello.node) == ("default", "w1")


def test_a_client_with_another_secret_or_name_is_refused() -> None:
    for client in (identity(b"x" * 16), identity(SECRET, "guest")):
        answer, hello = greeted(client, identity(SECRET))
        assert isinstance(answer, PeerRefusedError)
        assert isinstance(hello, PeerRefusedError)


def test_a_client_without_a_secret_says_nothing_over_tcp() -> None:
    answer, hello = greeted(identity(None), identity(SECRET))
    assert isinstance(answer, PeerRefusedError)
    assert isinstance(hello, PeerLostError)


def test_an_impostor_that_lets_everyone_in_is_refused_by_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impersonate() -> None:
            channel = NodeChannel(listener.accept()[0], 5.0)
            channel.message(4096)
            channel.send(frames.Challenge(bytes(32), False))
            channel.message(4096)
            channel.send(Welcome(bytes(32), "w", 1))
            channel.close()

        thread = threading.Thread(target=impersonate)
        thread.start()
        channel = NodeChannel(socket.create_connection(listener.getsockname()), 5.0)
        with pytest.raises(PeerRefusedError, match="does not know the secret"):
            greet(channel, identity(SECRET), 0)
        channel.close()
        thread.join()


def test_a_byte_now_and_then_does_not_keep_a_thread() -> None:
    client, worker = socket.socketpair()
    channel = NodeChannel(worker, 5.0)
    channel.deadline = 0.0  # long past
    with client, pytest.raises(PeerLostError, match="took too long"):
        receive(channel, identity(SECRET), 0, False, 0)
    channel.close()


def test_users_of_a_unix_socket_are_trusted() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert identity(None).trusts(one)


@pytest.mark.integration
def test_strangers_and_garbage_cost_a_worker_nothing(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(1))
    name, version, data = nodes.file("object", 5000)
    (node,) = nodes.plans
    host, _, port = node.rpartition(":")
    huge = frames.FRAMING.pack(Kind.DATA, 1 << 24, 0)
    for text in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 40, huge, os.urandom(100), frames.encode(Read("m", "p", None, ()))):
        channel = NodeChannel(socket.create_connection((host, int(port))), 5.0)
        channel.send_parts((text,))
        assert _ends(channel)
    stranger = nodes.folder / "other-secret"
    secrets.create_secret(stranger)
    assert fetch(nodes.client(client.settings.join, secret_file=stranger), name, version, [(0, 10)])[0] == [False]
    assert fetch(client, name, version, [(0, 5000)]) == ([True], [data])
    status = client.status(node)
    assert status is not None
    assert status["faults"] == 0
    assert str(nodes.folder) not in str(status)


@pytest.mark.integration
def test_malformed_requests_of_a_known_client_end_its_connection(nodes: Nodes) -> None:
    nodes.start_static(1)
    (node,) = nodes.plans
    host, _, port = node.rpartition(":")
    for text in (frames.encode(Blob(Kind.RING)), frames.FRAMING.pack(Kind.READ, 5, 0) + b"12345"):
        channel = NodeChannel(socket.create_connection((host, int(port))), 5.0)
        greet(channel, Identity(secrets=load_secrets(nodes.secret_file)), 0)
        channel.send_parts((text,))
        frame = channel.message(4096)
        assert isinstance(frame, Refused)
        assert frame.reason is frames.Reason.MALFORMED
        assert _ends(channel)


def _ends(channel: NodeChannel) -> bool:
    """Whether the worker closes, with or without a word."""
    try:
        while (header := channel.header()) is not None:
            channel.body(header.length)
    except (ClusterError, WireError):
        pass
    channel.close()
    return True


@pytest.mark.integration
def test_a_program_that_workers_refuse_is_told_once(
    nodes: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its reads, which go to the store, do not show it."""
    join = nodes.start_static(1)
    _, _, data = nodes.file("a", 5000)
    options = {
        "directory": str(tmp_path / "own"), "limit_bytes": 64 << 20, "rules": (Rule(),), "skip_instance_cache": True,
        "join": join, "secret_file": str(secret_file(tmp_path / "other")), "timeout_s": 8.0,
    }  # fmt: skip
    filesystem = StokerFileSystem("file", **options)
    try:
        for start in (0, 10):
            assert filesystem.cat_file(str(nodes.folder / "a"), start, start + 10) == data[start : start + 10]
        assert bytes(filesystem.open(str(nodes.folder / "a")).read()) == data
    finally:
        close_page_stores(tmp_path / "own")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"stoker: cache: the workers of `{join}` reject this program")
    assert "identity 'default' is unknown, or its secret differs; see secret_file and tls_ca" in line
