"""``stoker run --comm``: every replicated module that the program makes gets an exchange that is planned and tried.

Joins what measures and acts (``stoker.train``) with what decides by prices (``stoker.perf``), and records the outcome.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stoker.core.saying import say
from stoker.core.texts import to_json
from stoker.perf.communication.methods import Leave
from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.exchange import AgreedExchange, ExchangeRun, ExchangeRuns, MeasuredExchange
from stoker.train.exchanging.calling import serve
from stoker.train.exchanging.replica import ExchangePlanner, ReplicaExchange
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.settings import ExchangeSettings, leaves_of

FILE = "exchange.json"
"""Name of the record in a run folder."""


def planner(allowed: frozenset[Leave] = frozenset()) -> ExchangePlanner:
    """What plans by measured prices."""

    def plan(measured: list[MeasuredExchange]) -> AgreedExchange:
        return planned_exchange(measured, allowed=allowed, has_ring=True)

    return plan


class Exchanging:
    """The exchanges of one process of a program.

    Args:
        settings: of the exchange.
        folder: of the run.
        quiet: says nothing but errors.
    """

    def __init__(self, settings: ExchangeSettings, folder: Path, *, quiet: bool) -> None:
        self._folder, self._quiet = folder, quiet
        self._allowed = cast("frozenset[Leave]", leaves_of(settings.comm_allow or ""))
        self._replicas: list[ReplicaExchange] = []
        self._watch = ReplicaWatch(self._serve)
        self._is_alone = False

    def start(self) -> None:
        """Serves the modules that are made from now on."""
        self._watch.install()

    def _serve(self, ddp: DistributedDataParallel) -> ReplicaExchange | None:
        untyped = cast("Any", ddp)
        if dist.get_world_size(untyped.process_group) == 1:
            self._is_alone = True
            return None
        number = len(self._replicas)
        name = type(untyped.module).__name__
        replica = serve(ddp, planner(self._allowed), name=f"{name} {number}" if number else name)
        self._replicas.append(replica)
        return replica

    def finish(self, rank: int, *, speaks: bool) -> None:
        """Takes back all changes, writes the record and says what came of it, on rank 0.

        Args:
            rank: of this process.
            speaks: whether no other process would say that nothing was replicated.
        """
        runs = [record for each in self._replicas if (record := each.record()) is not None]
        self._watch.remove()
        if rank == 0 and runs:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / FILE).write_bytes(to_json(ExchangeRuns(replicas=runs)))
        if self._quiet or rank:
            return
        for run in runs:
            say(line_of_run(run))
        # A launcher's ranks are other processes, which speak for themselves.
        is_launcher = "torch.distributed.launcher" in sys.modules or (self._folder / FILE).exists()
        if not self._watch.made and speaks and not is_launcher:
            say("`--comm auto` needs a `DistributedDataParallel`, and this program made none: nothing was exchanged")
        elif self._is_alone and not self._replicas:
            say("`--comm auto` needs two ranks or more, got 1: nothing was exchanged; start it with torchrun")
        elif self._replicas and not runs:
            say("exchange: the program ended before there was a plan, which takes six steps")


def line_of_run(run: ExchangeRun) -> str:
    """What one module's exchange came to, in one line."""
    if not run.agreed.methods:
        return f"exchange of {run.name}: as torch does it: {run.agreed.note}"
    layers = f"{len(run.agreed.methods)} of its layers by {', '.join(sorted({m.method for m in run.agreed.methods}))}"
    bytes_ = f"{run.planned_bytes / 1e6:.2f} MB a step of a rank instead of {run.plain_bytes / 1e6:.2f}"
    if run.gain is None:
        return f"exchange of {run.name}: {layers}, {bytes_}; the program ended during its trial"
    times = f"a step {1e3 * run.planned_step_s:.1f} ms, {1e3 * run.plain_step_s:.1f} ms without"
    return f"exchange of {run.name}: {'kept' if run.kept else 'given up'}: {layers}, {bytes_}; {times}"
