"""Stale objects of a folder are confirmed by one listing; changed ones are still found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.policies import Rule
from stoker.cache.reading.reader import Reader
from stoker.cache.reading.revalidation import ASKED_SINGLY
from stoker.cache.sources.opening import SourceHolder, SourceSpec
from stoker.cache.sources.s3 import S3Source
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version
from tests.cache.s3_server import S3Server

pytestmark = pytest.mark.integration

NUM_OBJECTS = 30
MAX_AGE_S = 60.0


@pytest.fixture
def stale(s3_server: S3Server, s3_plain: Any, tmp_path: Path) -> Iterator[tuple[Reader, list[str], list[float]]]:
    """A reader whose cache has objects of a folder, all of them too old; the clock."""
    now = [1e9]
    paths = [f"tests/{tmp_path.name}/{number:02}" for number in range(NUM_OBJECTS)]
    s3_plain.pipe({path: path.encode() for path in paths})
    with PageStore(tmp_path / "cache", StoreSettings(limit_bytes=64 << 20)) as pages:
        holder = SourceHolder(SourceSpec("s3", s3_server.options))
        reader = Reader(pages, holder, (Rule(max_age_s=MAX_AGE_S),), clock=lambda: now[0])
        for path in paths:
            assert reader.read(path) == path.encode()
        now[0] += 2 * MAX_AGE_S
        reader.counts.checks = reader.counts.requests = 0
        yield reader, paths, now


def test_one_listing_answers_for_a_folder(stale: tuple[Reader, list[str], list[float]]) -> None:
    reader, paths, _ = stale
    for path in paths:
        assert reader.read(path) == path.encode()
    assert (reader.counts.checks, reader.counts.requests) == (ASKED_SINGLY, 0)


def test_who_may_not_list_is_answered_object_by_object(
    stale: tuple[Reader, list[str], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, paths, _ = stale
    listed: list[str] = []

    def denied(self: S3Source, folder: str, most: int) -> dict[str, Version]:
        listed.append(folder)
        raise PermissionError("Access Denied")

    monkeypatch.setattr(S3Source, "versions", denied)
    for path in paths:
        assert reader.read(path) == path.encode()
    assert (reader.counts.checks, len(listed)) == (NUM_OBJECTS, 1)


def test_a_changed_object_is_found(stale: tuple[Reader, list[str], list[float]], s3_plain: Any) -> None:
    reader, paths, now = stale
    s3_plain.pipe(paths[-1], paths[-1].upper().encode())
    s3_plain.rm(paths[-2])
    for path in paths[:-2]:
        assert reader.read(path) == path.encode()
    assert reader.read(paths[-1]) == paths[-1].upper().encode()
    with pytest.raises(FileNotFoundError):
        reader.read(paths[-2])
    s3_plain.pipe(paths[0], b"later")
    now[0] += MAX_AGE_S + 1
    assert reader.read(paths[0]) == b"later"


def test_a_program_sees_its_own_writes_whatever_was_listed(stale: tuple[Reader, list[str], list[float]]) -> None:
    reader, paths, now = stale
    for path in paths:
        reader.read(path)
    now[0] += 1
    reader.holder.get().target.pipe(paths[3], b"mine")
    reader.wrote_below(paths[3].rpartition("/")[0])
    now[0] += 1
    assert reader.read(paths[3]) == b"mine"
