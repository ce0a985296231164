"""Runs a command in a memory cgroup of its own: under a limit, and with the peak that the kernel counted.

The peak is that of all processes of the command together, shared memory counted once. Needs the right to make a cgroup
below that of this process (version 1 or 2), as root has it on most machines and in some containers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.core.host import parse_cgroup


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    """Exit status; 137 where its first process was killed."""
    output: str
    errors: str
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Version:
    """Where a version of cgroups keeps things."""

    controller: str
    mounts: tuple[str, ...]
    limit_file: str
    peak_file: str


_VERSIONS = (
    _Version("memory", ("/sys/fs/cgroup/memory",), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    _Version("", ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "memory.max", "memory.peak"),
)


def obstacle() -> str:
    """Why no memory cgroup can be made here; empty where one can."""
    try:
        with _group(0):
            return ""
    except OSError as error:
        return f"no memory cgroup can be made here: {error}"


def run_limited(command: Sequence[str], limit_bytes: int = 0, *, folder: Path | None = None) -> Outcome:
    """Runs a command to its end; ``limit_bytes`` 0 sets no limit.

    Raises:
        OSError: no memory cgroup can be made here; :func:`obstacle` tells beforehand.
    """
    with _group(limit_bytes) as (group, version):
        # The shell joins the group and then becomes the command, so that nothing of it is outside.
        shell = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *command]
        begun = time.perf_counter()
        ended = subprocess.run(shell, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.perf_counter() - begun
        peak_bytes = int((group / version.peak_file).read_text())
    status = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    return Outcome(status, ended.stdout, ended.stderr, peak_bytes, seconds)


@contextlib.contextmanager
def _group(limit_bytes: int) -> Iterator[tuple[Path, _Version]]:
    parent, version = _parent()
    group = parent / f"stoker-{uuid.uuid4().hex[:12]}"
    group.mkdir()
    try:
        if not (group / version.peak_file).exists():
            raise OSError(f"`{group}` has no `{version.peak_file}`")
        if limit_bytes:
            (group / version.limit_file).write_text(str(limit_bytes))
        yield group, version
    finally:
        _remove(group)


def _parent() -> tuple[Path, _Version]:
    """The folder of this process's memory cgroup."""
    paths = parse_cgroup(Path("/proc/self/cgroup").read_text())
    for version in _VERSIONS:
        for mount in version.mounts:
            if version.controller not in paths or not os.path.exists(f"{mount}/cgroup.procs"):
                continue
            folder = Path(mount + paths[version.controller])
            return (folder if folder.is_dir() else Path(mount)), version
    raise OSError("no cgroup of this process is mounted")


def _remove(group: Path) -> None:
    """Takes the group away, once the last of its processes is gone."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)  # processes on their way out
