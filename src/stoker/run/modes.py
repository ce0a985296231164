"""How a process runs under stoker: its loaders are served; or they are explained, replayed or profiled."""

from __future__ import annotations

from stoker.run.run_context import Active
from stoker.run.session import Session

_session: Session | None = None


def will_report() -> bool:
    """Whether this process is to print a report, at its end."""
    return _session is not None and _session.is_to_report


def install(active: Active) -> None:
    """Serves this process's loaders from now on; does nothing the second time."""
    global _session
    # Imported here: the other modes are rare, and each served process would pay for them.
    if active.profile:
        from stoker.run.profiling import session as profiling

        profiling.install(active)
    elif active.explain_to or active.settings.replay:
        from stoker.run import explaining, replaying

        (explaining if active.explain_to else replaying).install(active)
    elif _session is None:
        _session = Session(active)
        _session.start()
