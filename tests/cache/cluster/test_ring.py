"""The ring: the same for everyone, balanced, and moving no more than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HASH, HashRing, Member, RingRecord, decode_record, newest
from stoker.cache.names import ObjectName
from stoker.core.errors import MembershipError


def ring_of(*ids: str, epoch: int = 1, points: int = 1000, weights: dict[str, float] | None = None) -> HashRing:
    members = tuple(Member(id=name, weight=(weights or {}).get(name, 1.0)) for name in ids)
    return HashRing(RingRecord(epoch=epoch, members=members, points=points))


def chunks(count: int) -> list[tuple[ObjectName, int]]:
    return [(ObjectName("s3||", f"bucket/part-{number // 4:05}"), number % 4 * CHUNK_PAGES) for number in range(count)]


def test_positions_are_those_of_every_release() -> None:
    """Golden: other values would empty every running cluster's caches at an update."""
    ring = ring_of("alpha", "beta", "gamma")
    pages = [("bucket/a", 0), ("bucket/a", 63), ("bucket/a", 64), ("bucket/b", 0), ("bucket/b", 6400), ("c/é", 1)]
    found = [ring.owners(ObjectName("s3|https://s3.example|", path), index, 3) for path, index in pages]
    assert found == GOLDEN


GOLDEN = [
    ["beta", "gamma", "alpha"],
    ["beta", "gamma", "alpha"],
    ["beta", "gamma", "alpha"],
    ["gamma", "alpha", "beta"],
    ["beta", "alpha", "gamma"],
    ["beta", "alpha", "gamma"],
]


def test_neighbouring_pages_have_one_owner() -> None:
    ring = ring_of("a", "b", "c")
    name = ObjectName("s3||", "bucket/key")
    assert len({tuple(ring.owners(name, index, 2)) for index in range(CHUNK_PAGES)}) == 1
    assert len({ring.owners(name, index)[0] for index in range(0, 100 * CHUNK_PAGES, CHUNK_PAGES)}) == 3


def test_order_of_the_record_does_not_matter() -> None:
    one, other = ring_of("a", "b", "c"), ring_of("c", "a", "b")
    assert all(one.owners(*chunk, 3) == other.owners(*chunk, 3) for chunk in chunks(200))


@pytest.mark.parametrize("num_members", [2, 8, 32])
def test_shares_are_balanced(num_members: int) -> None:
    shares = ring_of(*(f"worker-{number}" for number in range(num_members))).shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) * num_members < 1.12


def test_weights_scale_shares() -> None:
    shares = ring_of("small", "large", "usual", weights={"small": 0.5, "large": 2.0}).shares()
    assert shares["large"] / shares["usual"] == pytest.approx(2.0, rel=0.15)
    assert shares["small"] / shares["usual"] == pytest.approx(0.5, rel=0.15)


@given(
    ids=st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=8), min_size=2, max_size=6),
    data=st.data(),
)
def test_a_member_that_leaves_moves_only_its_own_chunks(ids: set[str], data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from(sorted(ids)))
    before = ring_of(*ids, points=50)
    after = ring_of(*(ids - {leaving}), points=50)
    for chunk in chunks(60):
        first, *rest = before.owners(*chunk, len(ids))
        assert after.owners(*chunk)[0] == (rest[0] if first == leaving else first)


@given(
    ids=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5, unique=True),
    count=st.integers(1, 8),
    index=st.integers(0, 10**7),
    path=st.text(max_size=20),
)
def test_owners_are_different_and_as_many_as_there_are(ids: list[str], count: int, index: int, path: str) -> None:
    owners = ring_of(*ids, points=20).owners(ObjectName("file||host", path), index, count)
    assert len(owners) == len(set(owners)) == min(count, len(ids))
    assert set(owners) <= set(ids)


def test_an_empty_ring_has_no_owner() -> None:
    assert ring_of().owners(ObjectName("s3||", "a/b"), 0, 2) == []
    assert ring_of().shares() == {}


def test_records_survive_json() -> None:
    record = RingRecord(epoch=7, members=(Member(id="a", addresses=("tcp://a:7070",), weight=2.5, machine="m"),))
    assert decode_record(record.encode(), "ring.json") == record
    assert record.hash == HASH


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"epoch": 1}',
        b'{"epoch": -1, "members": []}',
        b'{"epoch": 1, "members": [], "hash": "murmur3"}',
        b'{"epoch": 1, "members": [{"id": "a"}, {"id": "a"}]}',
        b'{"epoch": 1, "members": [{"id": "a", "weight": 0}]}',
        b'{"epoch": 1, "members": [{"id": ""}]}',
        b'{"epoch": 1, "members": [], "points": 0}',
        b"[" * 5000,
    ],
)
def test_other_records_are_refused(text: bytes) -> None:
    with pytest.raises(MembershipError, match=r"ring\.json"):
        decode_record(text, "ring.json")


def test_the_higher_epoch_holds() -> None:
    old, new = RingRecord(epoch=1, members=()), RingRecord(epoch=2, members=())
    assert newest(old, new) is new
    assert newest(new, old) is new
    assert newest(None, old) is old
    assert newest(old, None) is old
