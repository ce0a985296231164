"""What a worker is called, and what its settings must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.membership.membership import StaticMembership
from stoker.cache.cluster.membership.ring import Member
from stoker.cache.cluster.messages.handshake import Identity
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.cluster.server.worker import node_of
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import ConfigError


def test_a_worker_keeps_its_name_as_long_as_its_pages(tmp_path: Path) -> None:
    first = node_of(tmp_path / "a")
    assert node_of(tmp_path / "a") == first
    assert node_of(tmp_path / "b") != first


def test_a_store_lives_beside_the_name(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    with PageStore(tmp_path, StoreSettings(limit_bytes=1 << 26, keep_free_frac=0.0)):
        assert node_of(tmp_path) == node


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"node": ""}, "must not be empty"),
        ({"listen": ()}, "must not be empty"),
        ({"listen": ("host:7070",)}, "tcp://host:port"),
        ({"listen": ("tcp://0.0.0.0:7070",)}, "advertise"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], match: str) -> None:
    good: dict[str, object] = {"node": "a", "listen": ("tcp://127.0.0.1:0",)}
    with pytest.raises(ValueError, match=match):
        ServerSettings(**{**good, **changes})  # type: ignore[arg-type]


def test_tcp_without_a_secret_is_refused(tmp_path: Path) -> None:
    settings = ServerSettings(node="a", listen=("tcp://127.0.0.1:0",))
    with (
        PageStore(tmp_path, StoreSettings(limit_bytes=1 << 26, keep_free_frac=0.0)) as pages,
        pytest.raises(ConfigError, match="--secret-file"),
    ):
        Server(pages, [], StaticMembership(()), Identity(), settings)


def test_a_worker_that_ends_leaves_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    settings = ServerSettings(node="w", listen=(f"unix://{path}",))
    membership = StaticMembership((Member(id="w"),))
    with PageStore(tmp_path / "pages", StoreSettings(limit_bytes=1 << 26, keep_free_frac=0.0)) as pages:
        first, second = (Server(pages, [], membership, Identity(), settings) for _ in range(2))
        first.start()
        assert path.stat().st_mode & 0o777 == 0o600
        second.start()
        first.close()
        assert path.exists()
        second.close()
        assert not path.exists()


def test_time_outs_and_attempts_are_bounded() -> None:
    with pytest.raises(ConfigError, match="timeout"):
        ClientSettings(join="static:a:1", timeout_s=0.0)
    with pytest.raises(ValueError, match="attempts"):
        ClientSettings(join="static:a:1", attempts=0)
