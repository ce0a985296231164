"""What every test gets: a clean environment, reproducible hypothesis, and a check that nothing is left running."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import SAVED, WRITTEN, Durations, read, unexplained
from tests.marks import is_exhaustive, is_forking, may_match, unused
from tests.warm.programs import Program, servers

# Timing on shared machines is noise: pytest-timeout bounds a test, hypothesis need not.
# Derandomised, so that a check that passed passes again; `--hypothesis-profile=explore` looks further.
settings.register_profile(
    "checks", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("checks")

# What runs in the background or under nohup ignores SIGINT or SIGHUP, and children inherit that; tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

GRACE_S = 5.0
"""How long children may take to end after an integration test; ends as soon as they have."""

_KEPT_BY_PYTHON = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def pytest_configure(config: pytest.Config) -> None:
    written = None if hasattr(config, "workerinput") else WRITTEN
    config.pluginmanager.register(Durations(written), "durations")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Unit and integration tests are each collected alone: importing those of the other kind takes many seconds."""
    if collection_path.name.startswith("test_") and not may_match(collection_path, config.getoption("markexpr")):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_exhaustive(item.nodeid):
            item.add_marker("exhaustive")
        if is_forking(item.nodeid):
            item.add_marker("forking")
    # What failed last is collected alone, out of files with other tests.
    is_whole = not config.getoption("lf") and not any("::" in word for word in config.args)
    if is_whole and (lines := unused(item.nodeid for item in items)):
        raise pytest.UsageError(f"tests/marks.py names tests that are no more: {lines}")
    reasons = [(item.nodeid, item.get_closest_marker("slow") is not None) for item in items]
    if silent := unexplained(reasons, read(SAVED)):
        raise pytest.UsageError(f'long tests must say why, by @pytest.mark.slow("..."): {silent}')
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU that torch can use"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile` parts of files go out, the longest first."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.schedule import Parts

    return Parts(config, log)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: collections in tests and in the processes they fork skip it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Settings of the person who runs the tests do not reach the tests."""
    for name in [name for name in os.environ if name.startswith("STOKER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


@pytest.fixture
def warm_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons that the code under test starts by ``subprocess`` are forks of one that has torch loaded."""
    monkeypatch.setattr(subprocess, "Popen", Program)


@pytest.fixture(autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """An integration test fails when a child process outlives it."""
    if request.node.get_closest_marker("integration") is None:
        yield
        return
    before = _children()
    yield
    deadline_s = time.monotonic() + GRACE_S
    while (left := _children() - before) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not left, f"left running: {[(pid, _command(pid)) for pid in sorted(left)]}"


def _children() -> set[int]:
    """Processes below this one, at any depth, except those that multiprocessing keeps until the end."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for task in _tasks(waiting.pop()):
            children = {int(pid) for pid in _read(task / "children").split()} - found
            found |= children
            waiting.extend(children)
    found -= servers()
    return {pid for pid in found if not any(name in _command(pid) for name in _KEPT_BY_PYTHON)}


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has just ended
        return []


def _command(pid: int) -> bytes:
    return _read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").strip()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
