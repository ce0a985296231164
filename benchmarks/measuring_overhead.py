"""What it costs a training step to know where its time goes: marks, counters, scaling windows, run folder, live line.

Every call into what measures is timed where it happens, in the loop. Beside it, the same loop with none of it: there
the processor time of the training thread is compared, which on a busy machine varies more than measuring costs.
"""

from __future__ import annotations

import io
import pty
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, run
from benchmarks.support.served import Stoker
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.records import events
from stoker.records.runlog import RunLog
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings
from stoker.ui.live import LiveLine

BAR = Bar("measuring_overhead", "cost of measuring, as a share of an emulated step", headline=("overhead_percent",))
STEP_S = 0.005
"""Short for a training step: longer ones make the share smaller."""
MICRO = 1e6


class Rows(Dataset[torch.Tensor]):
    """Rows of a matrix in memory."""

    def __init__(self, count: int) -> None:
        self._rows = torch.randn(512, 64)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index % 512]


class Timed:
    """Times the calls of another object's methods, those made inside of such calls not twice."""

    spent_s = 0.0
    _inside = False

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        """The attribute; a method with a clock around it."""
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if Timed._inside:
                return value(*arguments, **keywords)
            Timed._inside = True
            begun = time.perf_counter()
            try:
                return value(*arguments, **keywords)
            finally:
                Timed.spent_s += time.perf_counter() - begun
                Timed._inside = False

        self.__dict__[name] = timed
        return timed


class Measured(Serving):
    """Serves as ``stoker run`` does, and knows what measuring costs."""

    def __init__(self, settings: RunSettings, sinks: list[Any]) -> None:
        super().__init__(settings, sinks)
        self.clock: Any = Timed(self.clock)

    def listener(self, feed: LoaderFeed, loader: DataLoader[Any]) -> Any:
        """The usual one, timed."""
        return Timed(super().listener(feed, loader))

    def policy(self, max_in_flight: int) -> Any:
        """The usual one, timed: it is asked four times a second what was measured."""
        return Timed(super().policy(max_in_flight))


class Silent:
    """Stands for whoever would be told: nothing is done."""

    def __getattr__(self, name: str) -> Any:
        """Any method."""
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    pass


class Unmeasured(Serving):
    """Serves without marks and records."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings, sinks=[])
        self.clock: Any = Silent()

    def listener(self, feed: LoaderFeed, loader: DataLoader[Any]) -> Any:
        """Nobody."""
        return Silent()


class Terminal(io.StringIO):
    """A terminal as far as the live line can tell; what is drawn is thrown away."""

    def __init__(self) -> None:
        """Takes the size of a real one."""
        super().__init__()
        self._ends = pty.openpty()
        termios.tcsetwinsize(self._ends[1], (40, 120))

    def fileno(self) -> int:
        """Of the real one."""
        return self._ends[1]

    def isatty(self) -> bool:
        """It is one."""
        return True

    def write(self, text: str) -> int:
        """Drawn."""
        return len(text)


def measure(options: Options) -> Report:
    """Both loops in alternation."""
    report = Report()
    steps = options.pick(1500, 400, 20)
    settings = RunSettings.of(quiet=True, workers=2)
    optimizer = torch.optim.SGD(torch.nn.Linear(64, 8).parameters(), lr=0.01)
    spent: list[float] = []
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        log = RunLog(str(Path(folder) / "run"), _header)
        live = LiveLine.on(Terminal(), {"TERM": "xterm"}, quiet=False, rank=0)
        measured, plain = Stoker(settings), Stoker(settings)
        plain.serving, measured.serving = Unmeasured(settings), Measured(settings, [log.on_event, live.on_event])
        loaders = [DataLoader(Rows(steps * 32), 32, num_workers=2, persistent_workers=True) for _ in "ab"]

        def with_it() -> float:
            measured.serving.clock.install()
            before = Timed.spent_s
            try:
                return _cpu_us(measured.iterate(loaders[0]), optimizer)
            finally:
                measured.serving.clock.remove()
                spent.append(MICRO * (Timed.spent_s - before) / steps)

        runs = {"measured": with_it, "not measured": lambda: _cpu_us(plain.iterate(loaders[1]), optimizer)}
        alternate(1, runs)
        spent.clear()
        found = alternate(options.rounds, runs)
        live.close()
        log.close()
        for served in (measured, plain):
            served.serving.close()
    step = f"{1000 * STEP_S:.0f} ms"
    report.note(f"{steps} steps of {step} (emulated) and an optimizer step; with run folder and live line")
    rows = [
        [f"processor time of the training thread, {name}", *Spread.of(values).show(1)] for name, values in found.items()
    ]
    report.table(["µs a step", "median", "lowest - highest"], [*rows, ["inside measuring", *Spread.of(spent).show(1)]])
    report.figure("measuring_us_a_step", Spread.of(spent).median)
    share = [100 * us / MICRO / STEP_S for us in spent]
    report.at_most("overhead_percent", f"inside measuring, of a step of {step}", share, 1.0, 2, " %")
    return report


def _cpu_us(batches: Any, optimizer: torch.optim.Optimizer) -> float:
    """Processor time of a step, its emulated part aside."""
    steps = 0
    with no_collections():
        begun = time.thread_time()
        for _ in batches:
            time.sleep(STEP_S)
            optimizer.step()
            steps += 1
        return MICRO * (time.thread_time() - begun) / steps


def _header() -> events.RunHeader:
    return events.RunHeader(
        run_id="benchmark", started_unix_s=time.time(), argv=[], cwd="", python="", stoker="", torch="", numpy="",
        hostname="", cores=0.0, memory_bytes=0, accelerator="",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
