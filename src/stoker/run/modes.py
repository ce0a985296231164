"""How a process runs under stoker: its loaders are served; or they are explained, replayed or profiled."""

from __future__ import annotations

from typing import Protocol

from stoker.run.run_context import Active
from stoker.run.session import Session


class Mode(Protocol):
    """What a process does for stoker besides running the program."""

    def start(self) -> None:
        """Does it from now on."""
        ...


_mode: Mode | None = None


def will_report() -> bool:
    """Whether this process is to print a report, at its end."""
    return isinstance(_mode, Session) and _mode.is_to_report


def install(active: Active) -> None:
    """Starts the mode that this process is meant for; does nothing the second time."""
    global _mode
    if _mode is None:
        _mode = _meant_by(active)
        _mode.start()


def _meant_by(active: Active) -> Mode:
    # Imported here: the other modes are rare, and each served process would pay for them.
    if active.profile:
        from stoker.run.profiling.session import ProfileSession

        return ProfileSession(active)
    if active.explain_to:
        from stoker.run.explaining import Explainer

        return Explainer(active)
    if active.settings.faults.replay:
        from stoker.run.replaying import Replayer

        return Replayer(active)
    return Session(active)
