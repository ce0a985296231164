"""Whatever changes, vanishes or is evicted between reads: bytes of one version that the rule allows, or an error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.filesystem.files import CachedFile
from stoker.cache.names import DESCRIPTION, PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.cache.reading.reader import Reader
from stoker.cache.sources.opening import SourceHolder, SourceSpec
from stoker.cache.sources.source import ObjectInfo
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import SourceChangedError

LIMIT_BYTES = 16 << 20
MAX_AGE_S = 60.0
SIZES = (0, 10, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES // 2)


@dataclass
class World:
    """A store, its only object, and a cache; time passes as it is told to."""

    reader: Reader
    pages: PageStore
    path: str
    overwrite: Callable[[bytes], None]
    remove: Callable[[], None]
    now: list[float] = field(default_factory=lambda: [1e9])

    def open(self) -> CachedFile:
        return CachedFile(None, self.reader, self.reader.snapshot(self.path))

    def evict(self, index: int) -> None:
        self.pages.drop(self.reader.name(self.path).key(index))


@contextmanager
def world(protocol: str, rule: Rule) -> Iterator[World]:
    now = [1e9]
    with tempfile.TemporaryDirectory() as place:
        path = "/object" if protocol == "memory" else f"{place}/object"
        target = fsspec.filesystem(protocol)
        with PageStore(Path(place) / "cache", StoreSettings(limit_bytes=LIMIT_BYTES, keep_free_frac=0.0)) as pages:
            reader = Reader(pages, SourceHolder(SourceSpec(protocol)), (rule,), clock=lambda: now[0])
            yield World(reader, pages, path, lambda data: target.pipe(path, data), lambda: target.rm(path), now)
        if protocol == "memory":
            target.store.clear()


@pytest.fixture(autouse=True)
def no_objects(memory: MemoryFileSystem) -> None:
    """The process's memory is empty."""


def test_the_rule_says_when_the_store_is_asked() -> None:
    for freshness, waited_s, expected in [
        (Freshness.MAX_AGE, MAX_AGE_S - 1, b"old"), (Freshness.MAX_AGE, MAX_AGE_S + 1, b"new"),
        (Freshness.ALWAYS, 0, b"new"), (Freshness.IMMUTABLE, 1e6, b"old"),
    ]:  # fmt: skip
        with world("memory", Rule(freshness=freshness, max_age_s=MAX_AGE_S)) as here:
            here.overwrite(b"old")
            assert here.reader.read(here.path) == b"old"
            here.overwrite(b"new")
            here.now[0] += waited_s
            assert here.reader.read(here.path) == expected
            assert here.reader.snapshot(here.path).size == 3


def test_a_stale_page_is_asked_for_once() -> None:
    with world("memory", Rule(max_age_s=MAX_AGE_S)) as here:
        here.overwrite(bytes(3 * PAGE_BYTES))
        here.reader.read(here.path)
        here.now[0] += MAX_AGE_S + 1
        before = (here.reader.counts.checks, here.reader.counts.fetched_bytes)
        for _ in range(3):
            for page in range(3):
                here.reader.read(here.path, page * PAGE_BYTES, page * PAGE_BYTES + 9)
        assert (here.reader.counts.checks, here.reader.counts.fetched_bytes) == (before[0] + 1, before[1])


def test_an_open_file_stays_with_its_version() -> None:
    with world("memory", Rule(freshness=Freshness.ALWAYS)) as here:
        here.overwrite(b"1" * 2 * PAGE_BYTES)
        with here.open() as file:
            assert file.read(10) == b"1" * 10
            here.overwrite(b"2" * 2 * PAGE_BYTES)
            assert file.read(10) == b"1" * 10  # cached
            file.seek(PAGE_BYTES + 5)
            with pytest.raises(SourceChangedError, match="another version"):
                file.read(10)
            assert here.reader.read(here.path) == b"2" * 2 * PAGE_BYTES
            with pytest.raises(SourceChangedError, match="another version"):
                file.read(10)  # the new version's page is cached
        assert here.reader.read(here.path, -3) == b"222"


def test_a_file_of_which_nothing_was_seen_moves_on_to_the_new_version() -> None:
    with world("memory", Rule(freshness=Freshness.ALWAYS)) as here:
        here.overwrite(b"old")
        with here.open() as file:
            here.overwrite(b"newer")
            assert file.read() == b"newer"
        with here.open() as file:
            assert file.size == 5
            here.overwrite(b"x" * PAGE_BYTES)
            assert file.read() == b"newer"  # cached


def test_a_removed_object() -> None:
    with world("memory", Rule(freshness=Freshness.ALWAYS)) as here:
        here.overwrite(b"1" * 2 * PAGE_BYTES)
        file = here.open()
        assert file.read(1) == b"1"
        here.remove()
        with pytest.raises(SourceChangedError, match="is gone"):
            file.seek(PAGE_BYTES) and file.read(1)
        with pytest.raises(FileNotFoundError):
            here.reader.read(here.path)
        file.close()


