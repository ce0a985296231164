"""Whether a design gives all outputs of the law: samples back to back, with and without pauses on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.row_numbers import highs_of
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.tools.running import tools_at_once
from stoker.deploy.tools.simulation import Outcome, Stalls, simulate
from stoker.deploy.tools.verilator import lint, simulator
from stoker.records.deploy.hardware import VerifiedDesign, VerifiedWay

WAYS: Mapping[str, Stalls] = {
    "back to back": Stalls(seed=1),
    "pauses on both sides": Stalls(seed=2, before=0.3, after=0.3),
    "a slow reader": Stalls(seed=3, after=0.8),
}
"""How samples are sent; the registers begin with other random bits in each."""
PROCESSES = 2
_BATCH = 256


class DescribedDesign(Protocol):
    """What a design says of itself."""

    @property
    def cycles(self) -> int:
        """Cycles of a sample, back to back."""
        ...

    @property
    def fifos(self) -> dict[str, int]:
        """Depths in words of those in front of joins, in the order of the design's flags."""
        ...


def verify(
    graph: IntegerGraph, design: Path, inputs: Mapping[str, Integers], *, ways: Sequence[str] = tuple(WAYS),
    kept_in: Path | None = None, limit_s: float = 3600.0,
) -> VerifiedDesign:  # fmt: skip
    """Compares every output of a design with the law's.

    Args:
        graph: that the design was made from.
        design: its folder.
        inputs: input values by name, each (samples, …).
        ways: of :data:`WAYS`; two at a time run.
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for a run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool warns of the design, fails, or takes too long.
        ValueError: the folder holds no design.
    """
    description = read_design(design)
    lint(design, limit_s=limit_s)
    program = simulator(design, kept_in, limit_s=limit_s)
    sent = device_inputs(graph, description.host_tables, inputs)
    run = partial(simulate, program, design, description, sent, limit_s=limit_s)
    return in_ways(run, graph, inputs, description, ways)


def in_ways(
    run: Callable[..., tuple[Mapping[str, NDArray[np.int32]], Outcome]], graph: IntegerGraph,
    inputs: Mapping[str, Integers], description: DescribedDesign, ways: Sequence[str] = tuple(WAYS),
) -> VerifiedDesign:  # fmt: skip
    """Runs a simulator in some ways, two at a time, and compares every output with the law's.

    Args:
        run: takes pauses, as ``stalls``; returns results by name, and what was seen.
        graph: that the design was made from.
        inputs: input values by name, each (samples, …).
        description: of the design.
        ways: of :data:`WAYS`.
    """
    with tools_at_once(PROCESSES) as pool:
        runs = [pool.submit(run, stalls=WAYS[way]) for way in ways]
        law = law_of(graph, inputs)
        found = tuple(_compared(way, law, description, *each.result()) for way, each in zip(ways, runs, strict=True))
    return VerifiedDesign(ways=found, cycles=description.cycles)


def law_of(graph: IntegerGraph, inputs: Mapping[str, Integers]) -> dict[str, NDArray[np.int32]]:
    """The law's outputs, flat for each sample."""
    engine = NumpyEngine(graph)
    samples = len(next(iter(inputs.values())))
    parts = [
        engine.integers({name: array[at : at + _BATCH] for name, array in inputs.items()})
        for at in range(0, samples, _BATCH)
    ]
    return {name: np.concatenate([part[name].reshape(len(part[name]), -1) for part in parts]) for name in parts[0]}


def _compared(
    way: str, law: Mapping[str, NDArray[np.int32]], description: DescribedDesign,
    results: Mapping[str, NDArray[np.int32]], outcome: Outcome,
) -> VerifiedWay:  # fmt: skip
    """One run against the law's outputs, flat for each sample."""
    differing = 0
    for name, wanted in law.items():
        got = results[name][: len(wanted)]
        differing += int((got != wanted[: len(got)]).sum()) + wanted[len(got) :].size
    samples = len(next(iter(law.values())))
    return VerifiedWay(
        way=way, samples=samples, outputs=sum(each.size for each in law.values()), differing=differing,
        interval=outcome.interval(), latency=outcome.latency(), problem=problem_of(outcome, description, samples),
    )  # fmt: skip


def problem_of(outcome: Outcome, description: DescribedDesign, samples: int) -> str:
    """What was wrong besides the numbers; empty if nothing was."""
    if outcome.wrong:
        return f"the outputs' protocol was broken: {outcome.wrong}"
    if outcome.stuck:
        names = list(description.fifos)
        full = [f"`{names[at]}` of {description.fifos[names[at]]} words" for at in outcome.full]
        which = f"full: {', '.join(full)}" if full else "no FIFO in front of a join is full"
        return f"the design stood still after {outcome.samples_out} samples; {which}"
    if outcome.misplaced:
        return "the design saw the end of a sample at another place than it was sent"
    if (outcome.samples_in, outcome.samples_out) != (samples, samples):
        counted = f"{outcome.samples_in} in, {outcome.samples_out} out"
        return f"the design's counters must be {samples} samples in and out, got {counted}"
    return ""


def random_samples(graph: IntegerGraph, samples: int, seed: int) -> dict[str, NDArray[np.int32]]:
    """Input values of the whole range of each input, at each place."""
    random = np.random.default_rng(seed)
    values = {port.value: graph.value(port) for port in graph.inputs}
    ends = {name: np.maximum(highs_of(value), 0) if value.highs else value.high for name, value in values.items()}
    return {
        name: random.integers(value.low, ends[name] + 1, (samples, *value.shape)).astype(np.int32)
        for name, value in values.items()
    }
