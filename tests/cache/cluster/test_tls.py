"""TLS between workers, programs and the HTTP door, with certificates made by `openssl`."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path

import pytest

from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.core.errors import ConfigError
from stoker.wire.tls import client_context
from tests.cache.cluster.etcd_server import free_port
from tests.cache.cluster.nodes import fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


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
    with pytest.raises(
        ConfigError,
        match=r"refuse this client: .*this worker accepts TLS only; set its certificate authority with tls-ca",
    ):
        started.client(join).check()
    started.client(join, tls_ca=certificates["right"]).check()
    words = ("status", "--join", join, "--secret-file", str(started.secret), "--json")
    (told,) = json.loads(started.command(*words, "--tls-ca", wrong).stdout)["nodes"]
    assert told["state"] == "lost"
    assert "has a certificate that `tls-ca` does not verify: self-signed certificate" in told["fault"]
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    joined = ("--cache-join", join, "--cache-secret-file", str(started.secret))
    done = started.run("--cache=pages", *joined, "--cache-tls-ca", wrong, str(program))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the cache's workers refuse this client: `tcp://{node}` has a certificate" in done.stderr
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
