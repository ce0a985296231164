"""What to do with a sample that killed (or hung) its data worker twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from msgspec.structs import replace

from stoker.core import seeds
from stoker.core.errors import SampleKillsWorkerError, dead_worker, end_of_worker
from stoker.feed.program import Iteration, WorkItem
from stoker.feed.replay import replay_command
from stoker.feed.state.ledger import Item
from stoker.feed.transport.board import Departure

Policy = Literal["raise", "skip", "replace"]


class Death(Protocol):
    """What is known about the end of a worker."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def cause(self) -> str:
        """In words, such as ``killed by signal: SIGSEGV``."""
        ...


class QuarantineListener(Protocol):
    """Receives the samples that were left out or replaced."""

    def sample_quarantined(self, index: object, path: str, seed: int, action: str) -> None:
        """A sample was left out or replaced."""
        ...


@dataclass
class Quarantine:
    """Applies the policy and keeps count, for one loader."""

    dataset: Any
    loader: int
    policy: Policy
    cap: int
    listener: QuarantineListener
    auto_collation: bool = True
    """Whether an item's indices are a batch."""
    program: tuple[str, ...] = ("train.py",)
    """The user's script and arguments, for the command that remakes a sample; empty if typed at a prompt."""
    launcher: tuple[str, ...] = ()
    """Command prefix that starts it."""
    num_quarantined: int = field(default=0, init=False)
    _known: set[object] = field(default_factory=set[object], init=False)

    def apply(self, work: WorkItem) -> WorkItem:
        """A newly drawn work item without the samples that are quarantined already."""
        if not self._known:
            return work
        bad = tuple(k for k, index in enumerate(work.indices) if _hashable(index) and index in self._known)
        return self._without(work, bad) if len(bad) < len(work.indices) else work

    def blame(self, item: Item, departure: Departure, iteration: Iteration) -> None:
        """Counts a worker's death at an item; the second one at one position judges the sample there."""
        position = departure.whereabouts.position
        item.deaths[position] = item.deaths.get(position, 0) + 1
        if item.deaths[position] >= 2:
            item.work = self.judge(item, position, departure, iteration)

    def judge(self, item: Item, position: int, death: Death, iteration: Iteration) -> WorkItem:
        """The work item without the sample at ``position``, which has just killed a second worker.

        Raises:
            SampleKillsWorkerError: the policy is ``raise``, the cap is reached, or no single sample is to blame.
        """
        work = item.work
        single = position >= 0
        index = work.indices[position] if single and self.auto_collation else work.indices
        can_leave_out = single and self.auto_collation and index is not None  # a stream has no indices
        seed = seeds.batch_seed(iteration.base_seed, iteration.ordinal, item.seq)
        if single:
            seed = seeds.sample_seed(iteration.base_seed, iteration.ordinal, work.start + position, index)
        path = path_of(self.dataset, index) if single else ""
        why_not = ""
        if can_leave_out and self.policy != "raise":
            if self.num_quarantined >= self.cap:
                why_not = f" ({self.cap} samples were left out already)"
            elif not self._without(work, (position,)).sources():
                why_not = " (no other sample of its batch is left)"
        if self.policy == "raise" or not can_leave_out or why_not:
            raise self._error(index, path, seed, death, why_not, single, can_leave_out)
        self.num_quarantined += 1
        if _hashable(index):
            self._known.add(index)
        self.listener.sample_quarantined(index, path, seed, self.policy)
        return self._without(work, (position,))

    def _without(self, work: WorkItem, positions: tuple[int, ...]) -> WorkItem:
        if self.policy == "skip":
            return replace(work, skip=(*work.skip, *positions))
        return replace(work, replace=(*work.replace, *positions))

    def _error(
        self, index: object, path: str, seed: int, death: Death, why_not: str, single: bool, can_leave_out: bool
    ) -> SampleKillsWorkerError:
        what = f"sample {_short(index)}" if single else f"the batch of indices {_short(index)}"
        if index is None:
            what = "a sample of the stream"
        where = f" ({path})" if path else ""
        typed_in = not self.program
        replay = replay_command(self.loader, index, seed, self.program, self.launcher) if single else ""
        alone = f"loader.dataset[{_short(index)}]" if typed_in and single and index is not None else replay
        remedies = [f"make it alone, in the training process, with `{alone}`"] if alone else []
        if can_leave_out:
            how = 'stoker.feeding(on_bad_sample="skip")' if typed_in else "--on-bad-sample skip"
            remedies.append(f"leave such samples out with `{how}`")
        if not remedies:
            how = "stoker.feeding(workers=0)" if typed_in else "--workers 0"
            remedies.append(f"run with `{how}` to see the cause in the training process")
        ended = end_of_worker(death.pid, death.cause)
        return SampleKillsWorkerError(
            f"{dead_worker(death.pid)}: {what}{where} ended its data worker twice, {ended}{why_not}; "
            f"{', or '.join(remedies)}",
            index=index,
            path=path,
            seed=seed,
            replay=replay,
        )


def _hashable(index: object) -> bool:
    try:
        hash(index)
    except TypeError:
        return False
    return True


def _short(index: object) -> str:
    text = repr(index)
    return text if len(text) < 80 else text[:77] + "..."


def path_of(dataset: Any, index: Any) -> str:
    """The file of a sample, if the dataset keeps a list of files under a common name; else an empty string."""
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # Subset
        try:
            dataset, index = dataset.dataset, dataset.indices[index]
        except (IndexError, KeyError, TypeError):
            return ""
    for name in ("samples", "imgs", "paths", "files", "filenames", "image_paths", "items"):
        entries: Any = getattr(dataset, name, None)
        if not isinstance(entries, (list, tuple)) or not isinstance(index, int):
            continue
        known = cast("Sequence[Any]", entries)
        if -len(known) <= index < len(known):
            path = _leading(known[index])
            if isinstance(path, str) or hasattr(path, "__fspath__"):
                return str(path)
    return ""


def _leading(entry: Any) -> object:
    """The path of a ``(path, label)`` row; any other entry unchanged."""
    if not isinstance(entry, (list, tuple)):
        return entry
    row = cast("Sequence[object]", entry)
    return row[0] if row else None
