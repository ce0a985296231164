"""What this process may use of its machine: cores, memory, descriptors, shared memory.

Facts only, read from ``/proc`` and the cgroup files; nothing here judges them (``stoker doctor`` does) or caches them
(limits change while a job runs). Every reader takes the root of the file system, so that tests can pass a small tree.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
# cgroup v1 says "no limit" with a page-aligned number near 2**63.
_V1_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, kw_only=True)
class HostResources:
    """One reading of what this process may use."""

    cores: float
    """CPU cores: the smaller of the affinity mask and the cgroup quota."""
    cores_of_machine: int
    """CPU cores of the whole machine."""
    memory_limit_bytes: int
    """The smaller of the cgroup limit and the machine's memory."""
    memory_available_bytes: int
    """What can still be allocated before reclaim fails or the cgroup's limit is hit."""
    open_files: int
    """Soft limit of open file descriptors."""
    open_files_max: int
    """Hard limit, to which a process may raise its soft one."""
    shm_free_bytes: int
    """Free space of ``/dev/shm``; 0 where there is none."""
    start_method: str
    """How multiprocessing starts children here: ``fork``, ``forkserver`` or ``spawn``."""


def read_host() -> HostResources:
    """What this process may use at this moment."""
    limit_bytes, available_bytes = memory_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostResources(
        cores=cores(),
        cores_of_machine=os.cpu_count() or 1,
        memory_limit_bytes=limit_bytes,
        memory_available_bytes=available_bytes,
        open_files=_finite(soft),
        open_files_max=_finite(hard),
        shm_free_bytes=shm_free_bytes(),
        start_method=start_method(),
    )


def cores(root: Path = ROOT) -> float:
    """CPU cores this process may use: the smaller of its affinity mask and its cgroup's quota."""
    quota = quota_cores(root)
    allowed = float(affinity_cores())
    return allowed if quota is None else min(allowed, quota)


