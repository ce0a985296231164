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
from stoker.perf.communication.methods import Leave
from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.exchange import AgreedExchange, ExchangeRuns, MeasuredExchange
from stoker.records.exchange_file import EXCHANGE_FILE, write_exchanges
from stoker.train.exchanging.calling import serve
from stoker.train.exchanging.replica import ExchangePlanner, ReplicaExchange
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.ring.synchronise import copied_by_chain
from stoker.train.settings import ExchangeSettings, leaves_of
from stoker.ui.exchange.run_text import write_exchange_run


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
        self._watch = ReplicaWatch(self._serve, self._copy)
        self._is_alone = False

    def start(self) -> None:
        """Serves the modules that are made from now on."""
        self._watch.install()

    def _copy(self, module: Any, group: Any, buffers: bool) -> bool:
        if not dist.is_initialized():
            return False
        name = type(module).__name__
        return copied_by_chain(module, group, lambda line: say(f"exchange of {name}: {line}"), buffers=buffers)

    def _serve(self, ddp: DistributedDataParallel) -> ReplicaExchange | None:
        untyped = cast("Any", ddp)
        if dist.get_world_size(untyped.process_group) == 1:
            self._is_alone = True
            return None
        number = len(self._replicas)
        name = type(untyped.module).__name__
        replica = serve(ddp, planner(self._allowed), name=f"{name} {number}" if number else name, probes=True)
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
            write_exchanges(self._folder, ExchangeRuns(replicas=runs))
        if self._quiet or rank:
            return
        for run in runs:
            say(f"exchange of {run.name}: {write_exchange_run(run)}; see `stoker exchange {self._folder}`")
        # A launcher's ranks are other processes, which speak for themselves.
        is_launcher = "torch.distributed.launcher" in sys.modules or (self._folder / EXCHANGE_FILE).exists()
        if not self._watch.made and speaks and not is_launcher:
            say("`--comm auto` needs a `DistributedDataParallel`, and this program made none: nothing was exchanged")
        elif self._is_alone and not self._replicas:
            say("`--comm auto` needs two ranks or more, got 1: nothing was exchanged; start it with torchrun")
        elif self._replicas and not runs:
            say("exchange: the program ended before there was a plan, which takes six steps")
