"""What processes use, read from /proc: memory of their own, descriptors, and the slots they share."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20


def private_bytes(pid: int) -> int:
    """Memory that only this process has; 0 when it is gone."""
    return _sum_kib(Path(f"/proc/{pid}/smaps_rollup"), ("Private_Clean:", "Private_Dirty:"))


def resident_bytes(pid: int) -> int:
    """Resident memory, shared pages included; 0 when it is gone."""
    return _sum_kib(Path(f"/proc/{pid}/status"), ("VmRSS:",))


def _sum_kib(path: Path, keys: tuple[str, ...]) -> int:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(keys))


def descriptors(pid: int) -> int:
    """Open descriptors; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def slot_bytes(pid: int) -> int:
    """Memory behind the rings of slots that a process holds, as the kernel counts it."""
    found: dict[int, int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith("/memfd:stoker-ring"):
                stat = os.stat(path)
                found[stat.st_ino] = stat.st_blocks * 512
        except OSError:
            continue  # closed meanwhile
    return sum(found.values())
