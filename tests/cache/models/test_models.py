import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors import safe_open
from safetensors.torch import save, save_file

import stoker.cache
from stoker.cache.filesystem.resolve_url import open_place
from stoker.cache.models import folders, loading
from stoker.cache.page_stores import close_page_stores, page_store
from stoker.cache.policies import Freshness, Rule
from stoker.cache.settings import CacheSettings
from stoker.core.errors import ModelFileError, SourceChangedError
from stoker.core.processes.temporary import MARK

ALL = Rule(freshness=Freshness.IMMUTABLE)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embedding": torch.randn(3000, 512, generator=generator),
        "bias": torch.arange(7, dtype=torch.bfloat16),
        "odd": torch.arange(3, dtype=torch.uint8),
        "ids": torch.arange(5),
        "none": torch.empty(0, 4),
    }


@pytest.fixture
def settings(directory: Path) -> CacheSettings:
    return CacheSettings(directory=directory, limit_bytes=64 << 20, rules=(ALL,))


def test_tensors_are_those_that_were_saved(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    memory.pipe("/models/model.safetensors", save(tensors()))
    loaded = stoker.cache.load_safetensors("memory://models/model.safetensors", settings=settings)
    assert loaded.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_a_second_load_asks_nothing_and_shares_nothing_written(
    memory: MemoryFileSystem, settings: CacheSettings
) -> None:
    memory.pipe("/models/model.safetensors", save(tensors()))
    first = stoker.cache.load_safetensors("memory://models/model.safetensors", settings=settings)
    memory.rm("/models/model.safetensors")
    second = stoker.cache.load_safetensors("memory://models/model.safetensors", settings=settings)
    first["embedding"].zero_()
    assert torch.equal(second["embedding"], tensors()["embedding"])
    third = stoker.cache.load_safetensors("memory://models/model.safetensors", settings=settings)
    assert torch.equal(third["embedding"], tensors()["embedding"])


def test_tensors_outlive_the_cache(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    memory.pipe("/models/model.safetensors", save(tensors()))
    loaded = stoker.cache.load_safetensors("memory://models/model.safetensors", settings=settings)
    assert settings.directory is not None
    close_page_stores(settings.directory)
    for path in sorted(settings.directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert torch.equal(loaded["embedding"], tensors()["embedding"])


def test_streaming_is_in_the_order_of_the_file(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    data = save(tensors())
    memory.pipe("/m.safetensors", data)
    streamed = list(stoker.cache.stream_safetensors("memory://m.safetensors", settings=settings))
    assert [name for name, _ in streamed] == sorted(tensors(), key=[name for name, _ in streamed].index)
    assert all(torch.equal(tensor, tensors()[name]) for name, tensor in streamed)


def test_some_tensors_of_a_folder_read_only_their_pages(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    memory.pipe("/model/a.safetensors", save({"large": torch.ones(8 << 20), "tail": torch.ones(4)}))
    memory.pipe("/model/b.safetensors", save({"other": torch.zeros(2)}))
    loaded = stoker.cache.load_safetensors("memory://model", names={"tail", "other"}, settings=settings)
    assert torch.equal(loaded["tail"], torch.ones(4))
    assert torch.equal(loaded["other"], torch.zeros(2))
    assert loaded.keys() == {"tail", "other"}
    with pytest.raises(ModelFileError, match="got nothing"):
        stoker.cache.load_safetensors("memory://model", names={"tail", "nothing"}, settings=settings)
    with pytest.raises(ModelFileError, match="or a folder of some"):
        stoker.cache.load_safetensors("memory://none", settings=settings)


@pytest.mark.parametrize("rule", [Rule(cached=False), ALL])
@pytest.mark.parametrize("limit_bytes", [8 << 20, 64 << 20])
def test_a_cache_that_takes_nothing_gives_the_same_tensors(
    memory: MemoryFileSystem, directory: Path, rule: Rule, limit_bytes: int
) -> None:
    memory.pipe("/m.safetensors", save({"large": torch.arange(3 << 20), **tensors()}))
    settings = CacheSettings(directory=directory, limit_bytes=limit_bytes, rules=(rule,))
    loaded = stoker.cache.load_safetensors("memory://m.safetensors", settings=settings)
    assert torch.equal(loaded["large"], torch.arange(3 << 20))
    assert torch.equal(loaded["bias"], tensors()["bias"])


def test_damage_in_the_cache_is_read_again(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    memory.pipe("/m.safetensors", save(tensors()))
    stoker.cache.load_safetensors("memory://m.safetensors", settings=settings)
    assert settings.directory is not None
    for path in (settings.directory / "large").iterdir():
        if path.suffix == "":
            with open(path, "r+b") as file:
                file.seek(3_000_000)
                file.write(b"damage")
    again = stoker.cache.load_safetensors("memory://m.safetensors", settings=settings)
    assert torch.equal(again["embedding"], tensors()["embedding"])
    local = stoker.cache.materialise("memory://m.safetensors", settings=settings)
    with safe_open(local / "m.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("embedding"), tensors()["embedding"])


def test_a_file_that_is_replaced_meanwhile_is_never_mixed(
    memory: MemoryFileSystem, settings: CacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_AHEAD_BYTES", 1 << 20)
    old = torch.zeros(40, 1 << 20, dtype=torch.uint8)
    parts = {f"p{number:02d}": part.clone() for number, part in enumerate(old)}
    memory.pipe("/m.safetensors", save(parts))
    stream = stoker.cache.stream_safetensors("memory://m.safetensors", settings=settings)
    seen = [next(stream)[1]]
    memory.pipe("/m.safetensors", save({name: part + 1 for name, part in parts.items()}))
    with pytest.raises(SourceChangedError):
        seen.extend(tensor for _, tensor in stream)
    assert not any(tensor.any() for tensor in seen)


def test_a_folder_that_is_local(memory: MemoryFileSystem, settings: CacheSettings) -> None:
    memory.pipe({"/models/m/model.safetensors": save(tensors()), "/models/m/sub/config.json": b"{}"})
    local = stoker.cache.materialise("memory://models/m", settings=settings)
    assert (local / "sub/config.json").read_bytes() == b"{}"
    with safe_open(local / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("embedding"), tensors()["embedding"])
    if os.geteuid():
        with pytest.raises(PermissionError):
            (local / "new").write_bytes(b"")
    assert (local / "model.safetensors").resolve().is_relative_to((settings.directory or local).resolve())
    with pytest.raises(FileNotFoundError):
        stoker.cache.materialise("memory://models/none", settings=settings)


def test_copies_of_a_killed_process_go_with_the_next(
    memory: MemoryFileSystem, settings: CacheSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_made", [])
    for name, mark in (("stoker-copies-left", True), ("stoker-copies-users", False)):
        (tmp_path / name / "m").mkdir(parents=True)
        (tmp_path / name / "m/file").write_text("")
        (tmp_path / name / "m").chmod(0o500)
        if mark:
            (tmp_path / name / MARK).write_text("")
    memory.pipe("/models/m/config.json", b"{}")
    first, second = (stoker.cache.materialise("memory://models/m", settings=settings) for _ in range(2))
    assert first.name == second.name == "m"
    left = {each.name for each in tmp_path.glob("stoker-copies-*")}
    assert left == {first.parent.name, second.parent.name, "stoker-copies-users"}
    folders.remove_copies()
    assert [each.name for each in tmp_path.glob("stoker-copies-*")] == ["stoker-copies-users"]
    (tmp_path / "stoker-copies-users/m").chmod(0o700)


def test_a_folder_without_room_in_the_cache(memory: MemoryFileSystem, directory: Path) -> None:
    memory.pipe("/m/model.safetensors", save(tensors()))
    settings = CacheSettings(directory=directory, limit_bytes=4 << 20, rules=(ALL,))
    local = stoker.cache.materialise("memory://m", settings=settings)
    with safe_open(local / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("embedding"), tensors()["embedding"])


def _load(url: str, directory: str, start: Callable[[], object], results: Any) -> None:
    start()
    settings = CacheSettings(directory=Path(directory), limit_bytes=256 << 20, rules=(ALL,))
    loaded = stoker.cache.load_safetensors(url, settings=settings)
    filesystem, _ = open_place(url, settings)
    # Summed by NumPy: torch's threads may have been the parent's.
    results.put((float(loaded["large"].numpy().sum()), filesystem.reader.counts.fetched_bytes))


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_processes_read_the_store_once(tmp_path: Path, directory: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"large": torch.ones(6 << 20)}, path)
    # Forked children of a process that has the store open already.
    page_store(CacheSettings(directory=directory, limit_bytes=256 << 20, rules=(ALL,)))
    context = multiprocessing.get_context("fork")
    results, start = context.Queue(), context.Barrier(3)
    arguments = (f"file://{path}", str(directory), start.wait, results)
    processes = [context.Process(target=_load, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=50) for _ in processes]
    for process in processes:
        process.join()
    assert [total for total, _ in found] == [float(6 << 20)] * 3
    assert sum(fetched for _, fetched in found) == path.stat().st_size


def test_what_is_installed_says_where_models_are_kept(memory: MemoryFileSystem, directory: Path) -> None:
    memory.pipe("/models/model.safetensors", save(tensors()))
    stoker.cache.install(directory=directory, limit_bytes=64 << 20, rules=(ALL,), join=None, protocols=())
    try:
        stoker.cache.load_safetensors("memory://models/model.safetensors")
        assert page_store(CacheSettings(directory=directory)).stats().live.pages >= 3000 * 512 * 4 // (1 << 20)
        local = stoker.cache.materialise("memory://models")
        assert (local / "model.safetensors").resolve().is_relative_to(directory)
    finally:
        stoker.cache.uninstall()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk in memory of 40 MiB; skips where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("may not mount a filesystem")
    yield disk
    close_page_stores(disk / "pages")
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.integration
def test_a_model_on_a_full_disk_in_memory_is_loaded_into_memory_of_its_own(small_disk: Path, tmp_path: Path) -> None:
    """The file that the cache has begun for it has holes, and touching one there would end the process."""
    save_file({"weight": torch.ones(3000, 512)}, tmp_path / "m.safetensors")
    page_store(CacheSettings(directory=small_disk / "pages", limit_bytes=64 << 20, rules=(ALL,)))
    disk = os.statvfs(small_disk)
    kept_free = disk.f_blocks // 10 * disk.f_frsize
    (small_disk / "other").write_bytes(bytes(disk.f_bavail * disk.f_frsize - kept_free - (200 << 10)))
    program = f"""
from pathlib import Path
import stoker.cache
from stoker.cache.rules_text import rules_of
from stoker.cache.settings import CacheSettings
directory, rules = Path({str(small_disk / "pages")!r}), rules_of("file://* immutable")
settings = CacheSettings(directory=directory, limit_bytes=64 << 20, rules=rules)
loaded = stoker.cache.load_safetensors("file://{tmp_path}/m.safetensors", settings=settings)
print(loaded["weight"].sum().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1536000.0\n"), done.stderr
