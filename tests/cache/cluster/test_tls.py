"""TLS between workers, programs and the HTTP door, with certificates made by `openssl`."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from stoker.cache.cluster.channel import Channel
from stoker.cache.cluster.tls import Certificate, accepted, client_context, dialled, worker_context
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.core.errors import ConfigError, PeerLostError, PeerRefusedError
from tests.cache.cluster.etcd_server import free_port
from tests.cache.cluster.nodes import fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl"),
]


def certificate(folder: Path, name: str, host: str = "127.0.0.1") -> Path:
    """A certificate that vouches for itself, with its key in one file."""
    path = folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}"),
            *("-keyout", str(path), "-out", str(folder / f"{name}.crt")),
        ],
        check=True,
        capture_output=True,
    )
    with path.open("ab") as file:
        file.write((folder / f"{name}.crt").read_bytes())
    return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "right": certificate(folder, "right"),
        "wrong": certificate(folder, "wrong"),
        "elsewhere": certificate(folder, "elsewhere", "127.0.0.9"),
    }


def test_workers_programs_and_the_door_speak_tls(
    started: Started, certificates: dict[str, Path], tmp_path: Path
) -> None:
    right = str(certificates["right"])
    nodes, join = started.nodes(2)
    door = f"127.0.0.1:{free_port()}"
    for node, options in zip(nodes, (("--http", door), ()), strict=True):
        # Others come by TCP alone: on one machine they would take the Unix socket.
        started.start(node, join, "--advertise", node, "--tls-cert", right, "--tls-ca", right, *options)
    for node in nodes:
        started.wait(node)
    client = started.client(join, tls_ca=certificates["right"])
    objects: list[tuple[ObjectName, bytes]] = []
    for number, size in enumerate((10, 5000, 3 * PAGE_BYTES + 5)):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes([number + 1]) * size)
        objects.append((ObjectName(FILES.namespace, str(path)), path.read_bytes()))
    for _ in range(2):
        for name, data in objects:
            found = client.stat(name)
            assert found is not None
            middle = len(data) // 2
            ranges = [(0, middle), (middle, len(data)), (1, 1 + middle % 4096)]
            assert fetch(client, name, found.version, ranges) == ([True] * 3, [data[a:b] for a, b in ranges])
            assert fetch(client, name, found.version, [(0, 10)]) == ([True], [data[:10]])
    assert client.counts.found_lost == 0
    replicated = started.command(
        "warm", f"file://{objects[1][0].path}", "--replicas", "2", "--join", join, "--json",
        "--secret-file", str(started.secret), "--tls-ca", right, "--dir", str(tmp_path / "own"),
    )  # fmt: skip
    assert json.loads(replicated.stdout)["complete"], replicated.stderr  # one of them had it from the other
    context = ssl.create_default_context(cafile=right)
    with urllib.request.urlopen(f"https://{door}/healthz", context=context, timeout=10) as answer:
        assert answer.read() == b"ok\n"


def test_who_is_not_vouched_for_is_refused_with_the_reason(
    started: Started, certificates: dict[str, Path], tmp_path: Path
) -> None:
    right, wrong = (str(certificates[name]) for name in ("right", "wrong"))
    (node,), join = started.nodes(1)
    started.start(node, join, "--tls-cert", right, "--tls-ca", right, "--advertise", node)
    started.wait(node)
    with pytest.raises(ConfigError, match=r"refuse: .*this worker speaks TLS alone; name its authority with tls-ca"):
        started.client(join).check()
    started.client(join, tls_ca=certificates["right"]).check()
    words = ("status", "--join", join, "--secret-file", str(started.secret), "--json")
    (told,) = json.loads(started.command(*words, "--tls-ca", wrong).stdout)["nodes"]
    assert told["state"] == "lost"
    assert "shows a certificate that `tls-ca` does not vouch for: self-signed certificate" in told["fault"]
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    joined = ("--cache-join", join, "--cache-secret-file", str(started.secret))
    done = started.run("--cache=pages", *joined, "--cache-tls-ca", wrong, str(program))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the cache's workers refuse: `tcp://{node}` shows a certificate" in done.stderr
    done = started.run("--cache=pages", *joined, "--cache-tls-ca", right, str(program))
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_options_that_do_not_go_together_are_refused(
    started: Started, certificates: dict[str, Path], tmp_path: Path
) -> None:
    words = ("start", "--mount", "files=file://", "--dir", str(tmp_path / "pages"))
    right = str(certificates["right"])
    assert "got --tls-cert alone" in started.command(*words, "--tls-cert", right).stderr
    assert "must be a certificate and its key in PEM" in (
        started.command(*words, "--tls-cert", __file__, "--tls-ca", right).stderr
    )
    with pytest.raises(ConfigError, match="`tls-ca` must be certificates in PEM"):
        client_context(Path(__file__))


@pytest.mark.parametrize(
    ("shown", "trusted", "match"),
    [("right", "wrong", "does not vouch for"), ("elsewhere", "elsewhere", "IP address mismatch")],
)
def test_a_handshake_that_fails_names_the_reason(
    certificates: dict[str, Path], shown: str, trusted: str, match: str
) -> None:
    ours, theirs = socket.socketpair()
    context = worker_context(Certificate(cert=certificates[shown]))
    refused: list[Exception] = []

    def accept() -> None:
        try:
            accepted(Channel(theirs, 10.0), context, 10.0)
        except PeerLostError as error:
            refused.append(error)

    worker = threading.Thread(target=accept)
    worker.start()
    with pytest.raises(PeerRefusedError, match=match):
        dialled(ours, "tcp://127.0.0.1:1", "127.0.0.1", client_context(certificates[trusted]), 10.0)
    worker.join()
    assert len(refused) == 1


def test_silence_and_ends_are_those_of_a_plain_connection(certificates: dict[str, Path]) -> None:
    ours, theirs = socket.socketpair()
    context = worker_context(Certificate(cert=certificates["right"]))
    channels: list[Channel] = []
    worker = threading.Thread(target=lambda: channels.append(accepted(Channel(theirs, 10.0), context, 10.0)))
    worker.start()
    client = dialled(ours, "tcp://127.0.0.1:1", "127.0.0.1", client_context(certificates["right"]), 0.05)
    worker.join()
    (served,) = channels
    with pytest.raises(PeerLostError, match="did not send anything for too long"):
        client.body(20_000)
    assert not client.wait(0.01)
    client.bound(10.0, 10.0)
    data = bytes(range(256)) * 1000
    sender = threading.Thread(target=served.send_parts, args=([data[:100], memoryview(data)[100:]],))
    sender.start()
    assert client.body(30) == data[:30]
    assert client.buffered
    target = bytearray(len(data) - 30)
    client.into(memoryview(target))
    sender.join()
    assert bytes(target) == data[30:]
    assert not client.buffered
    assert not client.arrived()
    assert served.send_now(b"now") == 3
    assert client.wait(10.0)
    assert client.arrived()
    assert client.body(3) == b"now"
    served.close()
    assert client.header() is None
    client.close()
