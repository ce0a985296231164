"""What the ranks of an attempt have recorded so far, and the window of sizes that it shows.

They write it to the run folder in any case: reading there needs no connection, and nothing of it is lost or left behind
when a process dies.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import msgspec

from stoker.core.texts import to_json
from stoker.records.events import (
    AnyEvent,
    CheckpointSaved,
    LoaderOpened,
    Progress,
    RunHeader,
    SizesChosen,
    TrainingStarted,
)
from stoker.records.runlog import events_name, header_name
from stoker.scale.cluster.sizes import SizeWindow
from stoker.ui.windows import RecordedWindow, between, delivered_s

WINDOW_S = 20.0
"""A window is about so long, if that is enough: costs change."""
LEAST_S, LEAST_BATCHES = 3.0, 10
"""A shorter window, of each rank, is not believed."""
UNSETTLED_S = 60.0
"""After so long a window is believed though the number of data workers still changes."""
_KEPT = 120
"""Records of a rank that are kept: about one comes a second."""
_LINK_FULL, _IDLE = 0.2, 0.5
"""Shares of deliveries that found the queue empty, and of data workers' time that was idle, which together say that
batches of other machines are held up on their way."""


class RankRecords:
    """The records of one rank, read as they are written."""

    def __init__(self, folder: Path, rank: int, run_id: str) -> None:
        self._folder, self._rank, self._run_id = folder, rank, run_id
        self._decoder = msgspec.json.Decoder[AnyEvent](AnyEvent)
        self._at = 0
        self._rest = b""
        self.header: RunHeader | None = None
        self.progress: deque[Progress] = deque(maxlen=_KEPT)
        self.tiers: dict[int, str] = {}
        self.started: TrainingStarted | None = None
        self.saved: CheckpointSaved | None = None
        """The last complete checkpoint."""
        self.checkpoints = 0

    def read(self) -> None:
        """Takes in what is new; nothing before the rank's header, without which the records may be an earlier run's."""
        if self.header is None and not self._find_header():
            return
        try:
            with (self._folder / events_name(self._rank)).open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except OSError:
            return
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            try:
                self._take(self._decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # of another kind than this stoker knows, or torn

    def tell(self, t_s: float, chosen: SizesChosen) -> None:
        """Adds a record of the launcher's own: one line in one write, which does not mix with the rank's."""
        chosen.t_s = t_s
        fd = os.open(self._folder / events_name(self._rank), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, to_json(chosen) + b"\n")
        finally:
            os.close(fd)

    def _find_header(self) -> bool:
        try:
            header = msgspec.json.decode((self._folder / header_name(self._rank)).read_bytes(), type=RunHeader)
        except (OSError, msgspec.MsgspecError):
            return False
        if header.run_id != self._run_id:
            return False
        self.header = header
        return True

    def _take(self, event: AnyEvent) -> None:
        if isinstance(event, Progress):
            self.progress.append(event)
        elif isinstance(event, LoaderOpened):
            self.tiers[event.loader] = event.tier
        elif isinstance(event, TrainingStarted):
            self.started = event
        elif isinstance(event, CheckpointSaved):
            self.saved, self.checkpoints = event, self.checkpoints + 1


class _RankWindow(msgspec.Struct, frozen=True):
    """A stretch of one rank."""

    recorded: RecordedWindow
    loader: int
    workers: int
    step_s: float
    """A batch's step, without waiting for input."""
    busy_s: float
    """What data workers spent on a batch."""
    wait_s: float
    cpu_s: float
    away: int


def size_window(ranks: list[RankRecords], *, may_change: bool) -> SizeWindow | None:
    """What all ranks of an attempt show now; None while that is too little.

    Args:
        ranks: of the attempt, all of them.
        may_change: whether data workers of elastic loaders may be more or fewer.
    """
    found = [window for rank in ranks if (window := _rank_window(rank)) is not None]
    if len(found) < len(ranks) or not found:
        return None
    # Ranks that have their input wait for the others inside of their steps: the shortest step holds least of that.
    quickest = min(found, key=lambda each: each.step_s)
    feeders = sum(each.workers for each in found)
    idle = all((each.recorded.worker_busy_frac or 0.0) < _IDLE for each in found)
    starved = all(each.recorded.starved_frac > _LINK_FULL for each in found)
    batches = sum(each.recorded.batches for each in found)
    return SizeWindow(
        workers=len(ranks),
        feeders=feeders,
        batches_per_s=sum(each.recorded.batches_per_s for each in found),
        step_s=quickest.step_s,
        item_s=max(each.busy_s if each.workers else each.wait_s for each in found),
        item_cpu_s=max(each.cpu_s for each in found) if feeders else 0.0,
        batch_samples=sum(each.recorded.samples for each in found) / batches,
        elastic=may_change
        and all(
            rank.tiers.get(each.loader) == "elastic" or not each.workers
            for rank, each in zip(ranks, found, strict=True)
        ),
        link_full=any(each.away for each in found) and idle and starved,
    )


def _rank_window(rank: RankRecords) -> _RankWindow | None:
    """The last stretch of the loader that trains, with one number of data workers."""
    # The first step of an optimizer imports half of torch; the first batches waited for processes, and made the queue.
    begun_s = rank.started.t_s if rank.started is not None else 0.0
    warm = [record for record in rank.progress if record.batches and delivered_s(record) > begun_s]
    last = next((record for record in reversed(warm) if record.optimizer_steps), None)
    if last is None:
        return None
    records = [record for record in warm if record.loader == last.loader][1:]
    if not records:
        return None
    if last.t_s - rank.progress[0].t_s <= UNSETTLED_S:
        changed = [at for at, record in enumerate(records) if record.workers != last.workers]
        records = records[changed[-1] + 1 :] if changed else records
    # The last stretch that is long enough; with long steps more time is.
    enough = [
        record
        for record in records[:-1]
        if record.t_s <= last.t_s - WINDOW_S and record.batches <= last.batches - LEAST_BATCHES
    ]
    first = enough[-1] if enough else records[0]
    window = between(first, last)
    if window is None or window.active_s < LEAST_S or window.batches < LEAST_BATCHES:
        return None
    batches = window.batches
    wait_s = window.split.input_wait_frac * window.active_s / batches
    return _RankWindow(
        recorded=window,
        loader=last.loader,
        workers=last.workers,
        step_s=window.active_s / batches - wait_s,
        busy_s=max(0.0, last.worker_busy_s - first.worker_busy_s) / batches,
        wait_s=wait_s,
        cpu_s=max(0.0, last.worker_cpu_s - first.worker_cpu_s) / batches,
        away=last.away,
    )
