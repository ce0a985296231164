"""Runs cases with data workers on another machine from the first batch on that may be made there.

As ``tests.contract.run``, under ``stoker run`` with a host: cases are so short that the policy would never ask for one.
How many items the host has made goes to a file at the end.
"""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path
from typing import Any

from stoker.feed.scaling import Decision
from stoker.feed.shell.engine import Engine
from stoker.feed.state import events as ev

from . import run

COUNT_FILE = "CONTRACT_AWAY_FILE"
_ADMITTED_S = 20.0
_counters: dict[int, Any] = {}


def _go_away(engine: Engine) -> None:
    """Has workers elsewhere, once the host has loaded the program, if the loader may have any."""
    crew = engine.crew
    if not engine.state.may_leave or crew._gateway is None:
        return
    if crew._sample is None:
        engine.fill()
    deadline = time.monotonic() + _ADMITTED_S
    while not crew.away_room and time.monotonic() < deadline:
        crew.prepare_away()
        engine.pump(0.01)
    _counters[id(engine._counters)] = engine._counters
    if crew.away_room:
        engine._obey(Decision(workers=3, depth=2, reason="", away=2))


def main() -> None:
    """The cases of the command line."""
    await_evidence, open_ = Engine.await_evidence, Engine.open

    def after_evidence(self: Engine) -> Any:
        found = await_evidence(self)
        _go_away(self)
        return found

    def after_opening(self: Engine, *, probed: bool = False) -> None:
        if self.crew._gateway is not None and not self.state.pinned:  # few items are made here before
            self.state.on(ev.Decided(Decision(workers=1, depth=1, reason="")), time.monotonic())
        open_(self, probed=probed)
        _go_away(self)

    Engine.await_evidence, Engine.open = after_evidence, after_opening
    own, path = os.getpid(), Path(os.environ[COUNT_FILE])

    def count() -> None:
        if os.getpid() == own:
            path.write_text(str(sum(counters.items_away for counters in _counters.values())))

    atexit.register(count)
    run.main()


if __name__ == "__main__":
    main()
