"""Which calls a compiler would fuse into one kernel: chains of elementwise work, norms, softmax and reductions.

A call joins the kernel of the call that made one of its inputs when both work on as many elements, and all its other
inputs existed before that kernel began. Then values that only its members use never leave the chip. Products,
convolutions, attention, recurrent layers, lookups and sorts stay separate kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.perf.features.tracing.recorder import TracedCall

FUSIBLE = frozenset({"pointwise", "norm", "softmax", "reduction", "copy", "fill", "random"})


class _Group:
    """A kernel of one or several calls."""

    __slots__ = ("last", "phase", "reads", "size", "start")

    def __init__(self, start: int, size: int, phase: str) -> None:
        self.start = self.last = start
        self.size, self.phase = size, phase
        self.reads: dict[int, dict[object, float]] = {}


def fused(calls: Sequence[TracedCall], sizes: Sequence[int], kept: set[int]) -> list[tuple[float, int]]:
    """Bytes of each call after fusion, and whether it begins a kernel (1 or 0).

    Args:
        calls: of one step, in order.
        sizes: bytes of each buffer.
        kept: buffers that outlive the step, which are always written.
    """
    groups, fresh = _grouped(calls)
    used_by: dict[int, set[int]] = {}
    for call, group in zip(calls, groups, strict=True):
        for buffer, _, _ in call.reads:
            used_by.setdefault(buffer, set()).add(id(group))
    left: list[tuple[float, int]] = []
    written: set[tuple[int, int]] = set()
    for call, group, begins in zip(calls, groups, fresh, strict=True):
        alone = call.kind not in FUSIBLE
        size = 0.0
        for buffer, part, nbytes in call.reads:
            if alone:
                size += nbytes
            elif (id(group), buffer) not in written:
                parts = group.reads.setdefault(buffer, {})
                more = max(0.0, nbytes - parts.get(part, 0.0))
                # Parts that overlap are read once: never more than the whole. Separate passes stay.
                more = min(more, max(nbytes, float(sizes[buffer])) - min(sum(parts.values()), float(sizes[buffer])))
                parts[part] = parts.get(part, 0.0) + more
                size += more
        for buffer, _, nbytes in call.writes:
            outside = buffer in kept or bool(used_by.get(buffer, set()) - {id(group)})
            if alone or (outside and (id(group), buffer) not in written):
                size += nbytes
            if not alone:
                written.add((id(group), buffer))
        left.append((size, begins))
    return left


def _grouped(calls: Sequence[TracedCall]) -> tuple[list[_Group], list[int]]:
    """The kernel of each call, and 1 for those that begin one."""
    made_by: dict[int, _Group] = {}
    groups: list[_Group] = []
    fresh: list[int] = []
    for at, call in enumerate(calls):
        group = _joined(call, made_by) if call.kind in FUSIBLE else None
        fresh.append(0 if group else 1)
        if group is None:
            fusible = call.kind in FUSIBLE
            group = _Group(at, call.dims[0] if fusible and call.dims else -1, call.phase)
        group.last = at
        groups.append(group)
        for buffer, _, _ in call.writes:
            made_by[buffer] = group
    return groups, fresh


def _joined(call: TracedCall, made_by: dict[int, _Group]) -> _Group | None:
    """The latest kernel that this call can be part of."""
    makers = {id(group): group for buffer, _, _ in call.reads if (group := made_by.get(buffer))}
    size = call.dims[0] if call.dims else -1
    for group in sorted(makers.values(), key=lambda group: -group.start):
        if group.size != size or group.phase != call.phase:
            continue
        if all(other is group or other.last < group.start for other in makers.values()):
            return group
    return None
