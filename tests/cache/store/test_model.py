"""Any interleaving of puts, reads, drops, evictions, damage and restarts, against a dictionary."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.cache.names import pages_of
from stoker.cache.store.layout import Policy
from stoker.cache.store.page_store import PageStore
from tests.cache.store import storing

LIMIT = 20 << 20
objects = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)


class StoreMachine(RuleBasedStateMachine):
    """`now[i, index]` is the version that a page may be found in; it may also be gone."""

    @initialize(policy=st.sampled_from(["epoch", "lru", "sieve", "s3fifo"]))
    def open(self, policy: Policy) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.settings = storing.settings(policy, LIMIT)
        self.stores = [PageStore(self.directory, self.settings), PageStore(self.directory, self.settings)]
        self.now: dict[tuple[int, int], int] = {}
        self.views: list[tuple[memoryview, bytes]] = []

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)

    @rule(which=st.integers(0, 1), i=objects, version=st.integers(0, 7), seed=seeds)
    def put(self, which: int, i: int, version: int, seed: int) -> None:
        index = random.Random(seed).choice(pages_of(0, storing.size_of(i)))
        if storing.put(self.stores[which], i, version, index):
            self.now[i, index] = version

    @rule(which=st.integers(0, 1), first=st.integers(50, 350), version=st.integers(0, 7))
    def put_many(self, which: int, first: int, version: int) -> None:
        for i in range(first, first + 50):
            if storing.put(self.stores[which], i, version):
                self.now[i, 0] = version

    @rule(which=st.integers(0, 1))
    def read_all(self, which: int) -> None:
        for (i, index), version in self.now.items():
            assert storing.check(self.stores[which], i, index) in (None, version)

    @rule(which=st.integers(0, 1), i=objects, index=st.integers(0, 4))
    def view(self, which: int, i: int, index: int) -> None:
        key = storing.name_of(i).key(index)
        entry = self.stores[which].lookup(key)
        page = None if entry is None else self.stores[which].view(key, entry)
        if page is not None and len(self.views) < 5:
            self.views.append((page, storing.page_of(i, self.now[i, index], index)))

    @rule()
    def release_views(self) -> None:
        self.views.clear()

    @rule(which=st.integers(0, 1), i=objects, index=st.integers(0, 4))
    def drop(self, which: int, i: int, index: int) -> None:
        self.stores[which].drop(storing.name_of(i).key(index))
        self.now.pop((i, index), None)
        for store in self.stores:
            assert store.lookup(storing.name_of(i).key(index)) is None

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = PageStore(self.directory, self.settings)

    # What is damaged under a view is the view's reader's to bear: only reads compare.
    @precondition(lambda self: not self.views)
    @rule(seed=seeds)
    def damage(self, seed: int) -> None:
        rng = random.Random(seed)
        files = [path for name in ("segments", "large") for path in sorted((self.directory / name).iterdir())]
        if files:
            path = rng.choice(files)
            with open(path, "r+b") as file:
                for _ in range(20):
                    file.seek(rng.randrange(path.stat().st_size))
                    byte = file.read(1)
                    file.seek(-1, 1)
                    file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))

    @invariant()
    def the_limit_holds(self) -> None:
        if hasattr(self, "directory"):
            assert storing.disk_bytes(self.directory) <= LIMIT

    @invariant()
    def views_stay(self) -> None:
        for page, expected in getattr(self, "views", []):
            assert page == expected


TestStore = StoreMachine.TestCase
TestStore.settings = hypothesis_settings(max_examples=12, stateful_step_count=25, deadline=None)
