"""What a program reads through the filesystem: the same bytes as from the store, asked of it once."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES

Make = Callable[..., StokerFileSystem]
DATA = random.Random(1).randbytes(5 * PAGE_BYTES + 12345)


class Asked:
    """Counts what is asked of a filesystem's store from now on."""

    def __init__(self, filesystem: StokerFileSystem) -> None:
        self._counts = filesystem.reader.counts
        self._before = (self._counts.requests, self._counts.checks)

    def __call__(self) -> tuple[int, int]:
        """Requests for bytes, and questions for a version."""
        return self._counts.requests - self._before[0], self._counts.checks - self._before[1]


@pytest.fixture(params=["memory", "file"])
def stored(request: pytest.FixtureRequest, make: Make, memory: MemoryFileSystem, tmp_path: Path) -> Any:
    """A filesystem, and the path of :data:`DATA` in it."""
    if request.param == "memory":
        memory.pipe("/dir/data", DATA)
        return make("memory"), "/dir/data"
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return make("file"), str(path)


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, None), (0, 10), (10, None), (-7, None), (None, -7), (PAGE_BYTES - 3, PAGE_BYTES + 3), (7, 7), (9, 3),
     (len(DATA) - 2, len(DATA) + 9), (len(DATA) + 5, len(DATA) + 9), (PAGE_BYTES, 3 * PAGE_BYTES), (-3, -1)],
)  # fmt: skip
def test_a_range_is_a_slice(stored: Any, start: int | None, end: int | None) -> None:
    filesystem, path = stored
    assert filesystem.cat_file(path, start, end) == DATA[start:end]
    assert filesystem.cat_file(path, start, end) == DATA[start:end]


def test_the_second_read_asks_nothing_of_the_store(stored: Any) -> None:
    filesystem, path = stored
    assert filesystem.cat_file(path) == DATA
    asked = Asked(filesystem)
    assert filesystem.cat_file(path) == DATA
    with filesystem.open(path) as file:
        assert file.read() == DATA
    assert filesystem.info(path)["size"] == len(DATA)
    assert filesystem.exists(path)
    assert asked() == (0, 0)


def test_another_instance_finds_what_the_first_one_read(stored: Any, make: Make) -> None:
    filesystem, path = stored
    filesystem.cat_file(path)
    other = make(filesystem.spec.protocol)
    asked = Asked(other)
    assert other.cat_file(path) == DATA
    assert asked() == (0, 0)


def test_each_byte_is_fetched_once(stored: Any) -> None:
    filesystem, path = stored
    with filesystem.open(path) as file:
        while file.read(100_000):
            pass
    assert filesystem.reader.counts.fetched_bytes == len(DATA)


def test_random_access_fetches_no_more_than_its_pages(stored: Any) -> None:
    filesystem, path = stored
    with filesystem.open(path) as file:
        for page in (4, 1, 3):
            file.seek(page * PAGE_BYTES + 5)
            assert file.read(100) == DATA[page * PAGE_BYTES + 5 :][:100]
    assert filesystem.reader.counts.fetched_bytes == 3 * PAGE_BYTES


def test_files_move_and_read_as_pythons_own(stored: Any) -> None:
    filesystem, path = stored
    with filesystem.open(path) as file:
        assert file.size == len(DATA)
        assert file.seek(-10, 2) == len(DATA) - 10
        assert file.read() == DATA[-10:]
        assert file.read(5) == b""
        file.seek(PAGE_BYTES - 5)
        buffer = bytearray(2 * PAGE_BYTES)
        assert file.readinto(buffer) == len(buffer)
        assert buffer == DATA[PAGE_BYTES - 5 :][: len(buffer)]
        file.seek(0)
        assert file.readline() == DATA[: DATA.index(b"\n") + 1]
        file.seek(0)
        assert file.readuntil(DATA[70_000:70_004], blocks=1000) == DATA[: DATA.index(DATA[70_000:70_004]) + 4]
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == file.tell()
        assert again.read(10) == file.read(10)
        again.close()


