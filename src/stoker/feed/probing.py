"""The running differential probe of one loader: who takes part, and what they have found so far."""

from __future__ import annotations

import pickle

from stoker.feed.crew import Crew
from stoker.feed.probe import Evidence
from stoker.feed.program import Program, WorkItem


class Probing:
    """One probe, accompanying the first batch of an engine."""

    def __init__(self) -> None:
        self.wanted = False
        """The next batch to be leased is the one to accompany."""
        self.first_drew: bool | None = None
        """Whether that batch drew from the global random streams; None before it is known."""
        self._evidence: dict[str, Evidence] = {}
        self._prober = self._maker = -1

    def start(self) -> None:
        """Begins (again)."""
        self.wanted, self._prober = True, -1
        self._evidence.clear()

    def spawn(self, crew: Crew, program: Program) -> None:
        """Starts the throwaway worker, once; second, so that the first batch waits no longer for it than it must."""
        if not self.wanted or self._prober >= 0:
            return
        # Another worker id than the first batch's, so that a dependence on it shows.
        member = crew.spawn(min(1, max(0, program.declared_workers - 1)))
        if member is not None:
            member.draining = True  # gets no leases
            self._prober = member.identity.number

    def accompany(self, crew: Crew, program: Program, work: WorkItem, maker: int) -> None:
        """``maker`` gets the lease of the first batch; the throwaway worker gets the same samples."""
        self.spawn(crew, program)
        self.wanted, self._maker = False, maker
        member = crew.members.get(self._prober)
        if member is not None:
            crew.probe(member, work)
            crew.stop(member)

    def found(self, body: bytes) -> None:
        """Takes in a PROBED message."""
        role, value = pickle.loads(body)
        if role == "drew":
            self.first_drew = value
        else:
            self._evidence[role] = value

    @property
    def evidence(self) -> tuple[Evidence, Evidence] | None:
        """What both found; None while one has not said."""
        beside, apart = self._evidence.get("beside"), self._evidence.get("apart")
        return (beside, apart) if beside is not None and apart is not None else None

    def hopeless(self, crew: Crew) -> bool:
        """Whether one of them is gone without having said anything."""
        alive = {member.identity.number for member in crew.members.values()}
        silent_prober = "apart" not in self._evidence and self._prober not in alive
        return silent_prober or ("beside" not in self._evidence and self._maker not in alive)
