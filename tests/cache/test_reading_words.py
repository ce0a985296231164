"""Small parts of reading: rules by path, the process's own writes, descriptions of objects."""

from __future__ import annotations

import datetime

import pytest

from stoker.cache.object_metadata import Description
from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule
from stoker.cache.reading.reader import kept_version
from stoker.cache.reading.recent_writes import Writes
from stoker.cache.rules import Rules
from stoker.cache.versions import Strength, Version


@pytest.mark.parametrize(("protocol", "path", "number"), [
    ("s3", "bucket/train/a", 1), ("s3", "bucket/test/a", 3), ("s3a", "bucket/train/a", 1), ("gs", "bucket/train/a", 3),
    ("https", "https://data.example/a", 2), ("http", "http://data.example/a", 3), ("file", "/tmp/a", 0),
    ("local", "/tmp/a", 0),
])  # fmt: skip
def test_the_first_rule_that_fits_counts(protocol: str, path: str, number: int) -> None:
    rules = (
        Rule(pattern="file://*"),
        Rule(pattern="s3://bucket/train/*"),
        Rule(pattern="https://data.example/*"),
        Rule(),
    )
    assert Rules(rules, protocol).of(path)[0] == number


def test_the_default_rules_leave_local_files_and_web_servers_alone() -> None:
    paths = {"file": "/a", "http": "http://h/a", "https": "https://h/a", "s3": "b/a", "memory": "/a"}
    cached = {protocol: Rules(DEFAULT_RULES, protocol).of(path)[1].cached for protocol, path in paths.items()}
    assert cached == {"file": False, "http": False, "https": False, "s3": True, "memory": True}


def test_without_a_rule_that_fits_paths_are_cached_for_a_minute() -> None:
    assert Rules((Rule(pattern="gs://*"),), "s3").of("bucket/a")[1] == Rule()


def test_the_times_of_writes() -> None:
    now = [10.0]
    writes = Writes(lambda: now[0])
    assert not writes
    writes.wrote("/a")
    now[0] = 20.0
    writes.wrote_below("/dir")
    assert writes
    assert [writes.last(path) for path in ("/a", "/b", "/dir", "/dir/x/y", "/dir2")] == [10.0, 0.0, 20.0, 20.0, 0.0]
    now[0] = 30.0
    writes.wrote_below("")
    assert writes.last("/b") == 30.0


def test_too_many_writes_are_remembered_as_one_of_all() -> None:
    now = [0.0]
    writes = Writes(lambda: now[0])
    for number in range(5000):
        now[0] += 1.0
        writes.wrote(f"/{number}")
    assert all(writes.last(f"/{number}") >= number + 1 for number in range(5000))


def test_a_description_is_kept_as_it_was() -> None:
    version = Version(Strength.ETAG, '"e"', 5)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    described = Description(version, {"name": "a", "size": 5, "LastModified": when, "nested": {"x": [1, None]}})
    assert Description.decode(described.encode()) == described
    for unkept in ({"x": object()}, {"x": (1, 2)}, {1: "x"}):
        assert Description.decode(Description(version, unkept).encode()) == Description(version, None)  # type: ignore[arg-type]


def test_paths_that_are_written_once_have_a_version() -> None:
    nameless = Version(Strength.NONE, "", 5)
    assert kept_version(nameless, Rule(freshness=Freshness.IMMUTABLE)).storable
    assert not kept_version(nameless, Rule()).storable
