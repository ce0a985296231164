"""What the cluster's tests start: an etcd of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.cluster.etcd_server import BINARY, MISSING, EtcdServer
from tests.cache.cluster.nodes import Nodes
from tests.cache.cluster.started import Started
from tests.wire.certificates import certificates as certificates


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    if BINARY is None:
        pytest.skip(MISSING)
    server = EtcdServer(tmp_path / "etcd-data")
    yield server
    server.kill()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path)
    yield running
    running.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    running = Started(tmp_path)
    yield running
    running.close()