def test_a_version_that_nothing_tells_apart_is_not_kept() -> None:
    with world("memory", Rule()) as here:
        target = here.reader.holder.get()
        from stoker.cache.sources import memory as module
        from stoker.cache.versions import Strength, Version

        class Nameless(module.MemorySource):
            def info(self, path: str) -> ObjectInfo:
                found = super().info(path)
                return found._replace(version=Version(Strength.NONE, "", found.version.size))

            def read(self, path: str, start: int, end: int, version: Version) -> bytes:
                return super().read(path, start, end, super().info(path).version)

        here.reader.holder._source = lambda: Nameless(target.target, target.namespace)
        here.overwrite(b"1" * 3 * PAGE_BYTES)
        assert here.reader.read(here.path) == b"1" * 3 * PAGE_BYTES
        here.overwrite(b"2" * 3 * PAGE_BYTES)
        assert here.reader.read(here.path, 5, 9) == b"2222"
        with here.open() as file:
            here.reader.counts.fetched_bytes = 0
            while file.read(10_000):
                pass
            assert here.reader.counts.fetched_bytes == 3 * PAGE_BYTES
        assert here.pages.lookup(here.reader.name(here.path).key(0)) is None


@dataclass
class Written:
    """One version of the object: from when, until when."""

    content: bytes
    since: float
    until: float = float("inf")


def allowed(history: list[Written], rule: Rule, now: float) -> list[bytes]:
    """Contents that a call now may see."""
    if rule.freshness is Freshness.IMMUTABLE:
        return [each.content for each in history]
    # Times are kept in coarse steps, which makes entries look older, never younger.
    age_s = rule.max_age_s if rule.freshness is Freshness.MAX_AGE else 0.0
    return [each.content for each in history if each.until >= now - age_s]


READS = [("read", (0, None)), ("read", (5, 9)), ("read", (PAGE_BYTES - 2, PAGE_BYTES + 2)), ("read", (-3, None))]
FILES = [("open", 0), ("file", (0, 10)), ("file", (PAGE_BYTES, 10)), ("file", (2 * PAGE_BYTES, -1)), ("file", (0, -1))]
WAITS = [("wait", MAX_AGE_S / 2), ("wait", 2 * MAX_AGE_S)]
EVICTIONS = [("evict", 0), ("evict", 1), ("evict", DESCRIPTION)]
OVERWRITES = [("overwrite", size) for size in SIZES]
# Often the size that there is: changes that only the version tells.
STEPS = READS + 2 * FILES + WAITS + EVICTIONS + OVERWRITES + 4 * [("overwrite", SIZES[-1])]
steps = st.lists(st.sampled_from(STEPS), min_size=15, max_size=40)


def check(protocol: str, rule: Rule, actions: list[tuple[str, object]]) -> None:
    with world(protocol, rule) as here:
        history: list[Written] = []
        file: CachedFile | None = None
        possible: list[bytes] = []

        def overwrite(size: int) -> None:
            content = bytes([len(history) % 251 + 1]) * size
            here.overwrite(content)
            if history:
                history[-1].until = here.now[0]
            history.append(Written(content, here.now[0]))

        overwrite(SIZES[-1])
        for kind, value in actions:
            here.now[0] += 0.5
            now = here.now[0]
            if kind == "overwrite":
                overwrite(value)  # type: ignore[arg-type]
            elif kind == "wait":
                here.now[0] += value  # type: ignore[operator]
            elif kind == "evict":
                here.evict(value)  # type: ignore[arg-type]
            elif kind == "read":
                start, end = value  # type: ignore[misc]
                found = here.reader.read(here.path, start, end)
                assert found in [content[start:end] for content in allowed(history, rule, now)]
            elif kind == "open":
                if file is not None:
                    file.close()
                file, possible = here.open(), allowed(history, rule, now)
                is_first = True
            elif file is not None:
                start, length = value  # type: ignore[misc]
                if is_first:  # nothing was seen of it: it may be the version of now
                    possible += allowed(history, rule, now)
                try:
                    file.seek(start)
                    found = file.read(length)
                except SourceChangedError:
                    assert not is_first, "nothing was seen of it yet"
                    continue
                end = None if length < 0 else start + length
                possible = [content for content in possible if content[start:end] == found]
                assert possible, "bytes of another version, or of several"
                is_first = False
        if file is not None:
            file.close()


RULES = [Rule(max_age_s=MAX_AGE_S), Rule(freshness=Freshness.ALWAYS), Rule(freshness=Freshness.IMMUTABLE)]


@pytest.mark.integration
@given(actions=steps, rule=st.sampled_from(RULES))
@settings(max_examples=40)
def test_any_order_of_reads_changes_and_evictions(actions: list[tuple[str, object]], rule: Rule) -> None:
    check("memory", rule, actions)


@pytest.mark.integration
@given(actions=steps, rule=st.sampled_from(RULES))
@settings(max_examples=10)
def test_any_order_of_reads_changes_and_evictions_of_local_files(actions: list[tuple[str, object]], rule: Rule) -> None:
    check("file", rule, actions)


def test_a_forked_child_reads_on(memory: MemoryFileSystem) -> None:
    with world("file", Rule()) as here:
        content = os.urandom(6 * PAGE_BYTES)
        here.overwrite(content)
        with here.open() as file:
            file.read(2 * PAGE_BYTES + 5)  # reads ahead
            pid = os.fork()
            if pid == 0:
                os._exit(0 if file.read() == content[2 * PAGE_BYTES + 5 :] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert file.read() == content[2 * PAGE_BYTES + 5 :]
