"""What stoker learned of the steps of one loop, kept even if the program makes a new loader for every epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.core.trials.alternating import CutTrial
from stoker.graph.recording.common_graph import Recording
from stoker.graph.recording.recorder import Trace

_MAX_REMEMBERED = 16
"""Recordings that one loop's memory holds, over all its loaders."""


@dataclass(slots=True)
class LoopMemory:
    """Recordings of one loop's steps, and the results of their cut."""

    recordings: list[Recording] = field(default_factory=list[Recording])
    """The latest last."""
    trial: CutTrial | None = None
    passed: tuple[str, float] | None = None
    """The result of the cut's trial: in words, and the measured gain."""

    def keep(self, recording: Recording) -> None:
        """Adds one; the oldest go, as those of sizes that come once in a program's life."""
        self.recordings.append(recording)
        del self.recordings[:-_MAX_REMEMBERED]

    def like(self, trace: Trace) -> Recording | None:
        """The recording of steps like this one."""
        for recording in reversed(self.recordings):
            if recording.signature == trace.signature and recording.fits(trace):
                return recording
        return None
