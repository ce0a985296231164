"""Programs that say ``s3://`` read through the cache, and keep what else the store's own class can do."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs

from stoker.cache.filesystem import routing, unrouted
from stoker.cache.filesystem.files import CachedFile
from stoker.cache.filesystem.routed import Routed
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule
from tests.cache.s3_server import KEY, SECRET, S3Server

pytestmark = pytest.mark.integration

DATA = random.Random(4).randbytes(PAGE_BYTES + 100)
RULES = (Rule(freshness=Freshness.IMMUTABLE),)


@pytest.fixture
def routed(s3_server: S3Server, s3_plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Routes S3; gives the URL of :data:`DATA`."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    path = f"tests/{tmp_path.name}/data"
    s3_plain.pipe(path, DATA)
    routing.install(rules=RULES, directory=tmp_path / "cache", limit_bytes=64 << 20)
    yield f"s3://{path}"
    routing.uninstall()
    close_page_stores(tmp_path / "cache")
    s3fs.S3FileSystem.clear_instance_cache()


def test_fsspec_reads_through_the_cache(routed: str, s3_plain: Any) -> None:
    with fsspec.open(routed) as file:
        assert isinstance(file, CachedFile)
        assert file.read() == DATA
    filesystem, path = fsspec.url_to_fs(routed)
    s3_plain.pipe(path, b"changed behind its back")
    assert filesystem.cat(path) == DATA
    assert filesystem.cat_file(path, 5, 9) == DATA[5:9]
    assert filesystem.info(path)["size"] == filesystem.size(path) == len(DATA)
    assert filesystem.cat_ranges([path, path], [0, 7], [2, 9]) == [DATA[:2], DATA[7:9]]
    assert filesystem.stoker.reader.counts.fetched_bytes == len(DATA)


def test_the_class_is_still_the_stores(routed: str) -> None:
    filesystem, path = fsspec.url_to_fs(routed)
    assert isinstance(filesystem, s3fs.S3FileSystem)
    assert not isinstance(filesystem, StokerFileSystem)
    assert "Signature" in filesystem.sign(path)
    filesystem.put_tags(path, {"a": "b"})
    assert filesystem.get_tags(path) == {"a": "b"}
    assert path in filesystem.find(path.rpartition("/")[0])
    again = pickle.loads(pickle.dumps(filesystem))
    assert again.cat_file(path, 0, 4) == DATA[:4]


def test_a_filesystem_that_is_made_by_its_class_reads_through_the_cache(routed: str, s3_plain: Any) -> None:
    path = routed.removeprefix("s3://")
    made: list[Any] = [s3fs.S3FileSystem(), s3fs.core.S3FileSystem(False, skip_instance_cache=True)]
    for filesystem in made:
        assert isinstance(filesystem, s3fs.S3FileSystem)
        assert filesystem.cat(path) == DATA
        with filesystem.open(path) as file:
            assert isinstance(file, CachedFile)
        assert pickle.loads(pickle.dumps(filesystem)).cat_file(path, 0, 4) == DATA[:4]
        # What reads for the cache is the store's own.
        assert type(filesystem.stoker.target) is s3fs.S3FileSystem
        s3_plain.pipe(path, b"changed behind its back")
    routing.uninstall()
    assert type(s3fs.S3FileSystem()) is s3fs.S3FileSystem


CALLS: dict[str, Callable[..., Any]] = {
    "filesystem": lambda path, **given: fsspec.filesystem("s3", **given).cat(path),
    "open": lambda path, **given: fsspec.open(f"s3://{path}", **given).open().read(),
    "cat": lambda path, **given: fsspec.filesystem("s3").cat(path, **given),
    "cat_file": lambda path, **given: fsspec.filesystem("s3").cat_file(path, **given),
    "cat_ranges": lambda path, **given: fsspec.filesystem("s3").cat_ranges([path], [0], [1], **given),
    "exists": lambda path, **given: fsspec.filesystem("s3").exists(path, **given),
    "info": lambda path, **given: fsspec.filesystem("s3").info(path, **given),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("option", ["hf", "block_size"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_what_the_store_refuses_is_refused(routed: str, name: str, option: str, is_cached: bool) -> None:
    path = routed.removeprefix("s3://")
    if is_cached:
        assert CALLS[name](path)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        CALLS[name](path, **{option: 1})


def test_a_class_with_a_metaclass_of_its_own_is_routed_alike(routed: str) -> None:
    """Hugging Face's has one, whose call asks nobody above it."""
    from huggingface_hub import HfFileSystem

    assert isinstance(HfFileSystem(skip_instance_cache=True), Routed)

    class Meta(type(HfFileSystem)):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return type.__call__(cls, *args, **kwargs)

    class Late(s3fs.S3FileSystem, metaclass=Meta):
        """Made after the routing was."""

    unrouted._made.clear()
    assert not isinstance(Late(), Routed)
    assert any("Late" in made for made in unrouted.unroutable())
    unrouted._made.clear()
    routing.uninstall()
    assert not isinstance(HfFileSystem(skip_instance_cache=True), Routed)
    assert "routed_call" not in Meta.__call__.__qualname__


