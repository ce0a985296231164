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

pytestmark = pytest.mark.integration


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
    with open(disk / "other", "wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0
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
    assert "Its disk is as full as it may be" in capsys.readouterr().out
    assert stoker(["cache", "warm", f"file://{tmp_path}/data", "--json"]) == 1
    account = json.loads(capsys.readouterr().out)
    assert account["refused"]["objects"] > 50
    assert stoker(["cache", "ls"]) == 0
    assert stoker(["cache", "evict", "--all"]) == 0
    assert os.statvfs(full_disk).f_bavail > 100
