"""Runs cases with data workers on another machine from the first batch on that may be made there.

As ``tests.contract.run``, under ``stoker run`` with a host: cases are so short that the policy would never ask for one.
How many items the host has made goes to a file at the end.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from pathlib import Path
from typing import Any

from stoker.feed.scaling import Decision
from stoker.feed.shell.crew import Crew
from stoker.feed.shell.engine import Engine
from stoker.feed.shell.gateway import Said
from stoker.feed.state import events as ev

from . import run

COUNT_FILE = "CONTRACT_AWAY_FILE"
_ADMITTED_S = 20.0
_STAYS = ("stay on this machine", "gets no data workers")
_counters: dict[int, Any] = {}


def _go_away(engine: Engine) -> None:
    """Has workers elsewhere, once the host has loaded the program, if the loader may have any."""
    crew = engine.crew
    if not engine.state.may_leave or crew._gateway is None or crew._sample is None:
        return
    deadline = time.monotonic() + _ADMITTED_S
    while not crew.away_room and time.monotonic() < deadline and crew not in _staying:
        crew.prepare_away()
        engine.pump(0.01)
    _counters[id(engine._counters)] = engine._counters
    if crew.away_room:
        engine._obey(Decision(workers=3, depth=_depth(engine, 3), reason="", away=2))


def _depth(engine: Engine, workers: int) -> int:
    """Of the queues; where the program sees what is drawn, so many items are as torch would have drawn."""
    seen = engine.state._num_free is not None
    return max(2, -(-engine.state._lookahead // workers)) if seen else 2


_staying: weakref.WeakSet[Crew] = weakref.WeakSet()


def main() -> None:
    """The cases of the command line."""
    await_evidence, open_, await_head, gone = Engine.await_evidence, Engine.open, Engine.await_head, Crew._hear
    waiting: weakref.WeakSet[Engine] = weakref.WeakSet()

    def after_evidence(self: Engine) -> Any:
        found = await_evidence(self)
        _go_away(self)
        return found

    def after_opening(self: Engine, *, probed: bool = False) -> None:
        may_leave = self.crew._gateway is not None and not self.state.pinned
        if may_leave and self.state._num_free is None:  # few items are made here before
            self.state.on(ev.Decided(Decision(workers=1, depth=1, reason="")), time.monotonic())
        open_(self, probed=probed)
        waiting.add(self)

    def before_waiting(self: Engine) -> None:
        if self in waiting:
            waiting.discard(self)
            _go_away(self)
        await_head(self)

    def hear(self: Crew) -> None:
        gone(self)
        if any(isinstance(said, Said) and any(words in said.text for words in _STAYS) for said in self._arrived):
            _staying.add(self)

    Engine.await_evidence, Engine.open, Engine.await_head = after_evidence, after_opening, before_waiting
    Crew._hear = hear
    own, path = os.getpid(), Path(os.environ[COUNT_FILE])

    def count() -> None:
        if os.getpid() == own:
            path.write_text(str(sum(counters.items_away for counters in _counters.values())))

    atexit.register(count)
    run.main()


if __name__ == "__main__":
    main()