def test_ranges_of_several_files(make: Make, memory: MemoryFileSystem) -> None:
    filesystem = make("memory")
    memory.pipe({"/a": DATA, "/b": DATA[::-1]})
    found = filesystem.cat_ranges(["/a", "/b", "/a", "/none"], [0, 5, -4, 0], [3, 2 * PAGE_BYTES, None, 1])
    assert found[:3] == [DATA[:3], DATA[::-1][5 : 2 * PAGE_BYTES], DATA[-4:]]
    assert isinstance(found[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        filesystem.cat_ranges(["/none"], 0, 1, on_error="raise")


def test_many_files_at_once(make: Make, memory: MemoryFileSystem) -> None:
    filesystem = make("memory")
    contents = {f"/many/{number:02}": bytes([number]) * number for number in range(40)}
    memory.pipe(contents)
    assert filesystem.cat("/many/*") == contents
    assert filesystem.cat(["/many/01", "/many/none"], on_error="omit") == {"/many/01": b"\1"}


def test_text_and_compression(make: Make, memory: MemoryFileSystem) -> None:
    filesystem = make("memory")
    with filesystem.open("/text.gz", "w", compression="infer", encoding="utf8") as file:
        file.write("süß\n")
    assert memory.cat("/text.gz")[:2] == b"\x1f\x8b"
    with filesystem.open("/text.gz", "r", compression="infer", encoding="utf8") as file:
        assert file.read() == "süß\n"


@pytest.mark.parametrize("url", ["stoker://memory/dir/data", "stoker::memory://dir/data"])
def test_urls(url: str, memory: MemoryFileSystem, directory: Path) -> None:
    memory.pipe("/dir/data", DATA)
    options = {"directory": str(directory), "limit_bytes": 64 << 20}
    options = {"stoker": options} if "::" in url else options
    with fsspec.open(url, "rb", **options) as file:
        assert file.read() == DATA
    filesystem, path = fsspec.url_to_fs(url, **options)
    assert path == "/dir/data"
    assert filesystem.unstrip_protocol(path) == "stoker://memory/dir/data"
    assert filesystem.cat_file("stoker://memory/dir/data", 0, 5) == DATA[:5]


def test_a_filesystem_and_its_options_travel_but_do_not_show(make: Make) -> None:
    filesystem = make("s3", {"key": "A", "secret": "hidden"})
    assert "hidden" not in repr(filesystem)
    assert "hidden" not in repr(filesystem.spec)
    assert "hidden" not in filesystem.spec.namespace
    again = pickle.loads(pickle.dumps(filesystem))
    assert again.spec.options == {"key": "A", "secret": "hidden"}


def test_an_option_that_nobody_knows_is_refused(make: Make, directory: Path) -> None:
    with pytest.raises(TypeError, match=r"`verfy` must be an option of the cache .*did you mean `verify`\?"):
        make("memory", verfy="always")
    with pytest.raises(TypeError, match=r"`anonn` must be .* S3FileSystem .*did you mean `anon`\?"):
        make("s3", anonn=True)
    with pytest.raises(TypeError, match=r"`limit_byte` .*did you mean `limit_bytes`\?"):
        make("http", limit_byte=1)
    assert make("s3", anon=True).spec.options == {"anon": True}
    assert make("http", verify_ssl=False).spec.options == {"verify_ssl": False}
    assert make("memory", {"anything": 1}).spec.options == {"anything": 1}
    with pytest.raises(ValueError, match="`verify` must be one of `always`, `first-touch`, got 'never'"):
        make("memory", verify="never")


def test_checksums_may_be_compared_on_first_touch_only(make: Make, memory: MemoryFileSystem, directory: Path) -> None:
    memory.pipe("/dir/data", DATA)
    always, touched = make("memory"), make("memory", verify="first-touch")
    assert always.cat_file("/dir/data") == touched.cat_file("/dir/data") == DATA
    for path in (directory / "large").iterdir():
        if not path.suffix:
            with open(path, "r+b") as file:
                file.write(b"damage")
    # Its pages were compared before; that is what was asked for.
    assert touched.cat_file("/dir/data", 0, 6) == b"damage"
    assert always.cat_file("/dir/data") == DATA


def test_a_target_is_needed() -> None:
    with pytest.raises(ValueError, match="target_protocol"):
        fsspec.filesystem("stoker")


def test_paths_whose_rule_does_not_cache_pass_through(make: Make, tmp_path: Path) -> None:
    from stoker.cache.policies import DEFAULT_RULES

    filesystem = make("file", rules=DEFAULT_RULES)
    path = tmp_path / "plain"
    path.write_bytes(b"plain")
    assert filesystem.cat_file(str(path)) == b"plain"
    with filesystem.open(str(path)) as file:
        assert file.read() == b"plain"
    assert filesystem.info(str(path))["size"] == 5
    assert filesystem.reader.counts.asked_bytes == 0


def test_many_objects_are_copied_side_by_side(
    make: Make, memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({f"/dir/sub/{number}": bytes([number]) * 1000 for number in range(4)})
    filesystem = make("memory")
    source = filesystem.reader.holder.get()
    together, info = threading.Barrier(4, timeout=10), source.info

    def info_together(path: str) -> Any:
        if "/sub/" in path:
            together.wait()  # breaks unless all four are asked for at once
        return info(path)

    monkeypatch.setattr(source, "info", info_together)
    asked = Asked(filesystem)
    filesystem.get("/dir", str(tmp_path / "got"), recursive=True)
    assert [(tmp_path / "got/sub" / str(number)).read_bytes() for number in range(4)] == [
        bytes([number]) * 1000 for number in range(4)
    ]
    assert asked()[0] == 4


def test_of_many_that_open_an_object_at_once_one_asks(make: Make, memory: MemoryFileSystem) -> None:
    memory.pipe("/dir/data", DATA)
    filesystem = make("memory")
    asked, begin = Asked(filesystem), threading.Barrier(8, timeout=10)

    def open_together(_: int) -> int:
        begin.wait()
        return int(filesystem.open("/dir/data").size)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(open_together, range(8))) == {len(DATA)}
    assert asked() == (0, 1)


def test_a_read_after_a_jump_takes_no_more_than_its_pieces(stored: Any) -> None:
    """Programs that read a file here and there do not pay for 64 KiB each time; those that read on get them."""
    filesystem, path = stored
    choose = random.Random(2)
    with filesystem.open(path) as file:
        assert file.read() == DATA
        for _ in range(200):
            length = choose.choice([1, 100, 4096, 9000])
            start = choose.randrange(len(DATA) - length)
            file.seek(start)
            if file.raw.tell() == start:  # else it lies in the buffer
                assert file.read(length) == DATA[start : start + length]
                assert file.raw.tell() < start + length + 4096
            at, buffer = file.tell(), bytearray(3 * length)
            done = file.readinto(buffer)
            assert buffer[:done] == DATA[at : at + 3 * length]
        file.seek(PAGE_BYTES)
        assert b"".join(file.read(100) for _ in range(2000)) == DATA[PAGE_BYTES:][:200_000]
        assert file.raw.tell() > PAGE_BYTES + 200_000 + 4096  # by then it reads ahead again
