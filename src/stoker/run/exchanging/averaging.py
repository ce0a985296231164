"""``stoker run --comm average``: every replicated module that the program makes trains apart and is averaged.

Joins the averages (``stoker.train.averaging``) with a program's modules and with the records of its run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from msgspec.structs import replace
from torch.nn.parallel import DistributedDataParallel

from stoker.core.errors import RunFolderError
from stoker.core.saying import say
from stoker.core.units import format_count
from stoker.records.events import ModelAveraged
from stoker.records.runlog import read_run
from stoker.run.loaders.serving import Serving
from stoker.train.averaging.averager import ModelAverager, serve, why_not
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.program.versions import unlike_versions

DIFFER = "losses differ from those of DistributedDataParallel"


class Averaging:
    """The averages of one process of a program.

    Args:
        serving: of the process, which gets the records.
        folder: of the run.
        quiet: says nothing but errors.
    """

    def __init__(self, serving: Serving, folder: Path, *, quiet: bool) -> None:
        self._serving, self._folder, self._quiet = serving, folder, quiet
        self._modules: list[AveragedModule] = []
        self._watch = ReplicaWatch(self._serve)
        self._is_alone = False

    def start(self) -> None:
        """Serves the modules that are made from now on."""
        self._watch.install()

    def _serve(self, ddp: DistributedDataParallel) -> AveragedModule | None:
        group = cast("Any", ddp).process_group
        if dist.get_world_size(group) == 1:
            self._is_alone = True
            return None
        speaks = dist.get_rank(group) == 0
        if reason := unlike_versions(group, ddp) or why_not(ddp):
            if speaks:
                say(f"`--comm average`: {reason}: gradients are exchanged as torch does it")
            return None
        if speaks and not self._quiet and not self._modules:
            say(f"`--comm average`: ranks train apart and take means of their weights; {DIFFER}")
        module = AveragedModule(ddp, self._record, speaks=speaks)
        self._modules.append(module)
        return module

    def _record(self, record: ModelAveraged) -> None:
        # The program has made its process group by now, which may be what tells the rank of this process.
        self._serving.look_at_place()
        self._serving.emit(replace(record, t_s=self._serving.now_s()))

    def finish(self, rank: int, *, speaks: bool) -> None:
        """Takes back all changes and says what came of it, on rank 0.

        Args:
            rank: of this process.
            speaks: whether no other process would say that nothing was averaged.
        """
        self._watch.remove()
        if self._quiet or rank:
            return
        for module in self._modules:
            if module.last is not None:
                say(line_of_averages(module.num_rounds, module.last))
        if self._is_alone and not self._modules:
            say("`--comm average` needs two ranks or more, got 1: nothing was averaged; start it with torchrun")
        elif not self._watch.made and speaks and not self._is_launcher:
            say("`--comm average` needs a `DistributedDataParallel`, and this program made none: nothing was averaged")

    @property
    def _is_launcher(self) -> bool:
        """Whether the ranks are other processes, which speak for themselves."""
        if "torch.distributed.launcher" in sys.modules:
            return True
        try:
            return any(isinstance(event, ModelAveraged) for event in read_run(self._folder).events)
        except RunFolderError:
            return False


class AveragedModule:
    """One module of a program, averaged until the program wants an exchange of gradients that averages cannot give.

    Args:
        ddp: that the program has made.
        on_round: called with the record of each average.
        speaks: whether this rank says what happens.
    """

    def __init__(
        self, ddp: DistributedDataParallel, on_round: Callable[[ModelAveraged], None], *, speaks: bool
    ) -> None:
        self._ddp, self._on_round, self._speaks = ddp, on_round, speaks
        self.num_rounds = 0
        """Averages so far."""
        self.last: ModelAveraged | None = None
        """Record of the last one."""
        self._averager: ModelAverager | None = serve(ddp, on_round=self._averaged)

    def give_way(self, hook: Callable[..., Any], state: Any) -> None:
        """The program's own hook exchanges gradients from now on."""
        self._end("registers its own hook for gradients, which stays")
        cast("Any", self._ddp).register_comm_hook(state, hook)

    def divide_by_active(self, ddp: DistributedDataParallel) -> None:
        """Nothing: the averages have ended where ranks join."""

    def joined(self, *, is_over: bool) -> None:
        """Nothing: the averages have ended where ranks join."""

    def join_begins(self) -> None:
        """Ranks that have joined answer torch's exchange, and would let an average wait."""
        self._end("enters `join()`, where ranks make different numbers of steps")

    def close(self) -> None:
        """Takes back all changes, without the other ranks."""
        averager, self._averager = self._averager, None
        if averager is not None:
            averager.close()

    def _end(self, cause: str) -> None:
        """Ends with one more mean, so that ranks continue with equal weights. Collective."""
        averager = self._averager
        if averager is None:
            return
        if averager.replica.apart:
            averager.average()
        self.close()
        if self._speaks:
            name = type(cast("Any", self._ddp).module).__name__
            say(f"`--comm average`: the program {cause}: gradients of {name} are exchanged as torch does it")

    def _averaged(self, record: ModelAveraged) -> None:
        self.num_rounds += 1
        self.last = record
        self._on_round(record)


def line_of_averages(num_rounds: int, last: ModelAveraged) -> str:
    """What the averages of one model came to, in one line."""
    agreement = "" if last.agreement is None else f", agreement {last.agreement:.2f}"
    return (
        f"model averaging of {last.model}: {format_count(num_rounds, 'average')} in {format_count(last.step, 'step')}, "
        f"the last period {format_count(last.period, 'step')}{agreement}; {DIFFER}; "
        "`stoker report` shows the course"
    )
