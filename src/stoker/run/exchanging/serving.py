"""``stoker run --comm``: every replicated module that the program makes gets an exchange that is planned and tried.

Joins what measures and acts (``stoker.train``) with what decides by prices (``stoker.perf``), and records the outcome.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stoker.perf.communication.methods import Leave
from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.events import Notice
from stoker.records.exchange import AgreedExchange, ExchangeRuns, MeasuredExchange
from stoker.records.exchange_file import write_exchanges
from stoker.records.runlog import has_records
from stoker.run.exchanging.shards import ShardWatch
from stoker.run.loaders.serving import Serving
from stoker.train.exchanging.calling import serve
from stoker.train.exchanging.replica import ReplicaExchange
from stoker.train.exchanging.splits.plans import ExchangePlanner
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.program.versions import unlike_versions
from stoker.train.ring.synchronise import copied_by_chain
from stoker.train.settings import ExchangeSettings, leaves_of
from stoker.train.sharding.marks import is_shared
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
        serving: of the process; shows and records what rank 0 says.
        folder: of the run.
        run_id: its name in records; empty where it has none.
    """

    def __init__(self, settings: ExchangeSettings, serving: Serving, folder: Path, run_id: str = "") -> None:
        self._serving, self._folder, self._run_id = serving, folder, run_id
        self._allowed = cast("frozenset[Leave]", leaves_of(settings.comm_allow or ""))
        self._replicas: list[ReplicaExchange] = []
        self._watch = ReplicaWatch(self._serve, self._copy)
        self._shards = ShardWatch(serving.look_at_place)
        self._is_alone = self._fitted = False
        self._is_declined = False
        """Whether a line has said that the ranks have different versions."""

    def start(self) -> None:
        """Serves the modules that are made from now on."""
        self._watch.install()
        self._shards.install()

    def _copy(self, module: Any, group: Any, buffers: bool) -> bool:
        if not dist.is_initialized():
            return False
        self._serving.look_at_place()
        if self._declined(group, module):
            return False
        name = type(module).__name__
        return copied_by_chain(module, group, lambda line: self._tell(f"exchange of {name}: {line}"), buffers=buffers)

    def _serve(self, ddp: DistributedDataParallel) -> ReplicaExchange | None:
        untyped = cast("Any", ddp)
        if is_shared(untyped.module):
            # With `--fit` there is one plan: what is in shares has a separate exchange.
            self._tell(f"exchange of {type(untyped.module).__name__}: left to `--fit`, which keeps it in shares")
            self._fitted = True
            return None
        if dist.get_world_size(untyped.process_group) == 1:
            self._is_alone = True
            return None
        # The program has its process group by now, which may be what tells the rank of this process.
        self._serving.look_at_place()
        if self._declined(untyped.process_group, ddp):
            return None
        number = len(self._replicas)
        name = type(untyped.module).__name__
        name = f"{name} {number}" if number else name
        replica = serve(
            ddp, planner(self._allowed), name=name, tell=lambda line: self._tell(f"exchange of {line}"), probes=True,
            splits="split" in self._allowed,
        )  # fmt: skip
        self._replicas.append(replica)
        return replica

    def _declined(self, group: Any, module: Any) -> bool:
        """Whether the ranks have different versions, which is said once: they would wait for each other."""
        why = unlike_versions(group, module)
        if why and not self._is_declined:
            self._is_declined = True
            if dist.get_rank(group) == 0:
                self._tell(f"`--comm auto`: {why}: gradients are exchanged as torch does it")
        return bool(why)

    def _tell(self, line: str) -> None:
        """Shows a line, unless the run is quiet, and records it for the report."""
        self._serving.emit(Notice(t_s=self._serving.now_s(), text=line))

    def finish(self, rank: int, *, speaks: bool) -> None:
        """Takes back all changes, writes the record and says what came of it, on rank 0.

        Args:
            rank: of this process.
            speaks: whether no other process would say that nothing was replicated.
        """
        runs = [record for each in self._replicas if (record := each.record()) is not None]
        self._watch.remove()
        self._shards.remove()
        if rank:
            return
        unserved = self._unserved(speaks=speaks)
        hooked = [
            f"`--comm auto`: {each.name} keeps the program's own hook for gradients"
            for each in self._replicas
            if each.program_hook is not None and each.agreed is None
        ]
        if runs or unserved or hooked:
            write_exchanges(self._folder, ExchangeRuns(replicas=runs, notes=unserved + hooked))
        for run in runs:
            self._tell(f"exchange of {run.name}: {write_exchange_run(run)}; see `stoker exchange {self._folder}`")
        for line in unserved:  # the others were said when the hooks came
            self._tell(line)

    def _unserved(self, *, speaks: bool) -> list[str]:
        """Why nothing was planned for modules of the program, as far as nobody has said it."""
        found: list[str] = []
        if self._fitted:
            return found
        if self._shards.names:
            names = ", ".join(f"`{name}`" for name in self._shards.names)
            found.append(f"`--comm auto` leaves {names} to FSDP2, which exchanges what it shards itself")
        elif not self._watch.made and speaks and not self._has_others():
            found.append(
                "`--comm auto` needs a `DistributedDataParallel`, and this program made none: nothing was exchanged; "
                "see `stoker exchange --help` for what ranks could gain"
            )
        elif self._is_alone and not self._replicas:
            found.append("`--comm auto` needs two ranks or more, got 1: nothing was exchanged; start it with torchrun")
        if any(each.program_hook is None and each.agreed is None for each in self._replicas):
            found.append("`--comm auto`: the program ended before there was a plan, which takes six steps")
        return found

    def _has_others(self) -> bool:
        """Whether the ranks are other processes, which speak for themselves."""
        return "torch.distributed.launcher" in sys.modules or has_records(self._folder, self._run_id)
