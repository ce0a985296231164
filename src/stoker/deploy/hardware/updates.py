"""Whether every output belongs wholly to one model, while a design's numbers change between samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.hardware.verification import PROCESSES, WAYS, law_of, problem_of
from stoker.deploy.ir.graph import Integers
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.generate import DesignDescription, read_design
from stoker.deploy.rtl.updating import update_of
from stoker.deploy.tools.running import tools_at_once
from stoker.deploy.tools.simulation import Outcome, Update, simulate
from stoker.deploy.tools.verilator import simulator
from stoker.records.deploy.hardware import UpdatedWay, VerifiedUpdates

UPDATES = 4
"""Changes in a run, to the other model and back in turn."""
_TIMES = 2
"""Cycles for a word of an update, with pauses of who sends it."""
_INSIDE = 8
"""Samples that leave a design before it takes the next update."""


def verify_updates(
    package: IntegerPackage, other: IntegerPackage, design: Path, inputs: Mapping[str, Integers], *,
    ways: Sequence[str] = tuple(WAYS), count: int = UPDATES, kept_in: Path | None = None, limit_s: float = 3600.0,
) -> VerifiedUpdates:  # fmt: skip
    """Changes a design's model in mid-stream, again and again, and compares every output with one model's law.

    Args:
        package: that the design was made from.
        other: whose numbers come in, and go.
        design: its folder.
        inputs: input values by name, each (samples, …); both models are given the same whole numbers.
        ways: of :data:`WAYS`; two at a time run.
        count: changes in a run.
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for a run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: the design takes no updates, or the other model is of another structure.
    """
    description = read_design(design)
    words = [update_of(description, each.graph, each.digest) for each in (package, other)]
    samples = len(next(iter(inputs.values())))
    # Samples again and again, until updates are over long before them.
    between = _TIMES * len(words[0]) + _INSIDE * description.cycles
    rounds = -(-(count + 1) * between // (samples * description.cycles))
    sent = {name: np.tile(array, (rounds, *(1,) * (array.ndim - 1))) for name, array in inputs.items()}
    plan = planned(samples * rounds, words, count)
    laws = [
        {name: np.tile(array, (rounds, 1)) for name, array in law_of(each.graph, inputs).items()}
        for each in (package, other)
    ]
    program = simulator(design, kept_in, limit_s=limit_s)
    with tools_at_once(PROCESSES) as pool:
        runs = [
            pool.submit(simulate, program, design, description, sent, stalls=WAYS[way], updates=plan, limit_s=limit_s)
            for way in ways
        ]
        digests = [int(each.digest[:8], 16) for each in (package, other)]
        last = digests[len(plan) % 2]
        found = tuple(
            judged(way, laws, description, *run.result(), updates=len(plan), digest=last)
            for way, run in zip(ways, runs, strict=True)
        )
    return VerifiedUpdates(ways=found, bytes=4 * len(words[0]))


def planned(samples: int, words: Sequence[Sequence[int]], count: int) -> list[Update]:
    """Updates spread over a run: to the second model first, then back.

    Args:
        samples: of the run.
        words: of both models' updates.
        count: at most; no two begin with the same sample.
    """
    places = sorted({samples * (at + 1) // (count + 1) for at in range(count)})
    return [Update(place, words[(at + 1) % 2]) for at, place in enumerate(places)]


def judged(
    way: str, laws: Sequence[Mapping[str, NDArray[np.int32]]], description: DesignDescription,
    results: Mapping[str, NDArray[np.int32]], outcome: Outcome, *, updates: int, digest: int,
) -> UpdatedWay:  # fmt: skip
    """What a run with updates came to.

    Args:
        way: how samples were sent.
        laws: both models' outputs, flat for each sample.
        description: of the design.
        results: outputs of the run.
        outcome: what was seen.
        updates: that were sent.
        digest: that the design must say at the end.
    """
    samples = len(next(iter(laws[0].values())))
    firsts = [each.first for each in outcome.updates]
    model = (np.arange(samples)[:, None] >= np.array(firsts, np.int64)[None, :]).sum(axis=1) % 2
    differing = 0
    whole = np.zeros((2, samples), bool)  # samples whose every output is one model's
    for which, law in enumerate(laws):
        rows = [
            np.pad((results[name] == wanted[: len(results[name])]).all(axis=1), (0, samples - len(results[name])))
            for name, wanted in law.items()
        ]
        whole[which] = np.logical_and.reduce(rows)
    for name, wanted in laws[0].items():
        due = np.where(model[:, None] == 0, wanted, laws[1][name])
        got = results[name]
        differing += int((got != due[: len(got)]).sum()) + due[len(got) :].size
    taken = [each for each in outcome.updates if not each.refused and each.first < samples]
    return UpdatedWay(
        way=way, samples=samples, outputs=sum(each.size for each in laws[0].values()), differing=differing,
        mixed=int((~whole.any(axis=0)).sum()), updates=len(taken),
        load_cycles=max((each.taken - each.begun + 1 for each in taken), default=0),
        until_next_cycles=max((each.done - each.begun for each in taken), default=0),
        problem=problem_of(outcome, description, samples) or _problem(outcome, updates, firsts, digest),
    )  # fmt: skip


def _problem(outcome: Outcome, updates: int, firsts: list[int], digest: int) -> str:
    refused = sum(each.refused for each in outcome.updates)
    if refused or len(outcome.updates) != updates:
        return f"of {updates} updates the design took {len(outcome.updates) - refused}"
    within = [first for first in firsts if first < outcome.samples_out]
    if firsts != sorted(firsts) or len(set(within)) < len(within):
        return f"updates must be for later and later samples, and were for {', '.join(map(str, firsts))}"
    if outcome.digest != digest:
        return f"the design must say that its model is {digest:08x} at the end, and says {outcome.digest:08x}"
    return ""
