"""`stoker cache …` over a store in this process's memory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.page_stores import close_page_stores
from stoker.cli.main import main as stoker
from stoker.wire.secrets import DEFAULT_IDENTITY, load_secrets

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command; its status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "pages"))

    def run(*argv: str) -> tuple[int, str, str]:
        status = stoker(["cache", *argv])
        said = capsys.readouterr()
        return status, said.out, said.err

    yield run
    close_page_stores(tmp_path / "pages")


@pytest.fixture
def objects(memory: MemoryFileSystem) -> MemoryFileSystem:
    memory.pipe({"/data/train/a": b"a" * 1000, "/data/train/b": b"b" * 2000, "/data/big": bytes(5 << 20)})
    return memory


def as_json(found: tuple[int, str, str]) -> Any:
    return json.loads(found[1])


@pytest.mark.usefixtures("objects")
def test_warm_says_exactly_what_became_of_each(cache: Run) -> None:
    status, out, err = cache("warm", "memory://data", "--size", "64MiB")
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["planned", "3"], ["fetched", "3"]]
    assert "Everything is in the cache" in out
    account = as_json(cache("warm", "memory://data/train", "memory://data/train/a", "--json"))
    assert account["planned"] == account["present"] == {"objects": 2, "num_bytes": 3000}
    assert account["complete"] is True
    assert cache("warm", "memory://data", "--quiet") == (0, "", "")


@pytest.mark.usefixtures("objects")
def test_warm_takes_patterns_and_lists(cache: Run, tmp_path: Path) -> None:
    assert as_json(cache("warm", "memory://data/train/*", "--json"))["planned"]["objects"] == 2
    (tmp_path / "list.txt").write_text("# both\nmemory://data/train\nmemory://data/big\n")
    assert as_json(cache("warm", "list.txt", "--json"))["planned"]["objects"] == 3


def test_one_of_a_list_that_is_not_there_is_a_failure_of_its_own(
    cache: Run, objects: MemoryFileSystem, tmp_path: Path
) -> None:
    objects.pipe("/data/image[1].png", b"1")
    (tmp_path / "list.txt").write_text("memory://data/train/a\nmemory://data/none\nmemory://data/image[1].png\n")
    status, out, _ = cache("warm", "list.txt")
    assert status == 1
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [["planned", "3"], ["fetched", "2"], ["failed", "1"]]
    assert "failed: /data/none: FileNotFoundError" in out


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("where", ["list_items", "Warming.run"])
def test_an_interrupted_warming_never_says_that_all_is_there(
    cache: Run, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"stoker.cli.cache.warm.{where}", interrupted)
    status, out, _ = cache("warm", "memory://data")
    assert status == 130
    assert "Interrupted" in out
    assert "Everything" not in out
    status, out, _ = cache("warm", "memory://data", "--json")
    assert (status, json.loads(out)["complete"]) == (130, False)


def test_a_list_of_many_objects_is_asked_for_side_by_side(
    cache: Run, objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"/data/many/{number}" for number in range(64)]
    objects.pipe(dict.fromkeys(paths, b"1"))
    (tmp_path / "list.txt").write_text("".join(f"memory:/{path}\n" for path in paths))
    all_in = threading.Barrier(8)
    find = MemoryFileSystem.find

    def find_together(self: MemoryFileSystem, *args: Any, **kwargs: Any) -> Any:
        all_in.wait(10)  # breaks if they come one after the other
        return find(self, *args, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "find", find_together)
    account = as_json(cache("warm", "list.txt", "--jobs", "8", "--json"))
    assert account["fetched"]["objects"] == len(paths)


@pytest.mark.usefixtures("objects")
def test_warm_ends_with_1_where_something_is_not_cached(cache: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_RULES", "memory://*/train/* off")
    status, out, _ = cache("warm", "memory://data")
    assert status == 1
    assert "uncached        2" in out
    assert "stoker cache explain URL" in out


def test_warm_says_what_failed(cache: Run, objects: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    find = MemoryFileSystem.find

    def find_and_lose(self: MemoryFileSystem, *args: Any, **kwargs: Any) -> Any:
        found = find(self, *args, **kwargs)
        objects.store.pop("/data/train/a", None)
        return found

    monkeypatch.setattr(MemoryFileSystem, "find", find_and_lose)
    status, out, _ = cache("warm", "memory://data")
    assert status == 1
    assert "failed: /data/train/a: FileNotFoundError" in out
    assert "Run the same command again" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("warm", "memory://none"), "`memory://none` must name objects, and nothing is there"),
        (("warm", "nothing.txt"), "or a file that lists URLs: No such file"),
        (("warm", "memory://data", "--jobs", "0"), "`--jobs` must be a whole number from 1 to 1,024, got '0'"),
        (("warm", "memory://data", "--size", "many"), "`--size` must be a size such as `50GB`"),
        (("warm", "memory://data", "--size", "100KB"), "`--size` must be at least 1.00 MiB, got '100KB'"),
        (
            ("warm", "memory://data", "--dir", "/proc/none"),
            "`/proc/none` must be a folder that can be written: No such",
        ),
        (("warm", "memory://data", "--dir", "/etc/hostname"), "must be a folder that can be written: File exists"),
        (("warm", "s3://"), "`s3://` must be a URL such as `s3://bucket/folder`, got nothing behind `s3://`"),
        (("warm", "nosuch://data"), "`nosuch://` needs its fsspec filesystem"),
        (("status",), "must be a cache, and there is none yet"),
        (("ls",), "must be a cache"),
        (("evict", "--all"), "must be a cache"),
        (("evict",), "must be followed by a URL or by --all, got neither"),
        (("evict", "memory://a", "--all"), "got both"),
        (("pin",), "must be followed by a URL"),
        (("statsu",), "did you mean `stoker cache status`"),
        (("bench", "memory://none"), "must be an object, and nothing is there"),
        (("bench", "file:///etc/hostname"), "its rule excludes it"),
        (("start",), "`--mount` must name a store"),
        (("start", "--mount", "s3"), "`--mount` must be NAME=URL"),
        (("start", "--mount", "s3=s3://", "--weight", "-1"), "`--weight` must be a number from 0.001 to 100, got"),
        (("start", "--mount", "s3=s3://", "--weight", "nan"), "`--weight` must be a number from 0.001 to 100, got"),
        (("ls", "--dir", "a", "--dir", "b"), "`--dir` must be given once, got a and b"),
        (("secret", "/nowhere/secret"), "must be a file that can be written"),
        (("status", "--join", "a:1"), "`--join` must be static:"),
    ],
)
def test_what_cannot_be_done_is_one_line(cache: Run, argv: tuple[str, ...], said: str) -> None:
    status, out, err = cache(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("stoker: error: ")
    assert len(err.splitlines()) == 1
    assert said in err


def test_a_store_that_cannot_be_asked_is_one_line(cache: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    status, out, err = cache("warm", "s3://bucket/train")
    assert (status, out) == (2, "")
    assert err == (
        "stoker: error: `stoker cache warm` failed: NoCredentialsError: Unable to locate credentials [STOKER1410]\n"
    )


def test_a_folder_that_is_used_otherwise_stays_as_it_is(cache: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "thesis.tex").touch()
    status, _, err = cache("warm", "memory://data", "--dir", str(home), "--size", "64MiB")
    assert status == 2
    assert "must be an empty folder or a cache, it holds `thesis.tex`" in err
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    assert home.stat().st_mode & 0o777 == 0o755


def test_a_cache_of_another_release_says_what_to_do(cache: Run, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "format").write_text("stoker pages 0\n")
    status, _, err = cache("status")
    assert status == 2
    assert "found 'stoker pages 0'; delete it (the stores have all of it)" in err


def test_a_secret_is_made_once(cache: Run, tmp_path: Path) -> None:
    status, out, _ = cache("secret", str(tmp_path / "secret"))
    assert (status, out.startswith(f"Wrote {tmp_path / 'secret'}: ")) == (0, True)
    made = load_secrets(tmp_path / "secret").of(DEFAULT_IDENTITY)
    assert cache("secret", str(tmp_path / "secret"))[0] == 2
    assert load_secrets(tmp_path / "secret").of(DEFAULT_IDENTITY) == made


def test_help_names_every_command(cache: Run) -> None:
    status, out, _ = cache("--help")
    assert status == 0
    assert all(f"\n  {name} " in out for name in ("warm", "status", "ls", "explain", "evict", "start"))
    assert cache()[0] == 2


@pytest.mark.usefixtures("objects")
def test_status(cache: Run) -> None:
    cache("warm", "memory://data", "--size", "64MiB")
    status, out, _ = cache("status", "--over", "1ms")
    assert status == 0
    assert out.startswith("Cache in ")
    assert "of 64.0 MiB" in out
    assert "in 1 segment" in out
    assert "1 file of large objects" in out
    found = as_json(cache("status", "--over", "1ms", "--json"))
    assert found["limit_bytes"] == 64 << 20
    assert found["large"] == 1
    assert found["hit_ratio"] is not None
    assert cache("status", "--over", "long")[0] == 2


@pytest.mark.usefixtures("objects")
def test_ls_shows_one_level_or_all(cache: Run) -> None:
    cache("warm", "memory://data")
    assert [entry["url"] for entry in as_json(cache("ls", "--json"))["entries"]] == ["memory:///data/"]
    level = {entry["url"]: entry["objects"] for entry in as_json(cache("ls", "memory://data", "--json"))["entries"]}
    assert level == {"memory:///data/big": 1, "memory:///data/train/": 2}
    everything = as_json(cache("ls", "-r", "--json"))["entries"]
    assert {entry["url"]: entry["cached_bytes"] for entry in everything} == {
        "memory:///data/big": 5 << 20,
        "memory:///data/train/a": 1000,
        "memory:///data/train/b": 2000,
    }
    assert "100.0 %  memory:///data/big" in cache("ls", "memory://data")[1]
    assert cache("ls", "memory://other")[1] == "Nothing is cached below memory://other.\n"


@pytest.mark.usefixtures("objects")
def test_stat_of_one_object(cache: Run) -> None:
    cache("warm", "memory://data")
    status, out, _ = cache("stat", "memory://data/big")
    assert status == 0
    assert "5.00 MiB (100.0 %), 5 of 5 pages" in out
    assert "a separate file" in out
    assert cache("stat", "memory://data/none")[0] == 1
    for command in ("stat", "explain"):
        status, _, err = cache(command, "memory://data/train")
        assert status == 2
        assert "must be an object, and it is a folder; see stoker cache ls memory://data/train" in err
    assert "Rule     * 60s  (the cache's own)" in cache("stat", "memory://data/big")[1]
    assert as_json(cache("stat", "memory://data/train/a", "--json"))["cached_bytes"] == 1000


@pytest.mark.usefixtures("objects")
def test_pins_and_evictions_are_of_folders_not_of_their_namesakes(cache: Run, objects: MemoryFileSystem) -> None:
    objects.pipe("/data/training", b"c" * 10)
    cache("warm", "memory://data")
    assert cache("pin", "memory://data/train")[1].startswith("Pinned memory://data/train: 4 pages")
    assert "  2 pinned  memory:///data/" in cache("ls")[1]
    pinned = {entry["url"]: entry["pinned"] for entry in as_json(cache("ls", "-r", "--json"))["entries"]}
    assert pinned["memory:///data/train/a"]
    assert not pinned["memory:///data/training"]
    assert as_json(cache("status", "--over", "1ms", "--json"))["pins"] == ["memory:///data/train/"]
    assert cache("unpin", "memory://data/train")[0] == 0
    assert as_json(cache("status", "--over", "1ms", "--json"))["pins"] == []
    assert as_json(cache("evict", "memory://data/train", "--json"))["pages"] == 4
    left = [entry["url"] for entry in as_json(cache("ls", "-r", "--json"))["entries"]]
    assert left == ["memory:///data/big", "memory:///data/training"]
    cache("evict", "--all")
    assert cache("ls")[1] == "Nothing is cached.\n"


def test_what_is_evicted_gives_its_room_back(cache: Run, memory: MemoryFileSystem) -> None:
    memory.pipe({f"/data/{'keep' if i % 20 == 0 else 'go'}/{i}": bytes(100_000) for i in range(100)})
    cache("warm", "memory://data", "--size", "64MiB")
    before = as_json(cache("status", "--over", "1ms", "--json"))["used_bytes"]
    cache("evict", "memory://data/go")
    assert as_json(cache("status", "--over", "1ms", "--json"))["used_bytes"] < before / 2
    assert as_json(cache("ls", "-r", "--json", "memory://data/keep"))["entries"][0]["cached_bytes"] == 100_000


@pytest.mark.usefixtures("objects")
def test_verify_drops_what_is_damaged(cache: Run, tmp_path: Path) -> None:
    cache("warm", "memory://data")
    assert cache("verify")[0] == 0
    large = next(path for path in (tmp_path / "pages" / "large").iterdir() if not path.suffix)
    with open(large, "r+b") as file:
        file.write(b"damage")
    status, out, _ = cache("verify")
    assert status == 1
    assert "evicted, the next read fetches them again" in out
    assert as_json(cache("verify", "--json"))["damaged"]["pages"] == 0


@pytest.mark.usefixtures("objects")
def test_explain_says_why(cache: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://data/train/a"
    assert as_json(cache("explain", url, "--json"))["next_read"] == "misses"
    cache("warm", url)
    assert "The next read hits: all of it is cached" in cache("explain", url)[1]
    monkeypatch.setenv("STOKER_CACHE_RULES", "memory://* 0s")
    assert as_json(cache("explain", url, "--json"))["next_read"] == "asks, then hits"
    monkeypatch.setenv("STOKER_CACHE_RULES", "memory://* off")
    assert as_json(cache("explain", url, "--json"))["next_read"] == "passes through"


@pytest.mark.usefixtures("objects")
def test_bench_compares(cache: Run) -> None:
    found = as_json(cache("bench", "memory://data/big", "--rounds", "2", "--json"))
    assert [len(each["store_s"]) for each in found["reads"]] == [2, 2]
    assert cache("bench", "memory://data/big", "--rounds", "1")[1].splitlines()[0].split() == [
        "store",
        "cache",
        "ratio",
    ]
