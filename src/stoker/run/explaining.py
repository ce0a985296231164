"""`stoker explain script.py`, inside the program: at the first ``iter(loader)`` says how each loader would be served.

It examines every loader that exists at that moment. It draws from no sampler and makes no sample in the program's
process: two throwaway workers probe a candidate for the elastic tier, with the first indices of its dataset. Then
`stoker explain` ends all processes of the program.
"""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

from stoker.core.errors import WorkerStartError
from stoker.core.texts import to_json
from stoker.core.units import format_seconds
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.order.sampling import Cursor, inner_sampler
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity import tiers
from stoker.feed.purity.probe import NUM_SAMPLES, Evidence
from stoker.feed.purity.tiers import Choice
from stoker.feed.shell.crew import Crew, Message
from stoker.feed.state import instructions as do
from stoker.feed.torch_private import collates, index_sampler_of
from stoker.feed.transport.board import Departure
from stoker.feed.transport.messages import MessageKind, unpack_lease
from stoker.records import events
from stoker.records.explanation import Explanation
from stoker.run.hard_exit import await_end
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving, call_site, length_of
from stoker.run.rank import find_place
from stoker.run.run_context import Active


class Explainer(Serving):
    """Replaces the object that serves loaders, and serves none."""

    def __init__(self, active: Active) -> None:
        super().__init__(active.settings, [], active.program, active.launcher)
        self._active = active
        self._explaining = False

    def start(self) -> None:
        """Explains from now on."""
        patch.install(self)

    def iterate(self, loader: DataLoader[Any], stock: Callable[[], Any], cursor: Cursor | None = None) -> Any:
        """Explains all loaders and ends the process; loaders inside of datasets, met on the way, stay torch's."""
        if self._explaining:
            return stock()
        self._explaining = True
        if find_place().rank == 0:
            self._write(loader, call_site(3))
        await_end()

    def _write(self, iterated: DataLoader[Any], at: str) -> None:
        loaders = self._alive(iterated)
        explanation = Explanation(
            program=list(self._active.program),
            at=at,
            first=next(number for number, loader in enumerate(loaders) if loader is iterated),
            loaders=[self._describe(number, loader) for number, loader in enumerate(loaders)],
            world_size=find_place().world_size,
        )
        target = Path(self._active.explain_to)
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.write_bytes(to_json(explanation))
        part.replace(target)  # a reader sees all of it or none

    def _alive(self, iterated: DataLoader[Any]) -> list[DataLoader[Any]]:
        """The loaders of this process: those whose making was seen, in that order, then copies of loaders."""
        known = list(self.sites.keys())
        # By type rather than `isinstance`, which would wake the lazy modules and proxies that programs hold.
        others = [thing for thing in gc.get_objects() if DataLoader in type(thing).__mro__]
        found = {id(loader): loader for loader in [*known, *others, iterated]}
        return [loader for loader in found.values() if "dataset" in vars(loader)]  # else its constructor failed

    def _describe(self, number: int, loader: DataLoader[Any]) -> events.LoaderOpened:
        choice = self._choose(loader)
        return events.LoaderOpened(
            t_s=self.now_s(),
            loader=number,
            site=self.sites.get(loader) or "unknown",
            dataset=type(loader.dataset).__name__,
            length=length_of(loader),
            batch_size=getattr(loader, "batch_size", None),
            declared_workers=loader.num_workers,
            tier=choice.tier.value,
            reason=choice.reason,
            evidence=list(choice.evidence),
        )

    def _choose(self, loader: DataLoader[Any]) -> Choice:
        program = LoaderFeed.program_of(loader)
        choice = tiers.choose(program, index_sampler_of(loader), wish=self.config.feed.tier)
        if choice.tier not in (Tier.ELASTIC, Tier.PINNED):
            return choice
        try:
            return self._probe(loader, program, choice)
        except WorkerStartError as error:
            return Choice(tier=Tier.STOCK, reason=error.args[0])

    def _probe(self, loader: DataLoader[Any], program: Program, choice: Choice) -> Choice:
        """The probe's verdict on a candidate; for the pinned tier, only whether workers can start."""
        given: Any = loader
        context = given.multiprocessing_context or torch.multiprocessing
        iteration = Iteration(
            ordinal=0,
            base_seed=os.getpid(),
            tier=choice.tier,
            seeds_generators=self.config.feed.random == "sample" and choice.tier is Tier.ELASTIC,
        )
        crew = Crew(self.backend, program, context, iteration)
        try:
            if not choice.candidate:
                crew.complete()
                return choice
            indices, others, exact = first_indices(loader)
            found, trouble = _run_probe(crew, program, indices, others, self.config.faults.stall_timeout_s)
        finally:
            crew.close()
        if trouble and found is not None and not exact:
            note = f"not probed: {indices!r} are not indices of its dataset, and its sampler was not drawn from"
            return Choice(tier=choice.tier, reason=choice.reason, evidence=(*choice.evidence, note))
        finding = found or "the probe could not be finished"
        judged = tiers.judge(choice, program, finding, random=self.config.feed.random)
        notes = (trouble,) if trouble else ()
        if judged.tier is Tier.ELASTIC and program.declared_workers == 0:
            notes = (*notes, "`stoker run` also times a batch, and leaves it in the training process where it is quick")
        return Choice(tier=judged.tier, reason=judged.reason, evidence=(*judged.evidence, *notes))


