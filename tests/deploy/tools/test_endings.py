"""However a command ends, so do its tools and their children; its temporary files go, at the latest with the next."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import ToolError
from stoker.core.processes.temporary import MARK, temporary_folder
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.running import run_tool, tools_at_once, work_folder

TOOL = """
import os, sys, tempfile, time
tempfile.mkdtemp(prefix="yowasp_")
os.fork()
open(os.path.join(sys.argv[1], f"pid-{os.getpid()}"), "w").close()
time.sleep(600)
"""
COMMAND = """
import sys
from pathlib import Path
import stoker.cli.deploy.fit
from stoker.cli.deploy.main import main
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.running import run_tool, tools_at_once, work_folder

pids, cache, threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def work(number):
    def make(made):
        run_tool([sys.executable, "-c", TOOL, str(pids)], folder=made, limit_s=600, doing="placing")
    kept("netlist", [str(number)], make, cache)

def fit(argv):
    with work_folder("design"):
        if not threads:
            return work(0)
        with tools_at_once(threads) as pool:
            for each in [pool.submit(work, number) for number in range(threads + 1)]:
                each.result()

stoker.cli.deploy.fit.main = fit
main(["fit"])
"""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(true: object, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(true())  # type: ignore[operator]


class Command:
    """A command whose tools sleep, each with a child that does, too."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.pids, self.cache, self.temporary = (folder / name for name in ("pids", "cache", "temporary"))
        for each in (self.pids, self.temporary):
            each.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"TOOL = {TOOL!r}\n{COMMAND}", str(self.pids), str(self.cache), str(threads)],
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        assert until(lambda: len(self.tools()) == 2 * max(threads, 1))

    def tools(self) -> list[int]:
        return [int(each.name.partition("-")[2]) for each in self.pids.iterdir()]

    def left(self) -> list[str]:
        return [str(each) for base in (self.cache, self.temporary) for each in base.rglob("*")]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[list[Command]]:
    begun: list[Command] = []
    yield begun
    for command in begun:
        command.process.kill()
        command.process.wait()
        for pid in command.tools():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "threads"),
    [(signal.SIGTERM, 0), (signal.SIGTERM, 2), (signal.SIGHUP, 0), (signal.SIGINT, 2), (signal.SIGKILL, 0)],
)
def test_tools_end_with_their_command(
    tmp_path: Path, commands: list[Command], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, threads: int
) -> None:
    commands.append(command := Command(tmp_path, threads))
    assert any("yowasp_" in each for each in command.left())
    begun = time.monotonic()
    command.process.send_signal(number)
    status = command.process.wait(timeout=30)
    assert until(lambda: not any(map(alive, command.tools())), 10), "tools live on"
    assert time.monotonic() - begun < 10
    if number is signal.SIGKILL:
        assert command.left()  # nobody could remove it
        monkeypatch.setattr("tempfile.tempdir", str(command.temporary))
        with work_folder("design"):  # the next command
            pass
        kept("netlist", ["other"], lambda _: None, command.cache)
        assert {each.split("/")[-1] for each in command.left()} == {"seal", *os.listdir(command.cache)}
        assert len(os.listdir(command.cache)) == 1
        return
    assert status in (128 + number, -number, 130)
    assert not command.left()


@pytest.mark.integration
def test_a_tool_that_fails_ends_those_at_its_side(tmp_path: Path) -> None:
    def run(program: str) -> None:
        run_tool([sys.executable, "-c", program], folder=tmp_path, limit_s=60, doing="simulating")

    def several() -> None:
        with tools_at_once(2) as pool:
            failing = pool.submit(run, "raise SystemExit(3)")
            for _ in range(2):
                pool.submit(run, "import time; time.sleep(60)")
            failing.result()

    begun = time.monotonic()
    with pytest.raises(ToolError, match="got 3"):
        several()
    assert time.monotonic() - begun < 20


def test_folders_of_those_that_live_and_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "making-left").mkdir()
    (tmp_path / "making-left/file").write_text("")
    (tmp_path / "making-left" / MARK).write_text("")
    (tmp_path / "making-users").mkdir()
    (tmp_path / "making-users/file").write_text("")
    (tmp_path / "making-file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "making-link").symlink_to(tmp_path / "other")
    with temporary_folder("making-", tmp_path) as first, temporary_folder("making-", tmp_path) as second:
        assert first.is_dir()
        assert second != first
        assert not (tmp_path / "making-left").exists()
        assert not list(first.iterdir())
    assert {each.name for each in tmp_path.iterdir()} == {"making-file", "making-link", "making-users", "other"}
