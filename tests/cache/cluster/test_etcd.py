"""Membership over a real etcd: joining, leaving, its death, its silence, and the loss of its data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stoker.cache.cluster.membership import etcd_membership
from stoker.cache.cluster.membership.etcd import Etcd
from stoker.cache.cluster.membership.etcd_membership import EtcdMembership
from stoker.cache.cluster.membership.ring import Member, RingRecord
from stoker.core.errors import MembershipError
from tests.cache.cluster.etcd_server import EtcdServer
from tests.waiting import await_that

pytestmark = pytest.mark.integration

Open = Callable[[str], EtcdMembership]
TIMEOUT_S = 0.5


@pytest.fixture
def opened(etcd: EtcdServer, tmp_path: Path) -> Iterator[Open]:
    """Opens memberships, each with a state folder of its name, and closes them in the end."""
    with ExitStack() as stack:

        def open_one(name: str) -> EtcdMembership:
            membership = EtcdMembership([etcd.endpoint], "test", tmp_path / name, timeout_s=TIMEOUT_S)
            stack.callback(membership.close)
            return membership

        yield open_one


def ids(record: RingRecord | None) -> list[str]:
    return [] if record is None else [member.id for member in record.members]


def test_the_client_speaks_to_etcd(etcd: EtcdServer) -> None:
    client = Etcd(["127.0.0.1:1", etcd.endpoint])  # the first endpoint is dead
    assert client.get("a") is None
    client.put("a/1", b"one")
    lease = client.grant(60)
    client.put("a/2", b"\x00two", lease)
    assert [(item.key, item.value) for item in client.range("a/")] == [("a/1", b"one"), ("a/2", b"\x00two")]
    assert client.keep_alive(lease)
    client.revoke(lease)
    assert not client.keep_alive(lease)
    assert [item.key for item in client.range("a/")] == ["a/1"]
    assert client.swap("new", 0, b"x")
    assert not client.swap("new", 0, b"y")
    item = client.get("new")
    assert item is not None
    assert client.swap("new", item.revision, b"z")
    client.delete("new")
    assert client.get("new") is None
    client.close()
    with pytest.raises(MembershipError, match="must answer"):
        Etcd(["127.0.0.1:1"]).get("a")


def test_workers_come_and_go_and_all_follow_one_record(opened: Open) -> None:
    client, first, second = opened("client"), opened("first"), opened("second")
    told: list[int] = []
    first.watch(lambda record: told.append(record.epoch))
    threads = [
        threading.Thread(target=one.join, args=(Member(id=name),)) for one, name in ((first, "a"), (second, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await_that("both know both", lambda: ids(first.record()) == ids(second.record()) == ["a", "b"])
    assert ids(client.refresh()) == ["a", "b"]
    assert first.record() == second.record() == client.record()
    assert client.alive() == {"a", "b"}
    second.leave()
    # The watch told it, well before the next beat.
    await_that("the other is gone", lambda: ids(first.record()) == ["a"])
    assert told == sorted(set(told))
    assert client.alive() == {"a"}


def test_a_lost_worker_keeps_its_place_but_is_not_alive(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_membership, "ALIVE_TTL_S", (2, 2))
    lost, kept = opened("lost"), opened("kept")
    lost.join(Member(id="lost"))
    kept.join(Member(id="kept"))
    lost.close()  # it ends without leaving
    await_that("the lost one counts as dead", lambda: kept.alive() == {"kept"})
    assert ids(kept.refresh()) == ["kept", "lost"]


def test_etcd_dies_and_the_last_ring_holds(opened: Open, etcd: EtcdServer) -> None:
    worker, client = opened("worker"), opened("client")
    worker.join(Member(id="a"))
    client.refresh()
    etcd.kill()
    assert ids(worker.refresh()) == ids(client.refresh()) == ["a"]
    assert ids(opened("client").record()) == ["a"]  # from its disk
    assert opened("newcomer").record() is None
    with pytest.raises(MembershipError):
        opened("late").join(Member(id="late"))
    etcd.start()
    worker.leave()
    assert ids(client.refresh()) == []


def test_a_silent_etcd_costs_one_time_out_and_never_a_record(opened: Open, etcd: EtcdServer) -> None:
    worker = opened("worker")
    worker.join(Member(id="a"))
    etcd.stop()
    started = time.monotonic()
    assert ids(worker.record()) == ["a"]
    assert time.monotonic() - started < TIMEOUT_S  # that of a call, which it would wait for
    assert ids(opened("client").record()) == []  # a first start waits for the time-out, no longer
    etcd.go_on()


def test_an_etcd_that_lost_its_data_gets_all_places_back(opened: Open, etcd: EtcdServer) -> None:
    first, second = opened("first"), opened("second")
    first.join(Member(id="a"))
    second.join(Member(id="b"))
    await_that("both are in the ring", lambda: ids(first.record()) == ["a", "b"])
    second.close()  # only one worker is there to remember
    before = first.record()
    etcd.lose_data()
    etcd.start()
    await_that("both places are back", lambda: ids(opened("client").record()) == ["a", "b"])
    after = opened("client").record()
    assert after is not None
    assert before is not None
    assert after.epoch > before.epoch
