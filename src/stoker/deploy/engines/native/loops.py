"""Nested C++ loops over the axes of a sample, with the offset of each array as an expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Steps = tuple[int, ...]


def steps_of(shape: Sequence[int]) -> Steps:
    """Elements between neighbours along each axis of an array that lies in order."""
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.insert(0, step)
        step *= size
    return tuple(found)


def broadcast_steps(shape: Sequence[int], over: Sequence[int]) -> Steps:
    """The same for an array that is repeated over a larger shape: 0 where it has size 1, or no axis."""
    own = (1,) * (len(over) - len(shape)) + tuple(shape)
    return tuple(0 if size == 1 else step for size, step in zip(own, steps_of(own), strict=True))


def nest(sizes: Sequence[int], steps: Mapping[str, Steps], body: Sequence[str], letter: str = "i") -> list[str]:
    """Loops over all places of a shape around lines in which ``{name}`` is an array's offset at that place.

    Args:
        sizes: of the axes.
        steps: elements between neighbours along each axis, by name.
        body: lines; braces but those of names are doubled.
        letter: of the counters, so that nests can lie within each other.
    """
    axes = _merged([(size, {name: each[at] for name, each in steps.items()}) for at, size in enumerate(sizes)])
    offsets = {
        name: " + ".join(f"{letter}{at} * i64({by[name]})" for at, (_, by) in enumerate(axes) if by[name]) or "0"
        for name in steps
    }
    heads = [
        f"{'  ' * at}for (int {letter}{at} = 0; {letter}{at} < {size}; {letter}{at}++)"
        for at, (size, _) in enumerate(axes)
    ]
    deep = "  " * len(axes)
    inner = [f"{deep}{line.format(**offsets)}" for line in body]
    return [*heads, "  " * max(0, len(axes) - 1) + "{", *inner, "  " * max(0, len(axes) - 1) + "}"]


def _merged(axes: list[tuple[int, dict[str, int]]]) -> list[tuple[int, dict[str, int]]]:
    """Axes of size 1 left out, and neighbours joined that every array walks through as one."""
    found: list[tuple[int, dict[str, int]]] = []
    for size, by in axes:
        if size == 1:
            continue
        if found and all(step == by[name] * size for name, step in found[-1][1].items()):
            found[-1] = (found[-1][0] * size, by)
        else:
            found.append((size, by))
    return found
