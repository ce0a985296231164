"""Two users of one machine: what the other one may not do is refused in words. Needs to be root to become another."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from stoker.cache.cluster.messages.handshake import Identity
from stoker.cache.page_stores import close_page_stores
from stoker.cli.main import main as stoker
from stoker.wire import sockets

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well"),
]

NOBODY = 65534


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that both users reach; pytest's own are for one."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.chdir(folder)
        yield Path(folder)
        close_page_stores(Path(folder) / "pages")


def as_nobody(work: Callable[[], int], said: Path) -> tuple[int, str]:
    """What a child of the other user returns, and what it prints."""
    said.touch()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.dup2(os.open(said, os.O_WRONLY), 2)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.read_text()


@pytest.mark.parametrize("command", [["status"], ["ls"], ["warm", "memory://data"], ["evict", "--all"]])
def test_the_cache_of_someone_else(
    place: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(place / "pages"))
    fsspec.filesystem("memory").pipe("/data/a", b"a")
    assert stoker(["cache", "warm", "memory://data"]) == 0
    close_page_stores(place / "pages")  # a child would have it open
    with capfd.disabled():
        status, said = as_nobody(lambda: stoker(["cache", *command]), place / "said")
    assert status == 2
    assert said.startswith("stoker: error: ")
    assert len(said.splitlines()) == 1
    assert "must belong to the user who runs stoker (uid 65534), it belongs to 0" in said
    assert stoker(["cache", "verify"]) == 0


@pytest.mark.parametrize("part", ["index", "table", "pulse", "locks", "segments", "large"])
def test_a_cache_with_a_part_that_its_user_may_not_write(
    place: Path, part: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Left behind by a program that ran as root."""
    monkeypatch.setenv("STOKER_CACHE_DIR", str(place / "pages"))
    fsspec.filesystem("memory").pipe("/data/a", b"a")
    assert stoker(["cache", "warm", "memory://data"]) == 0
    close_page_stores(place / "pages")
    for path in [place / "pages", *(place / "pages").rglob("*")]:
        os.chown(path, 0 if path.name == part else NOBODY, 0)
    with capfd.disabled():
        status, said = as_nobody(lambda: stoker(["cache", "warm", "memory://data"]), place / "said")
    assert status == 2
    assert f"must be a folder that can be written: Permission denied to `{part}` in it" in said
    assert len(said.splitlines()) == 1


def test_a_socket_tells_users_apart(place: Path) -> None:
    path = str(place / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)  # whatever its mode, the kernel still knows
        listener.listen()

        def connect() -> int:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                return 0

        assert as_nobody(connect, place / "said")[0] == 0
        connection, _ = listener.accept()
        with connection:
            assert sockets.user_of(connection) == NOBODY
            assert not Identity(secrets=None).trusts(connection)
            assert Identity(secrets=None, users=frozenset({NOBODY})).trusts(connection)
