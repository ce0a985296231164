"""The proof of a change of version: for one request, once, by who can read the service's secret."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import msgspec
import pytest

from stoker.core.errors import ConfigError, ServingError
from stoker.run.serving.changing import change_version
from stoker.wire.control import CONTROL_FILE, ControlChallenge, ControlChallenges, ControlProof
from stoker.wire.secrets import create_secret


class _Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    create_secret(tmp_path / CONTROL_FILE)
    return tmp_path / CONTROL_FILE


def test_a_proof_is_for_one_request_once(secret: Path) -> None:
    clock = _Clock()
    service = ControlChallenges(secret, clock)
    proof = ControlProof()
    header = proof.header(service.challenge(proof.nonce), "digits", b"plan")
    assert secret.read_text().strip() not in header
    assert not service.accepts(header, "digits", b"another plan")
    assert not service.accepts(header, "letters", b"plan")
    assert not ControlChallenges(secret, clock).accepts(header, "digits", b"plan")  # of a service that ended
    assert service.accepts(header, "digits", b"plan")
    assert not service.accepts(header, "digits", b"plan")  # heard, and sent again
    late = proof.header(service.challenge(proof.nonce), "digits", b"plan")
    clock.now_s += 62.0
    assert not service.accepts(late, "digits", b"plan")
    assert not service.accepts(header, "digits", b"plan")


@pytest.mark.parametrize("header", ["", "a:b:c", "00:00:00", f"{'0' * 64}:{'0' * 112}:{'0' * 64}", "é:é:é"])
def test_what_proves_nothing(secret: Path, header: str) -> None:
    assert not ControlChallenges(secret).accepts(header, "digits", b"")


def test_a_nonce_that_is_none(secret: Path) -> None:
    with pytest.raises(ValueError, match=r"`Stoker-Nonce` must have 32 bytes in hexadecimal digits, got 'no'"):
        ControlChallenges(secret).challenge("no")


def test_who_does_not_know_the_secret_gets_no_proof(secret: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    create_secret(other / CONTROL_FILE)
    proof = ControlProof()
    told = ControlChallenges(other / CONTROL_FILE).challenge(proof.nonce)
    with pytest.raises(ServingError, match="must be the secret of the service that answers, and it does not know it"):
        proof.header(msgspec.structs.replace(told, secret_file=str(secret)), "digits", b"")
    with pytest.raises(ConfigError):
        proof.header(msgspec.structs.replace(told, secret_file=f"/nowhere/{CONTROL_FILE}"), "digits", b"")


def test_no_other_secret_is_read_for_who_listens_at_the_port(tmp_path: Path) -> None:
    """Any user may listen there before the service does, and name any file of who asks."""
    create_secret(tmp_path / "cluster")
    cluster = (tmp_path / "cluster").read_text().strip()
    heard: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(str(self.headers))
            told = ControlChallenge(secret_file=str(tmp_path / "cluster"), nonce="00" * 56, proof="00" * 32)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(told))

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        with pytest.raises(ServingError, match=r"must be a service's control\.secret, got .*cluster"):
            change_version(f"http://127.0.0.1:{server.server_address[1]}", "digits", {"source": "m.onnx"})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert len(heard) == 1
    assert cluster not in "".join(heard)
