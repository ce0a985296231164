"""A model by its name: the version that answers, and a new one that takes over step by step."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from stoker.core.errors import ServingError
from stoker.serve.engine import TensorSpec
from stoker.serve.models.pending import Pending
from stoker.serve.models.version import ModelVersion
from stoker.serve.refusals import RequestRefused

_LAST_S = 5.0
"""That a change waits at its end for answers of the old version to what the new one failed at."""
_LOOK_S = 0.01
_ENGINES_S = 0.05
"""Between two looks at whether all engines of a new version are warm."""

MakeVersion = Callable[[str, str], Awaitable[ModelVersion]]
"""Starts a version from where its model is and its label; raises :class:`ServingError`."""


class SwapPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a new version takes over.

    Attributes:
        source: where the new model is.
        canary_frac: share of the requests that it answers at first.
        hold_s: how long at least.
        slowdown: times the old version's cost of a batch that the new one's may be; None for no bound.
    """

    source: str
    canary_frac: float = 0.1
    hold_s: float = 5.0
    slowdown: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.canary_frac <= 1.0:
            raise ValueError(f"`canary_frac` must be above 0 and at most 1, got {self.canary_frac}")
        if not 0.0 <= self.hold_s <= 86400.0:
            raise ValueError(f"`hold_s` must be from 0 to 86400, got {self.hold_s}")
        if self.slowdown is not None and not self.slowdown > 0.0:
            raise ValueError(f"`slowdown` must be positive, got {self.slowdown}")


class SwapOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it.

    Attributes:
        version: that answers now.
        changed: whether that is the new one.
        reason: in words.
    """

    version: str
    changed: bool
    reason: str


@dataclass
class _Canary:
    version: ModelVersion
    frac: float
    credit: float = 0.0
    """Requests that it is owed: the share is kept exactly, without chance."""
    failed: list[Pending] = field(default_factory=list[Pending])
    """Requests that it failed at, for as long as the old version has them."""


class ServedModel:
    """Routes requests to versions; each is answered by one of them, wholly.

    Args:
        name: of the model.
        make_version: starts one.
        say: shows a line to people.
    """

    def __init__(self, name: str, make_version: MakeVersion, say: Callable[[str], None]) -> None:
        self.name = name
        self._make_version = make_version
        self._say = say
        self._count = 0
        self._current: ModelVersion | None = None
        self._canary: _Canary | None = None
        self._swapping = asyncio.Lock()
        self._change: asyncio.Task[SwapOutcome] | None = None
        """The change that is going on."""
        self._stopped = ""
        """Why it is to stop."""
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return self._current is not None

    @property
    def current(self) -> ModelVersion:
        """The version that answers; during a change the one that answered before it."""
        assert self._current is not None, "a model is asked after its start"
        return self._current

    @property
    def versions(self) -> list[ModelVersion]:
        """All that have processes."""
        return [version for version in (self._current, self._canary and self._canary.version) if version is not None]

    def asked(self, label: str) -> ModelVersion:
        """The version that a request names, or the one that answers where it names none.

        Args:
            label: of the version; empty for none.

        Raises:
            RequestRefused: it answers no requests.
        """
        if not label:
            return self.current
        for version in self.versions:
            if version.label == label:
                return version
        known = " and ".join(version.label for version in self.versions)
        raise RequestRefused(404, f"`{self.name}` is served as version {known}, not {label[:20]}")

    async def start(self, source: str) -> ModelVersion:
        """Loads the first version; raises :class:`ServingError`."""
        self._current = await self._next(source)
        return self._current

    def submit_to(self, label: str, item: Pending) -> None:
        """Has the version answer that a request names, and no other: what it fails at has no answer.

        Raises:
            RequestRefused: it answers no requests, or not any more.
        """
        self.asked(label).submit(item)

    def submit(self, item: Pending) -> None:
        """Has one version answer a request that names none; what a new one fails at on trial, the old one answers."""
        canary = self._due()
        if canary is None:
            self.current.submit(item)
        else:
            item.on_failure = functools.partial(self._once_more, canary)
            canary.version.submit(item)

    def _once_more(self, canary: _Canary, item: Pending) -> None:
        """Asks the old version for what a new one failed at, before all that wait there: it has waited already.

        Only if that one answers it was the new one's failure: anyone can send what no version takes.
        """
        current = self.current
        item.on_failure, item.on_answer = None, canary.version.outdone
        item.deadline_s = math.inf
        canary.failed = [each for each in canary.failed if current.has(each)]
        canary.failed.append(item)
        current.submit_first(item)

    async def swap(self, plan: SwapPlan) -> SwapOutcome:
        """Warms a new version, gives it a share of the requests, then all; back to the old one if it fails.

        Raises:
            ServingError: another change is going on, this one was stopped, or the new model does not load or takes
                something else.
        """
        if self._swapping.locked():
            raise ServingError(f"`{self.name}` must change one version at a time; wait for the other change")
        async with self._swapping:
            self._stopped = ""
            self._change = asyncio.ensure_future(self._changed(plan))
            try:
                return await self._change
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
                raise ServingError(
                    f"`{self.name}`: the change to {plan.source} was stopped, as {self._stopped}; version "
                    f"{self.current.label} answers as before"
                ) from None
            finally:
                self._change = None

    def stop_change(self, why: str) -> None:
        """Stops a change that is going on, if one is: the version that answered before it does so again.

        Args:
            why: in words, after "as".
        """
        if self._change is not None and not self._change.done() and not self._stopped:
            self._stopped = why
            self._change.cancel()
            self._say(f"`{self.name}`: the change is stopped, as {why}; version {self.current.label} answers")

    async def _changed(self, plan: SwapPlan) -> SwapOutcome:
        old = self.current
        new = await self._next(plan.source)
        if refused := self._unfit(old, new, plan):
            await new.close()
            raise ServingError(refused)
        try:
            reason = await self._try(new, plan)
        except asyncio.CancelledError:
            self._canary = None
            self._retire(new)
            raise
        if reason is None:
            self._current, self._canary = new, None
            self._retire(old)
            self._say(f"`{self.name}`: version {new.label} answers, {old.label} ends with its last request")
            return SwapOutcome(version=new.label, changed=True, reason=f"{new.answered} answers as canary")
        self._canary = None
        self._retire(new)
        self._say(f"`{self.name}`: back to version {old.label}: {reason}")
        return SwapOutcome(version=old.label, changed=False, reason=reason)

    async def close(self) -> None:
        """Answers what is left, then ends all processes."""
        for version in self.versions:
            await version.drained()
            await version.close()
        for task in list(self._closing):
            await task

    async def abort(self) -> None:
        """Ends all processes at once."""
        for task in self._closing:
            task.cancel()
        for version in self.versions:
            await version.close()

    def _due(self) -> _Canary | None:
        """The version on trial if the next request is of its share."""
        canary = self._canary
        if canary is None:
            return None
        if self.current.trouble:  # it answers nothing
            return canary
        canary.credit += canary.frac
        if canary.credit < 1.0:
            return None
        canary.credit -= 1.0
        return canary

    async def _next(self, source: str) -> ModelVersion:
        self._count += 1
        return await self._make_version(source, str(self._count))

    def _unfit(self, old: ModelVersion, new: ModelVersion, plan: SwapPlan) -> str | None:
        """Why the new version cannot take over; None if it can."""
        pairs = itertools.zip_longest(new.interface.inputs, old.interface.inputs)
        takes_all = all(mine and other and mine.takes_all_of(other) for mine, other in pairs)
        if not takes_all or old.interface.outputs != new.interface.outputs:
            return (
                f"`{plan.source}` must take and give what version {old.label} does, "
                f"{_signature(old)}, got {_signature(new)}"
            )
        before, after = dict(old.costs), dict(new.costs)
        common = max(before.keys() & after.keys())
        if plan.slowdown is not None and after[common] > plan.slowdown * before[common]:
            return (
                f"`{plan.source}` must take at most {plan.slowdown:g} times as long, got "
                f"{after[common] / before[common]:.1f} for a batch of {common}"
            )
        return None

    async def _try(self, new: ModelVersion, plan: SwapPlan) -> str | None:
        """Lets it answer its share; the reason to go back, or None."""
        self._canary = canary = _Canary(new, plan.canary_frac)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(new.troubled.wait(), plan.hold_s)
        if short := await self._short_of_engines(new):
            return short
        # What it failed at a moment ago tells when the old version has ended with it.
        last, until_s = canary.failed, monotonic() + _LAST_S
        while not new.troubled.is_set() and any(map(self.current.has, last)) and monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(new.troubled.wait(), _LOOK_S)
        if not new.troubled.is_set():
            waiting = sum(map(self.current.has, last))
            if not waiting:
                return None
            return (
                f"version {new.label} failed for {waiting} requests that version {self.current.label} has not "
                "answered yet"
            )
        if new.failures:
            return (
                f"version {new.label} failed for {new.failures} of {new.answered + new.failures} requests, "
                f"which version {self.current.label} answered"
            )
        return f"version {new.label} lost {new.pool.lost} engines"

    async def _short_of_engines(self, new: ModelVersion) -> str:
        """Waits for all engines of a new version: they warm one after another behind those that answer.

        The reason to go back where it has fewer than the old one in the end, else empty.
        """
        pool, wanted, until_s = new.pool, new.settings.pool.engines, monotonic() + new.settings.pool.start_s
        while pool.num_ready < wanted and not new.troubled.is_set() and not pool.trouble and monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(new.troubled.wait(), _ENGINES_S)
        if pool.num_ready >= wanted or new.troubled.is_set():
            return ""
        found = f"version {new.label} has {pool.num_ready} of {wanted} engines"
        why = pool.trouble or f"others are not warm after {new.settings.pool.start_s:g} s"
        if pool.num_ready < max(1, self.current.pool.num_ready):
            return f"{found}: {why}"
        self._say(f"`{self.name}`: {found}, as many as version {self.current.label}: {why}")
        return ""

    def _retire(self, version: ModelVersion) -> None:
        task = asyncio.get_running_loop().create_task(_drain_and_close(version))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _drain_and_close(version: ModelVersion) -> None:
    try:
        await version.drained()
    finally:
        with contextlib.suppress(OSError):
            await version.close(at_once=False)


def _short(highs: tuple[int, ...]) -> str:
    shown = ", ".join("any" if high < 0 else str(high) for high in highs[:16])
    return shown + ", ..." if len(highs) > 16 else shown


def _signature(version: ModelVersion) -> str:
    def all_of(specs: tuple[TensorSpec, ...]) -> str:
        return ", ".join(
            f"{spec.name} {spec.dtype}{list(spec.shape)}"
            + (" from {} to {}".format(*spec.values) if spec.values else "")
            + (f" (by place: {_short(spec.highs)})" if spec.highs else "")
            for spec in specs
        )

    return f"({all_of(version.interface.inputs)}) -> ({all_of(version.interface.outputs)})"
