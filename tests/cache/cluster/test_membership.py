"""Lists and files as membership: what is known is never lost, what is wrong is named."""

from __future__ import annotations

import json
import os
import pickle
import threading
from pathlib import Path

import pytest

from stoker.cache.cluster.membership.joining import check_address, open_membership
from stoker.cache.cluster.membership.membership import FileMembership, KnownRecord
from stoker.cache.cluster.membership.ring import Member, RingRecord
from stoker.core.errors import ConfigError, MembershipError


def ids(record: RingRecord | None) -> list[str]:
    return [] if record is None else [member.id for member in record.members]


def write(path: Path, epoch: int, *names: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"epoch": epoch, "members": [{"id": name} for name in names]}))
    os.replace(beside, path)


def test_a_static_list() -> None:
    membership = open_membership("static:b:7070,a:7070*2.5,/run/c.sock")
    record = membership.record()
    assert record is not None
    assert ids(record) == ["/run/c.sock", "a:7070", "b:7070"]
    assert record.members[1].weight == 2.5
    assert record.members[0].addresses == ("unix:///run/c.sock",)
    membership.join(Member(id="b:7070"))
    with pytest.raises(MembershipError, match="one of the members of the static list"):
        membership.join(Member(id="d:7070"))


@pytest.mark.parametrize(
    "join",
    ["", "static:", "static:a", "static:a:x", "static:a:1*heavy", "static:a:1*0", "etcd://", "etcd://u:p@h:1/c",
     "etcd://h:0", "etcd://h:2379/a b", "file://", "file://other-host/ring.json", "zookeeper://h:1"],
)  # fmt: skip
def test_other_texts_are_refused(join: str) -> None:
    with pytest.raises((ConfigError, ValueError)):
        open_membership(join)


def test_a_file_is_followed_and_its_loss_survived(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    membership = open_membership(f"file://{path}")
    assert membership.record() is None
    write(path, 1, "a")
    assert ids(membership.refresh()) == ["a"]
    write(path, 2, "a", "b")
    assert ids(membership.refresh()) == ["a", "b"]
    path.write_text('{"epoch": 3, "mem')  # an editor that does not rename
    assert ids(membership.refresh()) == ["a", "b"]
    path.unlink()
    assert ids(membership.refresh()) == ["a", "b"]


def test_a_file_without_an_epoch_takes_that_of_its_change(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    write(path, 0, "a")
    membership = FileMembership(path)
    record = membership.record()
    assert record is not None
    assert record.epoch == path.stat().st_mtime_ns


def test_workers_write_themselves_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    members = [Member(id=f"w{number}", addresses=(f"tcp://h:{number + 1}",)) for number in range(8)]
    memberships = [FileMembership(path) for _ in members]
    threads = [
        threading.Thread(target=one.join, args=(member,)) for one, member in zip(memberships, members, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = FileMembership(path).record()
    assert last is not None
    assert last.members == tuple(members)
    assert last.epoch == 8
    memberships[3].leave()
    memberships[3].leave()
    memberships[0].join(members[0])  # already there: no new epoch
    after = FileMembership(path).record()
    assert after is not None
    assert after.epoch == 9
    assert "w3" not in ids(after)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ring.json", "ring.json.lock"]


def test_a_watcher_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    write(path, 1, "a")
    membership = FileMembership(path)
    told: list[list[str]] = []
    twice = threading.Event()

    def changed(record: RingRecord) -> None:
        told.append(ids(record))
        if len(told) == 2:
            twice.set()

    membership.watch(changed)
    write(path, 2, "b")
    assert twice.wait(10)
    membership.close()
    assert told == [["a"], ["b"]]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(MembershipError, match="must be writable"):
        FileMembership(tmp_path / "none" / "ring.json").join(Member(id="a"))


def test_the_last_record_survives_on_disk(tmp_path: Path) -> None:
    known = KnownRecord(tmp_path / "state", "etcd h:2379 c")
    known.learn(RingRecord(epoch=4, members=(Member(id="a"),)))
    known.learn(RingRecord(epoch=3, members=()))
    assert ids(KnownRecord(tmp_path / "state", "etcd h:2379 c").record) == ["a"]
    assert KnownRecord(tmp_path / "state", "etcd other:2379 c").record is None
    (kept,) = (tmp_path / "state").iterdir()
    kept.write_bytes(b"garbage")
    assert KnownRecord(tmp_path / "state", "etcd h:2379 c").record is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [("tcp://h:7070", ("h", 7070)), ("tcp://[::1]:1", ("::1", 1)), ("unix:///a/b", ("/a/b", 0))],
)
def test_addresses(url: str, expected: tuple[str, int]) -> None:
    assert check_address(url) == expected


@pytest.mark.parametrize("url", ["h:7070", "tcp://:7070", "tcp://h", "tcp://h:70700", "unix://relative"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be tcp"):
        check_address(url)


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(MembershipError("`x` is wrong", origin="x")))
    assert error.fields == {"origin": "x"}
