"""Writes reach the store, are seen by the next read, and leave the object alone when they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.policies import Freshness, Rule

Make = Callable[..., StokerFileSystem]
FOREVER = (Rule(freshness=Freshness.IMMUTABLE),)


class OnPurposeError(Exception):
    """Ends a write."""


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=pytest.mark.integration)])
def written(request: pytest.FixtureRequest, make: Make, memory: MemoryFileSystem, tmp_path: Path) -> Any:
    """A filesystem that never asks again, the store's own, and a path with the content ``old`` that is cached."""
    path = {"memory": "/dir/data", "file": str(tmp_path / "data"), "s3": f"tests/{tmp_path.name}/data"}[request.param]
    if request.param == "s3":
        plain = request.getfixturevalue("s3_plain")
        filesystem = request.getfixturevalue("s3_make")(FOREVER)
    else:
        plain = fsspec.filesystem(request.param)
        filesystem = make(request.param, rules=FOREVER)
    plain.pipe(path, b"old")
    assert filesystem.cat(path) == b"old"
    return filesystem, plain, path


def test_what_was_written_is_read(written: Any) -> None:
    filesystem, plain, path = written
    for content in (b"new", b"even newer"):
        with filesystem.open(path, "wb") as file:
            file.write(content)
        assert plain.cat(path) == content
        assert filesystem.cat(path) == content
        assert filesystem.info(path)["size"] == len(content)
    filesystem.pipe(path, b"piped")
    assert filesystem.cat(path) == b"piped"
    filesystem.rm(path)
    assert not filesystem.exists(path)
    with pytest.raises(FileNotFoundError):
        filesystem.cat(path)
    with filesystem.open(path, "w") as file:
        file.write("text")
    assert filesystem.cat(path) == b"text"


def test_nothing_is_cached_of_written_bytes(written: Any) -> None:
    filesystem, _, path = written
    filesystem.pipe(path, b"new")
    before = filesystem.reader.counts.fetched_bytes
    filesystem.cat(path)
    assert filesystem.reader.counts.fetched_bytes == before + 3


def test_copies_and_moves_are_seen(written: Any) -> None:
    filesystem, _, path = written
    other = path + "-other"
    filesystem.pipe(other, b"other")
    assert filesystem.cat(other) == b"other"
    filesystem.cp(path, other)
    assert filesystem.cat(other) == b"old"
    filesystem.pipe(path, b"new")
    filesystem.mv(path, other)
    assert filesystem.cat(other) == b"new"
    assert not filesystem.exists(path)


def test_a_removed_tree_is_gone(written: Any) -> None:
    filesystem, _, path = written
    parent = filesystem._parent(path)
    filesystem.makedirs(f"{parent}/tree", exist_ok=True)
    filesystem.pipe({f"{parent}/tree/a": b"a", f"{parent}/tree/b": b"b"})
    assert filesystem.cat(f"{parent}/tree/*") == {f"{parent}/tree/a": b"a", f"{parent}/tree/b": b"b"}
    filesystem.rm(f"{parent}/tree", recursive=True)
    for name in ("a", "b"):
        assert not filesystem.exists(f"{parent}/tree/{name}")
        with pytest.raises(FileNotFoundError):
            filesystem.cat(f"{parent}/tree/{name}")


def write_half(opened: Any, content: Any) -> None:
    with opened as file:
        file.write(content)
        raise OnPurposeError


def fail_in_transaction(filesystem: StokerFileSystem, path: str) -> None:
    with filesystem.transaction:
        with filesystem.open(path, "wb") as file:
            file.write(b"none")
        raise OnPurposeError


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("by_url", [False, True])
def test_a_failed_write_leaves_the_object_alone(written: Any, mode: str, compression: str | None, by_url: bool) -> None:
    filesystem, plain, path = written
    content: Any = b"half" if mode == "wb" else "half"

    def opened() -> Any:
        if by_url:
            return fsspec.core.OpenFile(filesystem, path, mode, compression=compression)
        return filesystem.open(path, mode, compression=compression)

    with pytest.raises(OnPurposeError):
        write_half(opened(), content)
    assert plain.cat(path) == b"old"
    assert filesystem.cat(path) == b"old"
    with opened() as file:
        file.write(content)
    assert plain.cat(path) != b"old"


def test_a_long_failed_upload_is_given_up(written: Any) -> None:
    filesystem, plain, path = written
    with pytest.raises(OnPurposeError):
        write_half(filesystem.open(path, "wb", block_size=5 << 20), bytes(12 << 20))
    assert plain.cat(path) == b"old"
    if filesystem.spec.protocol == "s3":
        assert not plain.list_multipart_uploads("tests")


def test_a_write_while_another_error_is_handled_is_completed(written: Any) -> None:
    filesystem, plain, path = written
    try:
        raise OnPurposeError
    except OnPurposeError:
        with filesystem.open(path, "wb") as file:
            file.write(b"log")
    assert plain.cat(path) == b"log"


def test_transactions(written: Any) -> None:
    filesystem, plain, path = written
    with filesystem.transaction, filesystem.open(path, "wb") as file:
        file.write(b"new")
    assert plain.cat(path) == b"new"
    assert filesystem.cat(path) == b"new"
    with pytest.raises(OnPurposeError):
        fail_in_transaction(filesystem, path)
    assert plain.cat(path) == b"new"


def test_changes_in_place_and_at_the_end_are_seen(written: Any) -> None:
    filesystem, plain, path = written
    with filesystem.open(path, "ab") as file:
        file.write(b"+more")
    assert filesystem.cat(path) == plain.cat(path) == b"old+more"
    if filesystem.spec.protocol == "file":
        with filesystem.open(path, "r+b") as file:
            assert file.read(2) == b"ol"
            file.write(b"D")
        assert filesystem.cat(path) == b"olD+more"
        with pytest.raises(OSError, match="read"), filesystem.open(path, "wb") as file:
            file.read()


def test_exclusive_creation(written: Any) -> None:
    filesystem, _, path = written
    with pytest.raises(FileExistsError):
        filesystem.open(path, "xb")
    with pytest.raises(FileExistsError):
        filesystem.pipe_file(path, b"data", mode="create")


def test_invalidating_asks_again(written: Any) -> None:
    filesystem, plain, path = written
    plain.pipe(path, b"outside")
    assert filesystem.cat(path) == b"old"  # written once, says the rule
    filesystem.invalidate_cache(path)
    assert filesystem.cat(path) == b"outside"
    plain.pipe(path, b"again")
    filesystem.invalidate_cache()
    assert filesystem.cat(path) == b"again"