def first_indices(loader: DataLoader[Any]) -> tuple[Any, Any, bool]:
    """Indices for a probe, not drawn from the sampler, another batch's, and whether the dataset has them for sure."""
    if not collates(loader):
        return 0, 1, False
    sampler = inner_sampler(index_sampler_of(loader))
    count = min(NUM_SAMPLES, loader.batch_size or NUM_SAMPLES)
    indices, exact = _some_indices(loader, sampler, 2 * count)
    return indices[:count], indices[count:], exact


def _some_indices(loader: DataLoader[Any], sampler: Any, count: int) -> tuple[list[Any], bool]:
    if isinstance(sampler, list | tuple | range):
        return list(cast("list[Any]", sampler)[:count]), True
    if type(sampler) is SubsetRandomSampler:
        return list(sampler.indices[:count]), True
    try:
        count = min(count, len(loader.dataset))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return list(range(count)), False
    return list(range(count)), type(sampler).__module__.startswith("torch.utils.data")


def _run_probe(
    crew: Crew, program: Program, indices: Any, others: Any, timeout_s: float
) -> tuple[tuple[Evidence, Evidence] | None, str]:
    """The evidence of both sides of the probe (None if one never answered), and the obstacle, if any."""
    beside = crew.spawn(0)
    # Another worker id than the first worker's, so that a dependence on it shows.
    apart = crew.spawn(min(1, max(0, program.declared_workers - 1)))
    if beside is None or apart is None:
        return None, "no data worker could be started"
    item = WorkItem(indices=indices, start=0)
    other = WorkItem(indices=others, start=NUM_SAMPLES) if others else None
    # Repeated: the batch itself is of no use and stays where it is.
    crew.lease(do.Lease(beside.identity.number, 0, 0, -1, -1, item, digest=True, repeat=True))
    crew.probe(apart, "apart", item, other)
    found: dict[str, Evidence] = {}
    trouble, made = "", False
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and not (made and found.keys() >= {"beside", "apart"}):
        for arrival in crew.poll(0.1):
            if isinstance(arrival, Departure):
                return None, f"a data worker that made its first samples was lost: {arrival.cause}"
            if not isinstance(arrival, Message):
                continue  # a departure, with the cause, comes next
            frame = arrival.frame
            if frame.kind is MessageKind.PROBED:
                role, evidence = pickle.loads(frame.body)
                found[role] = evidence
            elif frame.kind is MessageKind.FAILED:
                made = True
                trouble = f"its first samples raise an exception: {_last_line(unpack_lease(frame.body)[1])}"
            elif frame.kind is MessageKind.READY:
                made = True
    if not found.keys() >= {"beside", "apart"}:
        return None, f"its first samples were not made within {format_seconds(timeout_s)}"
    return (found["beside"], found["apart"]), trouble


def _last_line(body: Any) -> str:
    wrapper, _ = pickle.loads(body)
    lines = [line for line in str(wrapper.exc_msg).splitlines() if line.strip()]
    return lines[-1].strip() if lines else wrapper.exc_type.__name__
