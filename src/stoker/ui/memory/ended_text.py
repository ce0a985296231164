"""What held a program's memory when it ended without it, or that the kernel ended it, in a few lines."""

from __future__ import annotations

from stoker.core.units import format_seconds
from stoker.records.memory import KilledRun, OutOfMemory
from stoker.ui.memory.words import MemoryUnit, write_next, write_shares

_VARIABLES = 4
_LEAST = 0.01
"""Share of all tensors from which a variable is shown."""


def write_end(end: OutOfMemory) -> list[str]:
    """At most ten lines, without line breaks."""
    counted = sum(share.bytes for share in end.categories)
    asked = end.asked
    unit = MemoryUnit(max(counted, asked.bytes or 0))
    variables = [share for share in end.variables if share.bytes >= _LEAST * counted]
    device = asked.device if asked.index is None else f"{asked.device}:{asked.index}"
    where = f" at {end.line}" if end.line else ""
    size = f"{unit.full(asked.bytes)} asked for" if asked.bytes is not None else "memory asked for"
    limit = "" if asked.capacity_bytes is None else f", which has {unit.full(asked.capacity_bytes)} in all"
    lines = [f"out of memory: {size}{where} on {device}{limit}"]
    if counted:
        lines.append(f"tensors hold {unit.full(counted)}: {write_shares(end.categories, unit)}")
    lines += [f"  {unit.full(share.bytes)} in {share.name}" for share in variables[:_VARIABLES]]
    if len(variables) > _VARIABLES:
        left = sum(share.bytes for share in variables[_VARIABLES:])
        lines.append(f"  {unit.full(left)} in {len(variables) - _VARIABLES} other variables")
    if asked.idle_bytes and asked.bytes and asked.idle_bytes >= asked.bytes:
        lines.append(
            f"{unit.full(asked.idle_bytes)} are reserved and in no tensor: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reserves less"
        )
    if end.fit_command:
        lines.append(f"to make it fit, with equal losses: {end.fit_command}")
    if end.command:
        lines.append(write_next(end.command, end.peak_bytes, end.step_frac))
    return lines


def write_killed(killed: KilledRun, command: str) -> list[str]:
    """Two lines about the run before, without line breaks.

    Args:
        killed: that run.
        command: to type next; empty for none.
    """
    others = "" if killed.kills == 1 else f" (or another one: it has killed {killed.kills} processes since)"
    limit = f", of {MemoryUnit(killed.memory_bytes).full(killed.memory_bytes)}" if killed.memory_bytes else ""
    after = f" about {format_seconds(killed.after_s)} after its start" if killed.after_s else ""
    what = f"the kernel killed the last run of this program{after}{others}: it ran out of memory{limit}"
    lines = [f"{what} ({killed.folder})"]
    return [*lines, write_next(command)] if command else lines