def affinity_cores() -> int:
    """Cores in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores(root: Path = ROOT) -> float | None:
    """Cores granted by the tightest cgroup above this process, or None without a quota."""
    quotas = [parse_cpu_max(text) for text in _read_each(_cgroup_folders(root, ""), "cpu.max")]
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(parse_cpu_max(f"{quota.strip()} {period.strip()}"))
    return min((quota for quota in quotas if quota is not None), default=None)


class RunDelay:
    """How long this process's main thread has been ready to run without getting a core.

    Source: ``/proc/PID/schedstat`` (Linux, Documentation/scheduler/sched-stats.rst), second field; a read takes 0.6 us.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another system, a kernel without it, or no descriptors left
            self._fd = -1

    def seconds(self) -> float | None:
        """The total so far; None if the kernel does not report it."""
        if self._fd < 0:
            return None
        try:
            return int(os.pread(self._fd, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None


def memory_bytes(root: Path = ROOT) -> tuple[int, int]:
    """The memory limit of this process and what is available below it, in bytes.

    The least of the machine's memory, the tightest cgroup's limit, and what ``ulimit -v`` and ``ulimit -d`` leave.
    """
    info = parse_meminfo(_read(root / "proc/meminfo") or "")
    total = info.get("MemTotal", 0)
    limit, available = total, info.get("MemAvailable", total)
    for cgroup_limit, used in _memory_limits(root):
        limit = min(limit, cgroup_limit) if limit else cgroup_limit
        available = min(available, max(0, cgroup_limit - used)) if available else max(0, cgroup_limit - used)
    for own_limit, used in _own_limits(root):
        limit, available = min(limit, own_limit), min(available, max(0, own_limit - used))
    return limit, available


def private_bytes(root: Path = ROOT) -> int:
    """Resident memory of this process that no file or other process shares; 0 if the kernel does not report it."""
    fields = (_read(root / "proc/self/statm") or "0 0 0").split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


def kills_for_memory(root: Path = ROOT) -> int:
    """How many processes of this process's own cgroup the kernel has killed for lack of memory.

    Only differences mean something: the count starts with the cgroup. Machine-wide kills are counted only where no
    cgroup counts: they are mostly other programs'. A kill counts in the cgroup of the killed process, whichever limit
    was hit (Linux, ``mm/oom_kill.c``; Documentation/admin-guide/cgroup-v2.rst, ``memory.events.local``).
    """
    files = [("", "memory.events.local"), ("", "memory.events"), ("memory", "memory.oom_control")]
    for controller, name in files:
        for text in _read_each(_cgroup_folders(root, controller), name):
            if (kills := _counted(text, "oom_kill")) is not None:
                return kills
    return _counted(_read(root / "proc/vmstat") or "", "oom_kill") or 0


def shm_free_bytes(folder: Path = Path("/dev/shm")) -> int:
    """Free bytes of the shared-memory file system; 0 where there is none."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def start_method() -> str:
    """Multiprocessing's start method: the one chosen, else the default; asking does not fix it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def parse_cpu_max(text: str) -> float | None:
    """Cores of a ``cpu.max`` line such as ``"150000 100000"``; None for ``max`` and for v1's ``-1``."""
    fields = text.split()
    if not fields or fields[0] == "max":
        return None
    quota_us, period_us = int(fields[0]), int(fields[1]) if len(fields) > 1 else 100_000
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name of a ``/proc/meminfo`` text."""
    return {
        name: int(fields[0]) * 1024
        for name, _, rest in (line.partition(":") for line in text.splitlines())
        if len(fields := rest.split()) == 2 and fields[1] == "kB" and fields[0].isdecimal()
    }


def parse_cgroup(text: str) -> dict[str, str]:
    """The cgroup path of each controller of a ``/proc/self/cgroup`` text; version 2 has the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its parents, innermost first; any ancestor may hold the tightest limit.

    Inside a container the path of ``/proc/self/cgroup`` may not exist under the mount; its parents then lead to the
    mount's root, which is the container's own group.
    """
    paths = parse_cgroup(_read(root / "proc/self/cgroup") or "")
    if controller not in paths:
        return
    mount = root / "sys/fs/cgroup" / controller
    # `..` appears when the process sits outside of the visible namespace; only the mount's root is then known.
    parts = [part for part in paths[controller].split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of every memory cgroup above this process that has a limit."""
    files = [("", "memory.max", "memory.current", "inactive_file")]
    files.append(("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    for controller, limit_file, usage_file, reclaimable in files:
        for folder in _cgroup_folders(root, controller):
            limit_text = (_read(folder / limit_file) or "max").strip()
            if limit_text == "max" or int(limit_text) >= _V1_UNLIMITED_BYTES:
                continue
            used = int(_read(folder / usage_file) or 0)
            # Cold page cache counts as used and is given back on demand.
            yield int(limit_text), max(0, used - _stat_value(folder, reclaimable))


def _own_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of each resource limit of this process that is set."""
    fields = (_read(root / "proc/self/statm") or "").split()
    if len(fields) < 6:
        return
    page = resource.getpagesize()
    for kind, used in ((resource.RLIMIT_AS, int(fields[0])), (resource.RLIMIT_DATA, int(fields[5]))):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            yield limit, used * page


def _stat_value(folder: Path, name: str) -> int:
    return _counted(_read(folder / "memory.stat") or "", name) or 0


def _counted(text: str, name: str) -> int | None:
    """The number after a name, in a file with a name and a number on each line; None if it is missing."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def _read_each(folders: Iterator[Path], name: str) -> Iterator[str]:
    return (text for folder in folders if (text := _read(folder / name)))


def _read(path: Path) -> str | None:
    """The file's text, or None where it is missing or may not be read."""
    try:
        return path.read_text()
    except OSError:
        return None


def _finite(limit: int) -> int:
    return limit if limit != resource.RLIM_INFINITY else 2**31 - 1
