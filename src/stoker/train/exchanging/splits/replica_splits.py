# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""One replicated module's splits in a run: seen to be possible, carried out between two steps, kept or made whole.

Ranks change before the first forward pass with gradients that follows an exchange whose number all of them know. There
no graph is under way, and what gradients there are have been exchanged.
"""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.records.exchange import AgreedExchange, ExchangeRun, MeasuredLayer, SplitRun
from stoker.train.exchanging import weights
from stoker.train.exchanging.splits.plans import predicted_of
from stoker.train.program import sharing
from stoker.train.splitting.layers import SplitKind
from stoker.train.splitting.running.seeing import SplitSight
from stoker.train.splitting.running.split_trial import SplitTrial
from stoker.train.splitting.running.switching import Register, SplitSwitch

_APART = "ranks had different weights afterwards: the program looks at whole gradients or weights itself"
_FIRST = 2
"""Steps after which ranks are compared first: the weights that the first one has made."""
_HASHED_EVERY = 64


class SplitOwner(Protocol):
    """Who holds the hook of a module; methods are called on all ranks alike."""

    def splits_are_kept(self) -> None:
        """What else is planned may be tried now."""
        ...

    def splits_are_out(self, reasons: Mapping[str, str]) -> None:
        """The plan is to be made again without them: why not, by layer."""
        ...


class ReplicaSplits:
    """The splits of one module.

    Args:
        ddp: the module.
        owner: see :class:`SplitOwner`.
        register: gives a module that is made again the same hook.
        say: called with lines for people, on all ranks.

    Attributes:
        runs: what was carried out.
        times: seconds of steps since the layers were split. step_bytes: that this rank sent in the last of them.
    """

    def __init__(
        self, ddp: DistributedDataParallel, owner: SplitOwner, register: Register, say: Callable[[str], None]
    ) -> None:
        self._find_ddp, self._owner, self._register, self._say = weakref.ref(ddp), owner, register, say
        self._group: Any = ddp.process_group
        self._model = cast("nn.Module", ddp.module)
        self._sight = SplitSight(ddp)
        self._switch: SplitSwitch | None = None
        self._trial: SplitTrial | None = None
        self._pending: Callable[[], None] | None = None
        """What is done before the next forward pass."""
        self._device = torch.device("cpu")
        self._counted = 0
        self.runs: list[SplitRun] = []
        self.times: list[float] = []
        self.step_bytes = 0.0
        self._sight.install()
        self._hook: Any = ddp.register_forward_pre_hook(self._before_forward)

    @property
    def _ddp(self) -> DistributedDataParallel:
        # Not held: DDP's reducer holds its hook, and so us, where Python's collector does not see it.
        found = self._find_ddp()
        assert found is not None
        return found

    @property
    def is_on(self) -> bool:
        """Whether layers are split now."""
        return self._switch is not None and self._switch.is_split

    @property
    def is_tried(self) -> bool:
        """Whether splits are planned or tried, and nothing else is."""
        return self._trial is not None or self._pending is not None

    @property
    def weights(self) -> set[int]:
        """Identities of the weights that DDP does not exchange now."""
        return {id(each) for each in self._switch.weights} if self._switch is not None and self.is_on else set()

    # Before a plan

    def look(self, weight: str, gradient: torch.Tensor) -> None:
        """Looks at a gradient before it is exchanged."""
        self._sight.look(weight.rpartition(".")[0], gradient)

    def end_measured(self, *, proves: bool) -> None:
        """A step before the plan has been exchanged."""
        self._sight.end_round()
        if proves:
            self._sight.note_tensors()

    def annotated(self, layers: list[MeasuredLayer], ours: Collection[int]) -> list[MeasuredLayer]:
        """Layers with the ways in which they may be split."""
        try:
            found = self._sight.annotated(layers, dist.get_world_size(self._group), ours)
        except Exception as error:  # then none is split, on any rank
            reraise_from_handler(error)
            self._say(line_of("look at layers that may be split", error, "none is split"))
            found = layers
        self._sight.remove()
        return found

    def forget(self) -> None:
        """There is nothing to be split."""
        self._sight.remove()

    # With a plan

    def begin(self, agreed: AgreedExchange, plan: Mapping[str, str], device: torch.device) -> str:
        """Prepares a plan's splits. Collective, at the end of an exchange.

        Args:
            agreed: the plan.
            plan: methods by module.
            device: of the gradients.

        Returns:
            Why there are none, in the words of this rank; empty if they will be tried.
        """
        self._device = device
        if not self._are_alike():
            return "ranks have different weights"
        split = cast("Mapping[str, SplitKind]", plan)
        switch: SplitSwitch | None = None
        why = ""
        try:
            switch = SplitSwitch(self._ddp, split, self._register, self._sight.optimizers)
            switch.prepare()
        except Exception as error:  # the others wait for this rank's word
            reraise_from_handler(error)
            why = str(error) or type(error).__name__
        if self._failed(why):
            if switch is not None:
                switch.undo()
            return why or "another rank can't split its layers"
        self._switch, self._trial, self.times = switch, SplitTrial(), []
        step_s, sent = predicted_of(agreed, plan)
        self.runs.append(
            SplitRun(
                layers=dict(plan), step=0, plain_step_s=0.0, split_step_s=0.0, gain=None, kept=False, why="",
                predicted_step_s=step_s, plain_bytes=0.0, split_bytes=0.0, predicted_bytes=sent,
            )
        )  # fmt: skip
        return ""

    def end_round(self, seconds: float | None, sent: float, step: int) -> None:
        """An exchange has ended.

        Args:
            seconds: since the one before; None for the first.
            sent: bytes of gradients that this rank sent in it.
            step: its number.
        """
        if self.is_on:
            assert self._switch is not None
            moved, self._counted = self._switch.sent_bytes - self._counted, self._switch.sent_bytes
            if seconds is not None:
                self.times.append(seconds)
                del self.times[:-1000]
            self.step_bytes = sent + moved
        if self._pending is not None:
            return
        # Ranks that clip by a norm that they compute themselves, or the like, differ after the first step already.
        if self.is_on and (len(self.times) == _FIRST or len(self.times) % _HASHED_EVERY == 0) and not self._are_alike():
            self._trial = None
            self._note(why=_APART)
            self._pending = self._make_whole
            return
        trial = self._trial
        if trial is None:
            return
        if seconds is not None:
            trial.add(seconds)
        if trial.is_due:
            self._note(plain_step_s=statistics.median(trial.before), plain_bytes=sent, step=step)
            self._pending = self._change
        elif self.is_on:
            self._judge(trial)

    def _judge(self, trial: SplitTrial) -> None:
        """Whether splits stay: rank 0's times count."""
        if trial.verdict is None:
            return
        (gain,) = sharing.tell_numbers([trial.verdict], self._group, self._device)
        self._trial = None
        is_kept = gain >= trial.LEAST_GAIN
        self._note(
            gain=gain, kept=is_kept, split_step_s=statistics.median(trial.after), split_bytes=self.step_bytes
        )  # fmt: skip
        names = ", ".join(f"`{name}`" for name in self.runs[-1].layers)
        if is_kept:
            self._say(f"split layers ({names}) save {100 * gain:.0f} % of a step, and stay")
            self._owner.splits_are_kept()
            return
        word = "less" if gain >= 0 else "more"
        self._note(why=f"a step took {100 * abs(gain):.0f} % {word} time with it")
        self._pending = self._make_whole

    def _note(self, **fields: Any) -> None:
        self.runs[-1] = replace(self.runs[-1], **fields)

    # Between two steps

    def _before_forward(self, *_: Any) -> None:
        if torch.compiler.is_compiling() or self._pending is None or not torch.is_grad_enabled():
            return
        act, self._pending = self._pending, None
        act()

    def _change(self) -> None:
        """Splits the layers on all ranks, or on none."""
        assert self._switch is not None
        assert self._trial is not None
        why = ""
        try:
            self._switch.split()
        except Exception as error:  # the others wait for this rank's word
            reraise_from_handler(error)
            why = f"{type(error).__name__}: {error}"
        if self._failed(why):
            self._switch.undo()
            self._out(why or "another rank could not split its layers")
            return
        self._switch.settle()
        self._counted = self._switch.sent_bytes
        self._trial.change()

    def _make_whole(self) -> None:
        """Makes the layers whole on all ranks."""
        assert self._switch is not None
        self._switch.join()
        if self.runs[-1].why == _APART:
            self._take_first()
        self._out(self.runs[-1].why)

    def _out(self, why: str) -> None:
        plan = self.runs[-1].layers
        self._note(why=why, kept=False)
        self._switch = self._trial = self._pending = None
        self._say(f"layers are whole again ({', '.join(f'`{name}`' for name in plan)}): {why}")
        self._owner.splits_are_out(dict.fromkeys(plan, f"tried: {why}"))

    def _failed(self, why: str) -> bool:
        """Whether something failed on any rank."""
        failed: Any = torch.tensor([float(bool(why))], device=self._device)
        dist.all_reduce(failed, group=self._group)
        return bool(failed)

    def _are_alike(self) -> bool:
        """Whether all ranks have the same weights, split ones aside."""
        own = weights.hash_of(self._whole_weights())
        every = sharing.gather_bytes(str(own).encode(), self._group, self._device)
        return len(set(every)) == 1

    def _whole_weights(self) -> list[nn.Parameter]:
        left = self.weights
        return [each for each in self._model.parameters() if id(each) not in left]

    def _take_first(self) -> None:
        """Gives all ranks rank 0's weights, and the state of its optimizers."""
        states = [
            value
            for optimizer in self._sight.optimizers
            for parameter in self._whole_weights()
            for value in optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.dim()
        ]
        weights.take_first([*self._whole_weights(), *states], self._group)

    # From outside

    def join_begins(self) -> None:
        """Ranks may end before others from now on, which split layers do not allow: they are made whole. Collective."""
        self._sight.is_joined = True
        if self._switch is None:
            return
        if self.is_on:
            self._note(why="the program uses `join`: ranks may have other numbers of batches")
            self._make_whole()
        else:
            self._switch.undo()
            self._out("the program uses `join`: ranks may have other numbers of batches")

    def recorded(self, run: ExchangeRun) -> ExchangeRun:
        """The record of the module's exchange, with what its splits came to."""
        if not self.is_on:
            return replace(run, splits=list(self.runs))
        split = self.runs[-1]
        gain = split.gain if run.gain is None or not run.kept or split.gain is None else _both(split.gain, run.gain)
        return replace(
            run, gain=gain, kept=split.gain is not None, plain_step_s=split.plain_step_s, plain_bytes=split.plain_bytes,
            planned_step_s=run.planned_step_s if run.kept else statistics.median(self.times or [0.0]),
            planned_bytes=self.step_bytes, splits=list(self.runs),
        )  # fmt: skip

    def close(self) -> None:
        """Changes nothing any more; layers that are split stay so, since to join them needs all ranks."""
        self._sight.remove()
        self._pending = self._trial = None
        if self.runs:
            self._note(kept=self.is_on)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _both(gain: float, further: float) -> float:
    return 1.0 - (1.0 - gain) * (1.0 - further)
