"""The running differential probe of one loader: who takes part, and what they have found so far."""

from __future__ import annotations

import pickle

from stoker.core.units import format_bytes
from stoker.feed.crew import Crew
from stoker.feed.fetch import moves_samples
from stoker.feed.leases import Item
from stoker.feed.probe import Evidence, Role
from stoker.feed.program import Program, Tier
from stoker.feed.room import torchs_batches


class ProbeError(Exception):
    """A data worker failed while it compared samples: a mistake of stoker's, with its traceback."""


class Probing:
    """One probe, accompanying the first batch of an engine."""

    def __init__(self) -> None:
        self.wanted = False
        """The next batch to be leased is the one to accompany."""
        self.first_drew: bool | None = None
        """Whether that batch drew from the global random streams; None before it is known."""
        self._evidence: dict[str, Evidence] = {}
        self._prober = self._maker = -1
        self._item: Item | None = None
        self._other: Item | None = None
        self._was_repeated = False
        self.refused = ""
        """Why the samples are not compared, as half a sentence; empty where they are."""
        self._waits = False

    def start(self) -> None:
        """Begins."""
        self.wanted = True

    def spawn(self, crew: Crew, program: Program) -> None:
        """Starts the throwaway worker, once; second, so that the first batch waits no longer for it than it must."""
        if not self.wanted or self._prober >= 0:
            return
        # Another worker id than the first batch's, so that a dependence on it shows.
        member = crew.spawn(min(1, max(0, program.declared_workers - 1)))
        if member is not None:
            member.draining = True  # gets no leases
            self._prober = member.identity.number

    def accompany(self, crew: Crew, program: Program, item: Item, other: Item | None, maker: int) -> None:
        """``maker`` gets the lease of the first batch; the throwaway worker gets the same samples, and ``other``."""
        self.spawn(crew, program)
        self.wanted, self._maker, self._item, self._other = False, maker, item, other
        self._ask(crew, self._prober, "apart", item)

    def repeat(self, crew: Crew, program: Program) -> bool:
        """Has two throwaway workers begin anew, once; False when that was done before, or they can't be started.

        A worker may die of something that has nothing to do with its samples; one that dies again hardly does.
        """
        if self._was_repeated or self._item is None:
            return False
        self._was_repeated = True
        self.forget()
        maker, prober = crew.spawn(0), crew.spawn(min(1, max(0, program.declared_workers - 1)))
        if maker is None or prober is None:
            return False
        self._maker, self._prober = maker.identity.number, prober.identity.number
        self._ask(crew, self._maker, "beside", self._item)
        self._ask(crew, self._prober, "apart", self._item)
        return True

    def forget(self) -> None:
        """The workers are gone, and what they found may be of a dataset that has changed since."""
        self._prober = self._maker = -1
        self._waits = False
        self._evidence.clear()

    def _ask(self, crew: Crew, number: int, role: Role, item: Item) -> None:
        member = crew.members.get(number)
        if member is not None:
            crew.probe(member, role, item.work, self._other.work if self._other is not None else None)
            crew.stop(member)

    def found(self, body: bytes) -> None:
        """Takes in a PROBED message; raises :class:`ProbeError` where a worker could not look."""
        role, value = pickle.loads(body)
        if role == "drew":
            self.first_drew = value
        elif role == "failed":
            raise ProbeError(value)
        else:
            self._evidence[role] = value
            self._waits = self._waits and role != "apart"

    def sized(
        self, crew: Crew, program: Program, worker: int, sample_bytes: int, head: Item | None, free_bytes: int
    ) -> str:
        """The throwaway worker's first sample is large, and it waits; why it is not to go on, empty where it is."""
        samples = len(head.work.indices) if head is not None and moves_samples(program, Tier.ELASTIC) else 1
        why_not = why_not_probed(
            sample_bytes=sample_bytes,
            batch_bytes=sample_bytes * samples,
            workers=len(crew.active()),
            free_bytes=free_bytes,
        )
        if worker == self._prober:
            self.refused, self._waits = why_not, not why_not
            if not why_not:
                crew.let_go_on(self._maker)
        return why_not

    def refuse(self, why_not: str) -> None:
        """Samples are not to be compared, unless they were already; ``why_not`` is half a sentence."""
        if (self.wanted or self._item is not None) and self.evidence is None:
            self.refused, self._waits = why_not, False

    def give_up(self, crew: Crew, why_not: str) -> None:
        """Samples are not compared after all, whatever was found; nobody waits for word any more."""
        crew.end_probe(self._prober, why_not)
        crew.let_go_on(self._maker)
        self.wanted = self._waits = False
        self.refused = why_not
        self._evidence.clear()

    @property
    def holds_back(self) -> bool:
        """Whether other workers are to finish what they have and get nothing more: samples are large."""
        return self._waits

    def go_on(self, crew: Crew, *, all_idle: bool) -> None:
        """Lets the throwaway worker go on once no other is at work."""
        if self._waits and all_idle and "beside" in self._evidence and self._prober in crew.members:
            crew.let_go_on(self._prober)

    @property
    def evidence(self) -> tuple[Evidence, Evidence] | None:
        """What both found; None while one has not said."""
        beside, apart = self._evidence.get("beside"), self._evidence.get("apart")
        return (beside, apart) if beside is not None and apart is not None else None

    def hopeless(self, crew: Crew) -> bool:
        """Whether one of them is gone without having said anything."""
        if self.wanted:
            return False
        alive = {member.identity.number for member in crew.members.values()}
        silent_prober = "apart" not in self._evidence and self._prober not in alive
        return silent_prober or ("beside" not in self._evidence and self._maker not in alive)


MOST_PROBED_BYTES = 1 << 26
"""Larger samples are not compared: making and reading them half a dozen times takes seconds."""
_AMPLE = 2.0
"""A probe needs that many times the memory that torch's loader will need: it should not be what fills it."""


def why_not_probed(*, sample_bytes: int, batch_bytes: int, workers: int, free_bytes: int) -> str:
    """Why large samples are not compared, as half a sentence; empty where they are.

    Args:
        sample_bytes: of one sample, or of all that the dataset makes at once.
        batch_bytes: of a batch.
        workers: data workers.
        free_bytes: memory that could be allocated before the first sample was made; 0 when unknown.
    """
    if sample_bytes > MOST_PROBED_BYTES:
        return f"what it makes at once ({format_bytes(sample_bytes)}) is too large to be made again for a comparison"
    if free_bytes and free_bytes < _AMPLE * torchs_batches(workers) * batch_bytes:
        size, free = format_bytes(batch_bytes), format_bytes(free_bytes)
        return f"its batches of {size} are too large, for the {free} of memory that are free, to compare samples"
    return ""
