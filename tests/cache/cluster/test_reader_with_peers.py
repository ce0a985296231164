"""A reader of this process over a store of its own and the nodes of a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.cluster.membership.ring import Member, RingRecord
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.page_stores import close_page_stores
from stoker.cache.peer_clients import peer_client
from stoker.cache.policies import Freshness, Rule
from stoker.cache.reading.reader import Reader
from stoker.cache.settings import CacheSettings
from stoker.cache.sources.opening import SourceHolder
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import ConfigError
from stoker.wire.secrets import create_secret
from tests.cache.cluster.nodes import Nodes
from tests.cache.cluster.worker_program import FILES

pytestmark = pytest.mark.integration
CHECKED = (Rule(freshness=Freshness.ALWAYS),)
SMALL = StoreSettings(limit_bytes=1 << 26, keep_free_frac=0.0)


def test_pages_come_from_peers_then_from_the_own_disk_and_without_peers_from_the_store(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2))
    name, _, data = nodes.file("object", 3 * PAGE_BYTES + 77)
    settings = StoreSettings(limit_bytes=1 << 28, keep_free_frac=0.0)
    with PageStore(nodes.folder / "own", settings) as pages:
        reader = Reader(pages, SourceHolder(FILES), CHECKED, peers=client)
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


def test_one_question_to_the_store_is_enough_for_all_who_read(nodes: Nodes) -> None:
    join = nodes.start_static(2)
    name, _, data = nodes.file("object", PAGE_BYTES + 77)
    rules = (Rule(max_age_s=300.0),)
    with contextlib.ExitStack() as opened:
        readers: list[Reader] = []
        for number in range(3):
            pages = PageStore(nodes.folder / f"own-{number}", SMALL)
            opened.enter_context(pages)
            readers.append(Reader(pages, SourceHolder(FILES), rules, peers=nodes.client(join)))
        for reader in readers:
            assert reader.read(name.path) == data
            assert reader.snapshot(name.path).details == readers[0].holder.get().info(name.path).details
        _, _, changed = nodes.file("object", PAGE_BYTES + 78, seed=1)
        assert [reader.read(name.path) for reader in readers] == [data] * 3  # as their rule lets it be
        assert [reader.counts.checks for reader in readers] == [0] * 3
        # What this process wrote it sees at once, whatever others know.
        readers[0].wrote(name.path)
        assert readers[0].read(name.path) == changed
        assert readers[0].counts.checks == 1
        assert readers[1].read(name.path) == data


def test_a_version_is_never_older_than_the_readers_own_rule_allows(nodes: Nodes) -> None:
    join = nodes.start_static(1)
    name, _, data = nodes.file("object", 5000)
    with contextlib.ExitStack() as opened:
        short, always = (
            Reader(
                opened.enter_context(PageStore(nodes.folder / f"own-{number}", SMALL)),
                SourceHolder(FILES), (rule,), peers=nodes.client(join),
            )
            for number, rule in enumerate((Rule(max_age_s=0.5), *CHECKED))
        )  # fmt: skip
        assert short.read(name.path) == data
        _, _, changed = nodes.file("object", 5001, seed=1)
        changed_s = time.monotonic()
        assert always.read(name.path) == changed
        while time.monotonic() - changed_s < 0.5:  # the worker's own rule would let it be a minute
            assert short.read(name.path) in (data, changed)
        assert short.read(name.path) == changed


def test_a_filesystem_joins_by_an_option_in_children_as_well(nodes: Nodes) -> None:
    join = nodes.start_static(2, unix=True)
    name, _, data = nodes.file("object", 2 * PAGE_BYTES + 5)
    where: dict[str, Any] = {"directory": str(nodes.folder / "own"), "limit_bytes": 64 << 20, "rules": CHECKED}
    fs = StokerFileSystem("file", join=join, **where)
    try:
        for path, target in ((name.path, fs), (nodes.file("other", PAGE_BYTES)[0].path, pickle.dumps(fs))):
            child = multiprocessing.get_context("fork").Process(target=_read, args=(target, path))
            child.start()
            child.join(30)
            assert child.exitcode == 0
        assert fs.cat_file(name.path) == data
        assert fs.reader.counts.fetched_bytes == fs.reader.counts.peer_bytes == 0
    finally:
        close_page_stores(where["directory"])


def _read(target: StokerFileSystem | bytes, path: str) -> None:
    fs: Any = pickle.loads(target) if isinstance(target, bytes) else target
    before = fs.reader.counts.peer_bytes
    assert fs.cat_file(path) == Path(path).read_bytes()
    assert fs.reader.counts.peer_bytes - before == Path(path).stat().st_size


def test_workers_of_other_machines_need_a_secret(tmp_path: Path) -> None:
    there = Member(id="there", addresses=("unix:///run/there.sock", "tcp://there:7070"), machine="another")
    (tmp_path / "ring.json").write_bytes(RingRecord(epoch=1, members=(there,)).encode())
    settings = CacheSettings(directory=str(tmp_path)).but(cache_join=f"file://{tmp_path}/ring.json")
    with pytest.raises(ConfigError, match="since there is reached over TCP"):
        peer_client(settings)
    create_secret(tmp_path / "secret")
    client = peer_client(settings)
    assert peer_client(settings) is client
    client.close()
