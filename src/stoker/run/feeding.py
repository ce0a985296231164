"""``with stoker.feeding():`` serves every DataLoader of the process for as long as the block lasts."""

from __future__ import annotations

import difflib
import os
import time
from html import escape
from types import TracebackType
from typing import Any

from stoker.core import host
from stoker.core.code.sources import own_program
from stoker.records import events
from stoker.records.runlog import Run, RunLog
from stoker.run.event_buffer import EventBuffer
from stoker.run.header import describe_run
from stoker.run.loaders import patch
from stoker.run.loaders.api import log_event
from stoker.run.loaders.serving import Serving
from stoker.run.rank import find_place
from stoker.run.settings import KEYS, RunSettings, resolve
from stoker.ui.report_text import render_text
from stoker.ui.summary import summarise

_open: feeding | None = None


class feeding:
    """Serves every torch ``DataLoader`` of this process inside a ``with`` block, as ``stoker run`` would.

    The block's value has :meth:`report`. At its end torch's own methods are back and all data workers are gone; an
    iterator that is still open then raises at its next batch. Under ``stoker run`` the run keeps serving, with its own
    settings.

    Args:
        settings: those of `stoker config show` (``workers=4``, ``tier="pinned"`` …), which override the environment and
            the configuration files.

    Raises:
        TypeError: there is no such setting.
        ConfigError: a value breaks its rule.
        RuntimeError: on entering, when another ``feeding`` of this process is open.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings_with(settings)
        self._memory = EventBuffer()
        self._log: RunLog | None = None
        self._serving: Serving | None = None
        self._of_run = False
        self._started_unix_s = time.time()

    def __enter__(self) -> feeding:
        """Begins to serve."""
        global _open
        if _open is not None:
            raise RuntimeError(
                "`stoker.feeding` must not be nested, and one is open; leave it first, or set what both "
                "need on the outer one"
            )
        self._serving = patch.current()
        self._of_run = self._serving is not None
        if self._serving is None:
            self._serving = self._begin()
        self._serving.add_sink(self._memory.on_event)
        _open = self
        return self

    def _begin(self) -> Serving:
        serving = Serving(self._settings, [] if self._settings.report.quiet else [log_event])
        if self._settings.report.run_dir is not None:
            self._log = RunLog(os.path.abspath(self._settings.report.run_dir), self._header)
            serving.add_sink(self._log.on_event)
        self._started_unix_s = time.time()
        patch.install(serving)
        serving.clock.install()
        return serving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the workers and restores torch's methods."""
        global _open
        _open = None
        serving = self._serving
        assert serving is not None
        if not self._of_run:
            patch.remove()
            serving.clock.remove()
            serving.close()
            serving.emit(events.RunEnded(t_s=serving.now_s(), outcome="finished" if kind is None else kind.__name__))
            if self._log is not None:
                self._log.close()
        serving.remove_sink(self._memory.on_event)

    def report(self) -> str:
        """Where the time went so far, as ``stoker run`` prints it at its end."""
        return render_text(summarise(Run(header=self._header(), events=list(self._memory.records))))

    def _header(self) -> events.RunHeader:
        run_id = f"feeding-{os.getpid()}-{self._started_unix_s:.0f}"
        serving = self._serving
        cores, place = (serving.cores, serving.place) if serving is not None else (host.cores(), find_place())
        return describe_run(run_id, own_program(), self._settings, self._started_unix_s, cores, place)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.report())}</pre>"


def settings_with(chosen: dict[str, Any]) -> RunSettings:
    """The settings of the environment and the configuration files, with ``chosen`` ones in place of theirs."""
    known = [key.field for key in KEYS]
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean `{near[0]}`?" if near else "settings are " + ", ".join(f"`{k}`" for k in known)
            raise TypeError(f"`{name}` is not a setting of `stoker.feeding`; {remedy}")
    return resolve().settings.but(**chosen)
