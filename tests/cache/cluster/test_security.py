"""Secrets, proofs, grants, and what a worker does with strangers and garbage."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.cluster import frames, security
from stoker.cache.cluster.channel import Channel
from stoker.cache.cluster.frames import Blob, Hello, Kind, Read, Refused, Welcome
from stoker.cache.cluster.greeting import Identity, greet, receive
from stoker.cache.cluster.security import Grant, Secrets, load_secrets, may_read, under
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule
from stoker.core.errors import ClusterError, ConfigError, PeerLostError, PeerRefusedError, WireError
from tests.cache.cluster.nodes import Nodes, fetch

SECRET = b"0123456789abcdef"
Result = TypeVar("Result")


def secret_file(path: Path, text: str = "0123456789abcdef\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secrets_are_read_and_never_shown(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "secret", "# keys\n0123456789abcdef\n\nguest fedcba9876543210\n")
    secrets = load_secrets(path)
    assert secrets.of("default") == SECRET
    assert secrets.of("guest") == b"fedcba9876543210"
    assert secrets.of("other") is None
    assert "0123" not in repr(secrets)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secrets)


def test_a_new_secret_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    security.create_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(load_secrets(path).of("default") or b"") == 64
    with pytest.raises(FileExistsError):
        security.create_secret(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_secrets_that_others_may_read_are_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        load_secrets(secret_file(tmp_path / "secret", mode=mode))


@pytest.mark.parametrize("text", ["", "short\n", "a b 0123456789abcdef\n", "bad/name 0123456789abcdef\n", "x" * 70000])
def test_files_without_usable_secrets_are_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="secret") as caught:
        load_secrets(secret_file(tmp_path / "secret", text))
    assert "0123456789" not in str(caught.value)
    with pytest.raises(ConfigError, match="must hold the cluster's secret"):
        load_secrets(tmp_path / "none")


@given(st.binary(min_size=16, max_size=40), st.text(max_size=10), st.binary(min_size=32, max_size=32))
def test_a_proof_is_of_one_secret_role_name_and_nonce(secret: bytes, identity: str, nonce: bytes) -> None:
    other = bytes(32)
    proof = security.prove(secret, "client", identity, nonce, other)
    assert security.proves(proof, secret, "client", identity, nonce, other)
    assert not security.proves(proof, secret, "worker", identity, nonce, other)
    assert not security.proves(proof, secret, "client", identity + "x", nonce, other)
    assert not security.proves(proof, secret + b"x", "client", identity, nonce, other)
    assert nonce == other or not security.proves(proof, secret, "client", identity, other, nonce)


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
            channel = Channel(listener.accept()[0], 5.0)
            outcome.append(_outcome(lambda: receive(channel, worker, 3, False, 1)))
            channel.close()

        thread = threading.Thread(target=serve)
        thread.start()
        channel = Channel(socket.create_connection(listener.getsockname()), 5.0)
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
            channel = Channel(listener.accept()[0], 5.0)
            channel.frame(4096)
            channel.send(frames.Challenge(bytes(32), False))
            channel.frame(4096)
            channel.send(Welcome(bytes(32), "w", 1))
            channel.close()

        thread = threading.Thread(target=impersonate)
        thread.start()
        channel = Channel(socket.create_connection(listener.getsockname()), 5.0)
        with pytest.raises(PeerRefusedError, match="does not know the secret"):
            greet(channel, identity(SECRET), 0)
        channel.close()
        thread.join()


def test_a_byte_now_and_then_does_not_keep_a_thread() -> None:
    client, worker = socket.socketpair()
    channel = Channel(worker, 5.0)
    channel.deadline = 0.0  # long past
    with client, pytest.raises(PeerLostError, match="took too long"):
        receive(channel, identity(SECRET), 0, False, 0)
    channel.close()


def test_the_kernel_names_the_user_behind_a_unix_socket() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert security.user_of(one) == os.geteuid()
        assert identity(None).trusts(one)


@pytest.mark.integration
def test_strangers_and_garbage_cost_a_worker_nothing(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(1))
    name, version, data = nodes.file("object", 5000)
    (node,) = nodes.plans
    host, _, port = node.rpartition(":")
    huge = frames.HEADER.pack(frames.MAGIC, frames.PROTOCOL, Kind.DATA, 1 << 24, 0)
    for text in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 40, huge, os.urandom(100), frames.encode(Read("m", "p", None, ()))):
        channel = Channel(socket.create_connection((host, int(port))), 5.0)
        channel.send_parts((text,))
        assert _ends(channel)
    stranger = nodes.folder / "other-secret"
    security.create_secret(stranger)
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
    for text in (frames.encode(Blob(Kind.RING)), frames.HEADER.pack(frames.MAGIC, 1, Kind.READ, 5, 0) + b"12345"):
        channel = Channel(socket.create_connection((host, int(port))), 5.0)
        greet(channel, Identity(secrets=load_secrets(nodes.secret_file)), 0)
        channel.send_parts((text,))
        frame = channel.frame(4096)
        assert isinstance(frame, Refused)
        assert frame.reason is frames.Reason.MALFORMED
        assert _ends(channel)


def _ends(channel: Channel) -> bool:
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
    assert line.startswith(f"stoker: cache: the workers of `{join}` will not serve this program")
    assert "identity 'default' is unknown or its secret is another; see secret_file and tls_ca" in line
