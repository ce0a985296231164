"""Filesystems of pyarrow that a program makes itself: S3 is read through the cache, what cannot be is named."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from stoker.cache.filesystem import arrow_own, routing, unrouted
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule
from tests.cache.s3_server import KEY, SECRET, S3Server

pytestmark = pytest.mark.integration

TABLE = pa.table({"x": list(range(10_000)), "y": [str(number) for number in range(10_000)]})


@pytest.fixture
def made(s3_server: S3Server, tmp_path: Path) -> Iterator[pafs.FileSystem]:
    """What a program makes that knows nothing of the cache, while S3 is routed."""
    routing.install(rules=(Rule(),), directory=tmp_path / "cache", limit_bytes=64 << 20)
    unrouted._made.clear()
    host = s3_server.url.removeprefix("http://")
    yield pafs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, endpoint_override=host, scheme="http", region="eu-west-1"
    )
    routing.uninstall()
    unrouted._made.clear()
    close_page_stores(tmp_path / "cache")


def named(name: str) -> list[str]:
    """Lines of the program that made something of a class, as the report has them."""
    return [made for made in unrouted.unroutable() if made.startswith(f"{name} (")]


def gone(made: pafs.FileSystem, name: str, s3_server: S3Server) -> str:
    """Path of a table that is cached, and no longer in the store."""
    path = f"arrow-own/{name}.parquet"
    s3_server.client.create_bucket(Bucket="arrow-own")
    pq.write_table(TABLE, path, filesystem=made)
    assert pq.read_table(path, filesystem=made).equals(TABLE)
    s3_server.client.delete_object(Bucket="arrow-own", Key=f"{name}.parquet")
    return path


def test_what_a_program_makes_reads_and_writes_through_the_cache(made: pafs.FileSystem, s3_server: S3Server) -> None:
    path = gone(made, "table", s3_server)
    assert pq.read_table(path, filesystem=made).equals(TABLE)
    assert ds.dataset(path, filesystem=made, format="parquet").to_table(columns=["x"]).equals(TABLE.select(["x"]))
    with made.open_input_file(path) as file:
        assert file.read(4) == b"PAR1"
    assert not named("pyarrow.fs.S3FileSystem")


def test_it_is_still_what_the_program_asked_for(made: pafs.FileSystem, s3_server: S3Server) -> None:
    path = gone(made, "pickled", s3_server)
    assert isinstance(made, pafs.S3FileSystem)
    assert isinstance(made, pafs.FileSystem)
    again = pickle.loads(pickle.dumps(made))
    for filesystem in (made, again):
        assert filesystem.region == "eu-west-1"
        assert pq.read_table(path, filesystem=filesystem).equals(TABLE)


def test_options_that_fsspec_has_no_word_for_are_left_to_pyarrow_and_named(made: pafs.FileSystem) -> None:
    own = pafs.S3FileSystem(anonymous=True, region="eu-west-1", connect_timeout=1.0)
    assert type(own) is arrow_own.CLASSES["S3FileSystem"]
    assert isinstance(own, pafs.S3FileSystem)
    assert re.fullmatch(r"pyarrow.fs.S3FileSystem \(test_arrow_own.py:\d+\)", named("pyarrow.fs.S3FileSystem")[0])
    pafs.GcsFileSystem(anonymous=True)
    assert named("pyarrow.fs.GcsFileSystem")


def test_classes_of_a_program_stay_its_own(made: pafs.FileSystem) -> None:
    class Mine(pafs.S3FileSystem):
        pass

    mine = Mine(anonymous=True, region="eu-west-1")
    assert type(mine) is Mine
    assert isinstance(mine, pafs.S3FileSystem)
    assert not isinstance(made, Mine)
    assert named("pyarrow.fs.S3FileSystem")


def test_uninstalling_gives_pyarrow_its_classes_back(made: pafs.FileSystem) -> None:
    routing.uninstall()
    assert all(getattr(pafs, name) is own for name, own in arrow_own.CLASSES.items())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"anonymous": True, "region": None}, {"anon": True}),
        ({"endpoint_override": "h:1"}, {"endpoint_url": "https://h:1"}),
        ({"endpoint_override": "http://h:1", "scheme": "https"}, {"endpoint_url": "http://h:1"}),
        (
            {"access_key": "k", "secret_key": "s", "session_token": "t"},
            {"key": "k", "secret": "s", "token": "t"},
        ),
        ({"role_arn": "r"}, None),
    ],
)
def test_options_in_the_words_of_fsspec(options: dict[str, object], expected: dict[str, object] | None) -> None:
    assert arrow_own.s3_options(options) == expected
