"""What a planned arena holds of a step, and what stays outside of it."""

from __future__ import annotations

import msgspec

from stoker.core.units import format_bytes


class ArenaOutside(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that lie outside of an arena when most are alive."""

    operator: str
    """That made them."""
    reason: str
    """Why they can't lie inside."""
    peak_bytes: int


class ArenaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one pair of compiled graphs at one shape, without parameters, inputs and gradients."""

    name: str
    arena_bytes: int
    """Size of the planned piece."""
    bound_bytes: int
    """Most bytes of planned buffers alive at once: no plan is smaller."""
    peak_bytes: int
    """Activations and temporaries when most of them are alive, inside and outside."""
    inside_bytes: int
    """Those of them inside the arena."""
    gradient_bytes: int
    """All that the backward graph returns, at any time: ordinary memory."""
    num_planned: int
    """Buffers with a place."""
    outside: list[ArenaOutside] = []
    """At the peak, largest first."""

    @property
    def inside_frac(self) -> float:
        """Share of activations and temporaries at their peak that lie inside."""
        return self.inside_bytes / self.peak_bytes if self.peak_bytes else 0.0


class ArenaReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the arenas of a program."""

    plans: list[ArenaPlan]
    arena_bytes: int
    """That all arenas hold now."""
    planned_passes: int
    """Forward and backward passes whose buffers lay in an arena."""
    ordinary_passes: dict[str, int]
    """Those that ran in ordinary memory, by reason."""
    left: list[str]
    """Graphs that were left to `aot_eager` after an error of stoker's own, with it."""

    def line(self) -> str:
        """All of it in one line."""
        ordinary = sum(self.ordinary_passes.values())
        share = self.inside_frac
        words = [
            f"arena of {format_bytes(self.arena_bytes)}",
            f"{self.planned_passes} passes in it, {ordinary} in ordinary memory",
        ]
        if share is not None:
            words.append(f"{share:.0%} of activations and temporaries at the peak inside")
        return ", ".join([*words, *self.left])

    @property
    def inside_frac(self) -> float | None:
        """Share of activations and temporaries inside, at the peak of the plan that has the highest; None: no plan."""
        largest = max(self.plans, key=lambda plan: plan.peak_bytes, default=None)
        return None if largest is None else largest.inside_frac

    def text(self) -> str:
        """All of it for people, ended by a newline."""
        lines = [self.line()]
        for plan in self.plans:
            lines.append(
                f"{plan.name}: {plan.inside_frac:.1%} of {format_bytes(plan.peak_bytes)} inside · plan "
                f"{format_bytes(plan.arena_bytes)}, bound {format_bytes(plan.bound_bytes)} · returned by the "
                f"backward pass, outside: {format_bytes(plan.gradient_bytes)}"
            )
            lines += [
                f"  outside: {format_bytes(each.peak_bytes)} of {each.operator}, {each.reason}" for each in plan.outside
            ]
        lines += [f"in ordinary memory: {count} × {reason}" for reason, count in self.ordinary_passes.items()]
        return "\n".join([*lines, ""])


class EagerArena(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of eager CUDA got from the planned allocator, since the plan was made."""

    steps: int
    arena_bytes: int
    """0: no plan."""
    bound_bytes: int
    """Most bytes of planned requests alive at once."""
    reserved_bytes: int
    """That are held: the arena and ordinary blocks."""
    most_reserved_bytes: int
    planned: int
    """Requests that got their place."""
    outliving: int
    """Ordinary blocks by the plan: they outlive the step."""
    unexpected: int
    """Ordinary blocks for requests that the plan does not have there."""
    occupied: int
    """Ordinary blocks since something still lived in the place."""
    left_out: int
    """Planned requests that did not come."""
    problem: str = ""
    """Why there is no plan; empty while there is one, or none yet."""

    @property
    def deviations(self) -> int:
        """Requests that did not go by the plan."""
        return self.unexpected + self.occupied
