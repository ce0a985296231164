"""`stoker run --fit` in the ranks of a program: one plan for all, applied when ``DistributedDataParallel`` is made."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.core.patching import Patches
from stoker.core.texts import to_json
from stoker.perf.features.tracing.distributed import paths
from stoker.perf.memory.ranks import SHARING, in_order
from stoker.records.events import Notice
from stoker.records.fitting import FitPlan, FitRun, FitRuns, MeasureKind, RankedFits
from stoker.records.fitting_file import write_fits
from stoker.run.fitting.handing import FROM_FIRST, assumed_link, link_of
from stoker.run.loaders.serving import Serving
from stoker.train.fitting.applying import AppliedPlan
from stoker.train.fitting.counting import StepCount
from stoker.train.fitting.replicating import RankSharing
from stoker.train.sharding.telling import sums_timed, told_by_first
from stoker.ui.fitting.words import KIND_WORDS, write_outcome, write_plan

_COUNTED = 3
_LAUNCHER = "torch.distributed.launcher"
"""What a process has loaded that starts the ranks."""


class RankFitting:
    """The fit of one rank of a program.

    Args:
        plans: file with the first rank's plans, or that there is none here.
        mode: whether the plan is only reported.
        serving: of the process; shows and records what is said.
        folder: of the run.
    """

    def __init__(self, plans: str, mode: Literal["report", "auto"], serving: Serving, folder: Path) -> None:
        self._own = b"" if plans == FROM_FIRST else Path(plans).read_bytes()
        self._mode: Literal["report", "auto"] = mode
        self._serving, self._folder = serving, folder
        self._patches = Patches("the fit of a program of several ranks")
        self._plan: FitPlan | None = None
        self._applied: AppliedPlan | None = None
        self._handle: Any = None
        """The handle of what waits for the first pass through stages."""
        self._left: dict[str, str] = {}
        """What is not in force, by the path of a module or the kind of a measure, as a line."""
        self._sharing = RankSharing(self._refused)
        self._count = StepCount(_COUNTED, serving.clock.is_inside, self._counted)

    def start(self) -> None:
        """Waits for the program's replicated module from now on."""
        kind: Any = DistributedDataParallel
        self._patches.set(kind, "__init__", self._constructor(kind.__init__))

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def construct(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            if self._plan is not None or not dist.is_initialized():
                original(ddp, *args, **kwargs)
                return
            given = dict(signature.bind(ddp, *args, **kwargs).arguments)
            given.pop(next(iter(signature.parameters)))
            module = given.pop("module")
            group = given.get("process_group") or dist.group.WORLD
            if dist.get_world_size(group) == 1:
                original(ddp, *args, **kwargs)
                return
            plans = self._attempted(group)
            if not plans or not plans[0].changes or self._mode == "report":
                original(ddp, *args, **kwargs)
                return
            self._construct(plans, original, ddp, module, given)

        return construct

    def _construct(
        self, plans: Sequence[FitPlan], original: Callable[..., None], ddp: DistributedDataParallel, module: nn.Module,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Makes DDP under the first plan that all ranks can carry out; as it is if there is none. Collective."""
        for plan in plans:
            measure = next((each for each in plan.measures if each.kind in SHARING), None)
            if measure is not None and measure.kind in self._left:
                continue
            try:
                self._sharing.construct(measure, original, ddp, module, options)
            except ValueError as error:
                if measure is None:  # torch's own
                    raise
                self._refused(measure.kind, str(error))
                continue
            if plan is not plans[0]:
                self._plan = plan
                self._tell(write_plan(plan))
            self._begin(plan, ddp)
            return
        self._tell("no other plan fits: nothing is changed")
        original(ddp, module, **options)

    def _attempted(self, group: Any) -> Sequence[FitPlan]:
        try:
            return self._agreed(group)
        except Exception as error:
            reraise_from_handler(error)
            self._tell(line_of("fit", error, "nothing is changed"), always=True)
            return ()

    def _agreed(self, group: Any) -> Sequence[FitPlan]:
        """The plans of all ranks that fit, the best first: the first one's, at the rate of their sums. Collective."""
        self._serving.look_at_place()
        link = link_of(sums_timed(group), dist.get_world_size(group))
        decided = b""
        if dist.get_rank(group) == 0 and self._own:
            backend = "nccl" if dist.get_backend(group) == "nccl" else "gloo"
            fits = msgspec.json.decode(self._own, type=RankedFits)
            decided = to_json(in_order(fits, link or assumed_link(), backend))
        told = told_by_first(group, decided)
        if not told:
            return ()
        digest = hashlib.sha256(self._own).digest() if self._own else b""
        first = told_by_first(group, digest)
        if digest and digest != first:
            self._tell("this rank has planned otherwise than the first one, whose plan is taken", always=True)
        plans = msgspec.json.decode(told, type=tuple[FitPlan, ...])
        self._plan = plans[0]
        self._tell(write_plan(plans[0]))
        return plans

    def _begin(self, plan: FitPlan, ddp: DistributedDataParallel) -> None:
        """What is done to a model of one process as well, and the count, begin with its first forward pass."""
        self._count.passes_by_hand = plan.passes_by_hand
        if plan.of("stages"):  # a graph of the model runs in its place
            self._handle = ddp.register_forward_pre_hook(self._passing)
            return
        others = tuple(each for each in plan.measures if each.kind not in SHARING)
        self._applied = AppliedPlan(msgspec.structs.replace(plan, measures=others), paths, self._begun)
        self._applied.install()

    def _passing(self, *_: Any) -> None:
        if torch.is_grad_enabled() and self._handle is not None:
            self._handle.remove()
            self._handle = None
            self._count.start()

    def _begun(self, _model: nn.Module) -> None:
        assert self._applied is not None
        for name, reason in self._applied.left.items():
            self._leave(name, f"`{name}` is left as it is: {reason}")
        self._count.start()

    def _counted(self) -> None:
        if (run := self.record()) is not None and (line := write_outcome(run)):
            self._tell(line)

    def _refused(self, kind: MeasureKind, reason: str) -> None:
        self._leave(kind, f"{KIND_WORDS[kind]} is left out: {reason}")

    def _leave(self, name: str, line: str) -> None:
        if name not in self._left:
            self._left[name] = line
            self._tell(line)

    def _tell(self, line: str, *, always: bool = False) -> None:
        if always or not self._serving.place.rank:
            self._serving.emit(Notice(t_s=self._serving.now_s(), text=f"fit: {line}"))

    def record(self) -> FitRun | None:
        """The plan, and what came of it so far; None without one."""
        if self._plan is None:
            return None
        applied = (*self._sharing.kinds, *(self._applied.applied if self._applied is not None else ()))
        return FitRun(
            plan=self._plan, mode=self._mode, rank=self._serving.place.rank, applied=applied,
            left=tuple(self._left.values()), counted=tuple(self._count.peaks),
        )  # fmt: skip

    def finish(self, rank: int) -> None:
        """Takes back what can be, and writes the record on rank 0. Shares are served until the process ends."""
        run = self.record()
        self._count.stop()
        if self._applied is not None:
            self._applied.remove()
        self._patches.restore()
        self._sharing.close()
        if run is not None and not rank:
            write_fits(self._folder, FitRuns(runs=(run,)))
        elif run is None and self._own and not rank and _LAUNCHER not in sys.modules:
            self._tell("no `DistributedDataParallel` of two ranks or more was made: nothing was changed")
