"""A disk that is full to the last byte: what one does about it works, and programs run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cache.page_stores import close_page_stores
from stoker.cli.main import main as stoker
from tests.cache.fault_server import FaultServer

pytestmark = pytest.mark.integration


def fill(disk: Path) -> None:
    with open(disk / "other", "wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A filesystem of 4 MiB with a cache on it, and no room for anything more; skips where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a filesystem")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.stoker.cache]\ndirectory = "{disk / "pages"}"\nsize = "1GB"\nrules = ["file://* 60s"]\n'
    )
    (tmp_path / "data").mkdir()
    for number in range(200):
        (tmp_path / "data" / str(number)).write_bytes(b"x" * 50_000)
    subprocess.run([sys.executable, "-m", "stoker", "cache", "warm", f"file://{tmp_path}/data", "--quiet"], check=False)
    fill(disk)
    yield disk
    close_page_stores(disk / "pages")
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_programs_run_and_the_commands_that_help_work(
    full_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import fsspec; fsspec.filesystem('memory').pipe('/a', b'1'); print(fsspec.filesystem('memory').cat('/a'))"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", f"--cache={full_disk / 'pages'}", "-c", program],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "b'1'\n"), done.stderr
    capsys.readouterr()
    assert stoker(["cache", "status", "--over", "1ms"]) == 0
    assert "Its disk is full" in capsys.readouterr().out
    assert stoker(["cache", "warm", f"file://{tmp_path}/data", "--json"]) == 1
    account = json.loads(capsys.readouterr().out)
    assert account["refused"]["objects"] > 50
    assert stoker(["cache", "ls"]) == 0
    assert stoker(["cache", "evict", "--all"]) == 0
    assert os.statvfs(full_disk).f_bavail > 100


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A web server with one object."""
    server = FaultServer()
    server.objects["/data"] = b"x" * 5000
    yield server
    server.close()


def run(server: FaultServer, *options: str) -> subprocess.CompletedProcess[str]:
    """A program that reads the server's object through fsspec."""
    program = f"import fsspec; print(len(fsspec.open('{server.url}/data').open().read()))"
    words = ["run", "--cache-rules", "http://* immutable", *options, "-c", program]
    return subprocess.run(
        [sys.executable, "-m", "stoker", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A disk in memory that can be mounted anew; skips where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("may not mount a filesystem")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def remount(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@pytest.mark.parametrize("why", ["Read-only file system", "No space left on device"])
def test_a_run_goes_on_without_a_cache_that_cannot_be_made(read_only: Path, server: FaultServer, why: str) -> None:
    directory = read_only / "pages"
    if why == "No space left on device":
        fill(read_only)
    else:
        remount(read_only)
    done = run(server, f"--cache={directory}")
    assert (done.returncode, done.stdout) == (0, "5000\n"), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "cache:" in line]
    assert line.startswith("stoker: cache: off, stores are read directly: ")
    assert why in line
    done = run(server, f"--cache={directory}", "--cache-required")
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_a_filled_cache_that_is_read_only_is_used(read_only: Path, server: FaultServer) -> None:
    directory = read_only / "pages"
    assert "0.0 % from the cache" in run(server, f"--cache={directory}").stderr
    remount(read_only)
    done = run(server, f"--cache={directory}", "--cache-required")
    assert (done.returncode, done.stdout) == (0, "5000\n"), done.stderr
    assert "4.88 KiB read, 100.0 % from the cache · 0 B from stores in 0 requests" in done.stderr
    assert len(server.gets) == 1
