"""What held a program's memory when it ended without it, in a few lines."""

from __future__ import annotations

from stoker.records.memory import OutOfMemory
from stoker.ui.memory.words import MemoryUnit, write_shares

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
        lines.append(f"what holds a step's memory, by line, and what lowers it: {end.command}")
    return lines
