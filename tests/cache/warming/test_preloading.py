import threading
from collections.abc import Callable

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.cache.warm.preloading import Warming, list_items
from stoker.cache.warm.warm_plan import Account
from tests.cache.s3_server import S3Server

Make = Callable[..., StokerFileSystem]
CONTENT = bytes(range(256)) * (PAGE_BYTES // 64)  # four pages


def fill(memory: MemoryFileSystem) -> None:
    memory.pipe({"/data/small/a": b"a" * 10, "/data/small/b": b"b" * 20, "/data/empty": b"", "/data/large": CONTENT})


def warmed(filesystem: StokerFileSystem, path: str, jobs: int = 4) -> Account:
    account = Account()
    listing = list_items(filesystem, path)
    account.plan(listing.items)
    warming = Warming(filesystem.reader, account)
    warming.run(listing, jobs)
    warming.check()
    return account


def test_a_folder_is_read_without_the_store_afterwards(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory", rules=(Rule(freshness=Freshness.IMMUTABLE),))
    account = warmed(filesystem, "/data")
    assert (account.planned.objects, account.planned.num_bytes) == (4, 30 + len(CONTENT))
    assert account.fetched.objects == 4
    assert account.is_complete
    before = filesystem.reader.counts.fetched_bytes
    assert before == 30 + len(CONTENT)
    assert filesystem.cat_file("/data/large") == CONTENT
    assert filesystem.cat("/data/small/a") == b"a" * 10
    assert filesystem.reader.counts.fetched_bytes == before


def test_what_is_there_is_not_fetched_again(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory")
    filesystem.cat_file("/data/large", PAGE_BYTES, 2 * PAGE_BYTES)
    first = warmed(filesystem, "/data/large")
    assert first.fetched.objects == 1
    assert filesystem.reader.counts.fetched_bytes == len(CONTENT)
    again = warmed(make("memory"), "/data")
    assert (again.present.objects, again.fetched.objects) == (1, 3)
    assert warmed(make("memory"), "/data").present.objects == 4


def test_a_pattern_and_folders_that_fit_it(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory")
    assert warmed(filesystem, "/data/*").planned.objects == 4
    assert warmed(filesystem, "/data/small/?").planned.objects == 2
    with pytest.raises(FileNotFoundError):
        list_items(filesystem, "/none")


def test_a_change_of_the_source_is_fetched(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    warmed(make("memory"), "/data")
    memory.pipe("/data/large", CONTENT[::-1])
    filesystem = make("memory", rules=(Rule(freshness=Freshness.ALWAYS),))
    assert warmed(filesystem, "/data/large").fetched.objects == 1
    assert filesystem.cat_file("/data/large") == CONTENT[::-1]


def test_objects_that_cannot_be_read_stop_nothing(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory")
    listing = list_items(filesystem, "/data")
    memory.rm("/data/small/a")
    account = Account()
    account.plan(listing.items)
    Warming(filesystem.reader, account).run(listing, 2)
    assert (account.fetched.objects, account.failed.objects) == (3, 1)
    assert account.failures[0][0] == "/data/small/a"
    assert not account.is_complete


def test_paths_that_no_rule_caches_are_said(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory", rules=(Rule(pattern="memory:///data/small/*", cached=False), Rule()))
    account = warmed(filesystem, "/data")
    assert (account.uncached.objects, account.fetched.objects) == (2, 2)
    assert filesystem.reader.counts.fetched_bytes == len(CONTENT)


def test_a_cache_that_is_too_small_says_how_much_did_not_fit(make: Make, memory: MemoryFileSystem) -> None:
    memory.pipe({f"/data/{number:02d}": bytes([number]) * PAGE_BYTES for number in range(24)})
    filesystem = make("memory", limit_bytes=20 << 20)
    account = warmed(filesystem, "/data")
    assert account.refused.objects > 0
    assert account.refused.objects + account.fetched.objects == account.planned.objects == 24
    assert not account.is_complete


def test_an_interruption_ends_what_was_begun(make: Make, memory: MemoryFileSystem) -> None:
    fill(memory)
    filesystem = make("memory")
    listing = list_items(filesystem, "/data")
    account = Account()
    account.plan(listing.items)
    reported = threading.Event()

    def report(num_bytes: int, moved: bool) -> None:
        reported.set()
        warming.stop()

    warming = Warming(filesystem.reader, account, report)
    warming.run(listing, 1)
    assert reported.is_set()
    assert 0 < account.unfinished < 4
    assert warmed(filesystem, "/data").is_complete


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_a_listing_of_s3_confirms_without_a_question_per_object(make: Make, s3_server: S3Server) -> None:
    s3_server.client.create_bucket(Bucket="warming")
    for number in range(10):
        s3_server.client.put_object(Bucket="warming", Key=f"train/{number}", Body=b"x" * 100)
    rules = (Rule(max_age_s=0.0),)
    filesystem = make("s3", s3_server.options, rules=rules)
    assert warmed(filesystem, "warming/train").fetched.objects == 10
    assert filesystem.reader.counts.requests == 10
    fresh = make("s3", s3_server.options, rules=(Rule(max_age_s=30.0),))
    for name in [f"warming/train/{number}" for number in range(10)]:
        key = fresh.reader.name(name).key(0xFFFFFFFF)
        entry = fresh.pages.lookup(key)
        assert entry is not None
    account = warmed(fresh, "warming/train")
    assert account.present.objects == 10
    assert (fresh.reader.counts.requests, fresh.reader.counts.checks) == (0, 0)
