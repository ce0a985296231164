"""Workers and clients as processes: right bytes, one fetch for all, and what a lost worker costs."""

from __future__ import annotations

import pytest

from stoker.cache.names import PAGE_BYTES
from tests.cache.cluster.nodes import Nodes, fetch, ranges_of

pytestmark = pytest.mark.integration

MIB = PAGE_BYTES


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_cold_and_warm_reads_give_the_stores_bytes(nodes: Nodes, unix: bool) -> None:
    join = nodes.start_static(3, unix=unix)
    client = nodes.client(join)
    name, version, data = nodes.file("object", 5 * MIB + 12345)
    for step in (MIB, 4096 * 33, 5 * MIB + 12345):
        ranges = ranges_of(len(data), step)
        came, buffers = fetch(client, name, version, ranges)
        assert all(came)
        assert b"".join(buffers) == data
    assert max(nodes.store_reads().values()) == 1
    assert sum(nodes.store_reads().values()) == 6
