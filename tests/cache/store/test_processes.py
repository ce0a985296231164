"""Many processes on one directory: killed, stopped, forked, and in each other's way."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from stoker.cache.names import pages_of
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.locks import EVICT, PUBLISH, LockFile, try_lock
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import CacheBusyError
from tests.cache.store import storing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def test_a_killed_writer_leaves_whole_pages(tmp_path: Path) -> None:
    rng = random.Random(1)
    kept: list[int] = []
    for attempt in range(15):
        ready, tell = os.pipe()
        process = storing.CONTEXT.Process(
            target=storing.work, args=(tmp_path, attempt, 20.0, "lru", functools.partial(os.write, tell, b"x"))
        )
        process.start()
        os.read(ready, 1)
        deadline = time.monotonic() + rng.uniform(0.0, 0.25)
        while time.monotonic() < deadline:
            os.read(ready, 1000)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        os.close(ready)
        os.close(tell)
        begun = time.monotonic()
        with PageStore(tmp_path, storing.settings()) as store:
            kept.append(storing.check_all(store))
            assert storing.insist(store, storing.OBJECTS, 1)
            assert storing.check(store, storing.OBJECTS) is not None
        assert time.monotonic() - begun < 5.0
        assert storing.disk_bytes(tmp_path) <= storing.LIMIT
    assert kept[-1] > 50


@pytest.mark.parametrize("policy", ["lru", "epoch"])
def test_four_processes_under_eviction(tmp_path: Path, policy: str) -> None:
    processes = [storing.CONTEXT.Process(target=storing.work, args=(tmp_path, n, 2.0, policy)) for n in range(4)]
    for process in processes:
        process.start()
    most = 0
    while any(process.is_alive() for process in processes):
        most = max(most, storing.disk_bytes(tmp_path))
        processes[0].join(0.05)
    assert [process.exitcode for process in processes] == [0] * 4
    assert most <= storing.LIMIT
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.check_all(store) > 50


def test_children_forked_with_locks_held(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(100, 120):
            storing.put(store, i, 1)
        key = storing.name_of(100).key(0)
        locks = store._locks  # pyright: ignore[reportPrivateUsage]
        with store.filling(key), locks.publishing(1.0) as held, locks.evicting() as evicting:
            assert held
            assert evicting
            child = os.fork()
            if not child:
                # The locks are the parent's: reading goes on, writing is refused, nothing hangs.
                read = all(storing.check(store, i) == 1 for i in range(100, 120))
                busy = not try_lock(locks.fd, PUBLISH) and not try_lock(locks.fd, EVICT)
                os._exit(0 if read and busy else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        children: list[int] = []
        for n in range(3):
            child = os.fork()
            if not child:
                storing.put(store, 130 + n, 2)
                os._exit(0 if storing.check(store, 130 + n) == 2 else 1)
            children.append(child)
            storing.put(store, 140 + n, 2)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
        assert [storing.check(store, 130 + n) for n in range(3)] == [2, 2, 2]
        assert [storing.check(store, 140 + n) for n in range(3)] == [2, 2, 2]


def test_a_child_forked_under_the_lock_takes_it_anew(tmp_path: Path) -> None:
    locks = LockFile(tmp_path / "locks")
    with locks.publishing(1.0):
        child = os.fork()
    if not child:
        with locks.publishing(10.0) as held:
            other = LockFile(tmp_path / "locks")
            os._exit(0 if held and not try_lock(other.fd, PUBLISH) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with locks.publishing(1.0) as held:
        assert held
    locks.close()


def test_a_lock_does_not_outlive_its_holder_in_a_child(tmp_path: Path) -> None:
    """The parent dies with all locks held; its child, which shared its descriptions, lives on."""
    ready, tell = os.pipe()
    parent = os.fork()
    if not parent:
        store = PageStore(tmp_path, storing.settings())
        storing.put(store, 100, 1)
        locks = store._locks  # pyright: ignore[reportPrivateUsage]
        filling = store.filling(storing.name_of(1).key(0))
        filling.__enter__()
        locks.publishing(1.0).__enter__()
        if child := os.fork():
            os.write(tell, child.to_bytes(4, "little"))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
        os._exit(0)
    child = int.from_bytes(os.read(ready, 4), "little")
    os.waitpid(parent, 0)
    try:
        begun = time.monotonic()
        with PageStore(tmp_path, storing.settings()) as store, store.filling(storing.name_of(1).key(0)):
            assert storing.put(store, 101, 1)
            assert storing.check(store, 100) == 1
        assert time.monotonic() - begun < 5.0
    finally:
        os.kill(child, signal.SIGKILL)


def stopped_holder(directory: Path, byte: int) -> int:
    """A process that holds a lock of the store and is stopped."""
    child = os.fork()
    if not child:
        locks = LockFile(directory / "locks")
        assert try_lock(locks.fd, byte)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    return child


def test_the_holder_of_the_evict_lock_is_stopped(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(storing.LARGE, storing.OBJECTS):
            storing.put(store, i, 1)
        child = stopped_holder(tmp_path, EVICT)
        try:
            begun = time.monotonic()
            before = storing.check_all(store)
            assert before > 50
            refused = [not storing.put(store, i, 2) for i in range(storing.LARGE, storing.OBJECTS)]
            assert any(refused)
            assert storing.disk_bytes(tmp_path) <= storing.LIMIT
            assert time.monotonic() - begun < 10.0
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert all(storing.insist(store, i, 3) for i in range(300, 310))


def test_the_holder_of_the_publish_lock_is_stopped(tmp_path: Path) -> None:
    settings = StoreSettings(limit_bytes=storing.LIMIT, keep_free_frac=0.0, lock_wait_s=0.1)
    with PageStore(tmp_path, settings) as store:
        assert storing.put(store, 100, 1)
        child = stopped_holder(tmp_path, PUBLISH)
        try:
            assert storing.check(store, 100) == 1
            assert not storing.put(store, 101, 1)
            with PageStore(tmp_path, settings) as opened_now:
                assert storing.check(opened_now, 100) == 1
            with pytest.raises(CacheBusyError, match="stopped process"):
                store.drop(storing.name_of(100).key(0))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert storing.put(store, 101, 1)
        store.drop(storing.name_of(100).key(0))
        assert storing.check(store, 100) is None


def test_a_stopped_reader_costs_room_and_not_what_is_there(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(100, 300):
            assert storing.put(store, i, 1)
        child = os.fork()
        if not child:
            storing.check_all(store)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        try:
            before = storing.check_all(store)
            for i in range(300, 400):
                storing.put(store, i, 1)
                time.sleep(0.002)
            assert storing.disk_bytes(tmp_path) <= storing.LIMIT
            assert storing.check_all(store) >= 0.5 * before
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert all(storing.insist(store, i, 2) for i in range(300, 400))


def test_one_process_fetches_a_page_at_a_time(tmp_path: Path) -> None:
    """Each looks up again once inside: one fetch in total."""
    fetched, tell = os.pipe()

    def fetch() -> None:
        with PageStore(tmp_path, storing.settings()) as store:
            for i in range(100, 120):
                with store.filling(storing.name_of(i).key(0)):
                    if storing.check(store, i) is None:
                        os.write(tell, b"x")
                        storing.put(store, i, 1)

    processes = [storing.CONTEXT.Process(target=fetch) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(os.read(fetched, 1000)) == 20


def test_a_killed_filler_lets_the_next_one_in(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with PageStore(tmp_path, storing.settings()).filling(b"k" * 16):
            os.write(tell, b"x")
            time.sleep(30)
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    begun = time.monotonic()
    with PageStore(tmp_path, storing.settings()) as store, store.filling(b"k" * 16):
        assert time.monotonic() - begun < storing.settings().filling_wait_s / 2


def test_a_stopped_filler_is_waited_for_once(tmp_path: Path) -> None:
    """It holds many pages of an object, and each of them is wanted."""
    keys = [bytes([number]) * 16 for number in range(20)]
    settings = StoreSettings(limit_bytes=storing.LIMIT, keep_free_frac=0.0, filling_wait_s=0.3)
    with PageStore(tmp_path, settings) as store:
        child = os.fork()
        if not child:
            with contextlib.ExitStack() as stack:
                for key in keys:
                    stack.enter_context(store.filling(key))
                os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        try:
            begun = time.monotonic()
            for key in keys:
                with store.filling(key):
                    pass
            assert 0.3 <= time.monotonic() - begun < 10 * 0.3  # waited for each time it would be twenty
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_threads_share_a_store(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(250):
                i = rng.randrange(storing.OBJECTS)
                index = rng.choice(pages_of(0, storing.size_of(i)))
                if storing.check(store, i, index) is None or rng.random() < 0.1:
                    storing.put(store, i, rng.randrange(8), index)
        except BaseException as error:
            failures.append(error)

    with PageStore(tmp_path, storing.settings()) as store:
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert storing.check_all(store) > 50
        assert storing.disk_bytes(tmp_path) <= storing.LIMIT