class OwnS3(s3fs.S3FileSystem):
    """As programs have them."""


def test_a_class_of_the_programs_own_is_left_alone_and_named_with_its_line(routed: str) -> None:
    unrouted._made.clear()
    filesystem, line = OwnS3(skip_instance_cache=True), sys._getframe().f_lineno
    assert filesystem.cat(routed) == DATA
    assert not hasattr(filesystem, "stoker")
    assert f"{OwnS3.__module__}.OwnS3 (test_routing.py:{line})" in unrouted.unroutable()
    unrouted._made.clear()


def test_awaited_reads_go_through_the_cache(routed: str, s3_plain: Any) -> None:
    from fsspec.asyn import sync

    filesystem, path = fsspec.url_to_fs(routed)
    assert sync(filesystem.loop, filesystem._cat_file, path, 1, 5) == DATA[1:5]
    s3_plain.rm(path)
    assert sync(filesystem.loop, filesystem._cat_file, path, 1, 5) == DATA[1:5]


def test_writes_are_seen(routed: str, s3_plain: Any, tmp_path: Path) -> None:
    filesystem, path = fsspec.url_to_fs(routed)
    assert filesystem.cat(path) == DATA
    with filesystem.open(path, "wb") as file:
        file.write(b"new")
    assert filesystem.cat(path) == s3_plain.cat(path) == b"new"
    filesystem.pipe_file(path, b"newer")
    assert filesystem.cat(path) == b"newer"
    filesystem.get(path, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"newer"
    assert [entry["size"] for entry in filesystem.ls(path.rpartition("/")[0], detail=True)] == [5]
    filesystem.rm(path)
    assert not filesystem.exists(path)


def test_uninstalling_restores_everything(routed: str) -> None:
    routing.uninstall()
    assert type(fsspec.filesystem("s3")) is s3fs.S3FileSystem
    assert routing.INSTALL_VARIABLE not in os.environ
    assert routing.installed() is None


def test_web_servers_are_routed_by_rule_alone(tmp_path: Path) -> None:
    for rules, expected in [(DEFAULT_RULES, False), ((Rule(pattern="https://data.example/*"), *DEFAULT_RULES), True)]:
        routing.install(rules=rules, directory=tmp_path / "cache", limit_bytes=64 << 20)
        try:
            found = routing.installed()
            assert found is not None
            assert ("https" in found.protocols) is expected
            assert routing.Routing.from_json(found.to_json()) == found
        finally:
            routing.uninstall()


def test_a_missing_package_is_named_as_without_the_cache(routed: str) -> None:
    with pytest.raises(ImportError, match="Please install gcsfs"):
        fsspec.filesystem("gs")


def test_child_interpreters_install_by_environment(routed: str) -> None:
    fsspec.url_to_fs(routed)[0].cat(routed)
    program = (
        "from stoker.cache.filesystem import routing; assert routing.install_from_environment(); import fsspec\n"
        f"filesystem, path = fsspec.url_to_fs({routed!r})\n"
        "assert len(filesystem.cat(path)) == 1048676\n"
        "assert filesystem.stoker.reader.counts.fetched_bytes == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_cannot_be_routed_is_named() -> None:
    assert unrouted.unroutable(["boto3", "os", "polars"]).keys() == {"boto3", "polars"}


def test_what_an_install_says_reaches_filesystems(tmp_path: Path) -> None:
    join = f"file://{tmp_path}/ring.json"
    try:
        routing.install(directory=tmp_path / "cache", verify="first-touch", join=join, timeout_s=2.5)
        found = routing.installed()
        assert found is not None
        assert routing.Routing.from_json(found.to_json()) == found
        cached = fsspec.filesystem("s3", anon=True, skip_instance_cache=True).stoker
        assert cached.pages.settings.verify == "first-touch"
        assert cached.reader.fetcher.peers.settings.timeout_s == 2.5
    finally:
        routing.uninstall()
        close_page_stores(tmp_path / "cache")
