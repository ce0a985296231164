"""Secrets in files, proofs of knowing one, and who is behind a socket."""

from __future__ import annotations

import hmac
import os
import pickle
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import ConfigError
from stoker.wire.secrets import SecretExchange, create_secret, load_secrets
from stoker.wire.sockets import user_of

SECRET = b"0123456789abcdef"


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
    create_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(load_secrets(path).of("default") or b"") == 64
    with pytest.raises(FileExistsError):
        create_secret(path)


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
def test_a_proof_is_of_one_secret_purpose_role_name_and_nonce(secret: bytes, identity: str, nonce: bytes) -> None:
    exchange = SecretExchange("test 1", identity, nonce, bytes(32))
    proof = exchange.proof(secret, "client")
    assert exchange.proves(proof, secret, "client")
    assert not exchange.proves(proof, None, "client")
    assert not exchange.proves(proof, secret, "worker")
    assert not exchange.proves(proof, secret + b"x", "client")
    assert not replace(exchange, identity=identity + "x").proves(proof, secret, "client")
    assert not replace(exchange, purpose="test 2").proves(proof, secret, "client")
    swapped = SecretExchange("test 1", identity, bytes(32), nonce)
    assert nonce == bytes(32) or not swapped.proves(proof, secret, "client")


def test_the_cache_proves_what_it_always_did() -> None:
    """Workers of the first release compare it with what they compute."""
    exchange = SecretExchange("stoker cache 1", "default", bytes(range(32)), bytes(range(32, 64)))
    text = b"stoker cache 1|client|7|default|" + bytes(range(64))
    assert exchange.proof(SECRET, "client") == hmac.digest(SECRET, text, "sha256")


def test_the_kernel_names_the_user_behind_a_unix_socket() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert user_of(one) == os.geteuid()
