"""A reader of this process over a store of its own and the nodes of a cluster."""

from __future__ import annotations

import pytest

from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.cache.reading import Reader
from stoker.cache.sources.opening import SourceHolder
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from tests.cache.cluster.nodes import Nodes
from tests.cache.cluster.worker_program import FILES

pytestmark = pytest.mark.integration


def test_pages_come_from_peers_then_from_the_own_disk_and_without_peers_from_the_store(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2))
    name, _, data = nodes.file("object", 3 * PAGE_BYTES + 77)
    settings = StoreSettings(limit_bytes=1 << 28, keep_free_frac=0.0)
    with PageStore(nodes.folder / "own", settings) as pages:
        reader = Reader(pages, SourceHolder(FILES), (Rule(freshness=Freshness.ALWAYS),), peers=client)
        assert reader.read(name.path) == data
        assert reader.counts.peer_bytes > 0
        from_peers = reader.counts.peer_bytes
        assert reader.read(name.path) == data
        assert reader.counts.peer_bytes == from_peers
        for node in list(nodes.plans):
            nodes.kill(node)
        _, _, changed = nodes.file("object", 3 * PAGE_BYTES, seed=1)
        assert reader.read(name.path) == changed
        assert reader.counts.fetched_bytes >= len(changed)
