"""The register of cases: each is a function without arguments that returns a transcript."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .transcript import Transcript

Equal = Literal["exact", "unordered", "streams"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program and what of it must be equal."""

    name: str
    """The function's name; unique."""
    group: str
    """What it is about; ``PROCESSES`` says which groups share a process."""
    equal: Equal
    """exact: every event. unordered: batches as a multiset, the rest in order. streams: all but the batches' values."""
    warnings: bool
    """Whether the warnings must be equal too, by category and first words."""
    served: bool
    """Whether stoker must serve every loader with workers; False where the program brings its own iterator."""
    program: Callable[[], Transcript]


CASES: dict[str, Case] = {}

PROCESSES: dict[str, tuple[str, ...]] = {
    "order": ("order", "lazy", "random", "options", "change"),
    "batches": ("values", "objects", "sizes", "lifetime", "frameworks"),
    "streams": ("iterable", "datapipes", "errors", "context"),
}
"""Groups by the process that runs them: starting python and torch costs more than most groups."""


def case(
    group: str, *, equal: Equal = "exact", warnings: bool = True, served: bool = True
) -> Callable[[Callable[[], Transcript]], Callable[[], Transcript]]:
    """Registers the decorated function as a case of ``group``."""

    def register(program: Callable[[], Transcript]) -> Callable[[], Transcript]:
        name = program.__name__
        if name in CASES:
            raise ValueError(f"`{name}` is registered twice, in {CASES[name].group} and {group}")
        CASES[name] = Case(name=name, group=group, equal=equal, warnings=warnings, served=served, program=program)
        return program

    return register


def process_of(group: str) -> str:
    """The name of the process that runs a group."""
    return next(name for name, members in PROCESSES.items() if group in members)


def by_process() -> dict[str, list[Case]]:
    """Cases by process, in order of definition."""
    found: dict[str, list[Case]] = {name: [] for name in PROCESSES}
    for entry in CASES.values():
        found[process_of(entry.group)].append(entry)
    return found
