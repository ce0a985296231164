"""Synthetic runs with a plausible course: a fluid model of workers that feed steps, written as records.

``python -m tests.ui.timeline FOLDER [NAME]`` writes one to a run folder, for looking at reports by hand.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stoker.records.events import (
    AnyEvent,
    IterationStarted,
    LoaderOpened,
    Notice,
    Progress,
    RunEnded,
    RunHeader,
    SampleQuarantined,
    WorkerLost,
    WorkersChanged,
)
from stoker.records.runlog import Run, RunLog

BATCH_SIZE = 64
IMAGE_BYTES = 224 * 224 * 3 * 4


def make_header(**fields: object) -> RunHeader:
    values: dict[str, object] = {
        "run_id": "20260712-101530-train-4242",
        "started_unix_s": 1_783_851_330.0,
        "argv": ["train.py", "--lr", "0.1", "--epochs", "3"],
        "cwd": "/home/me/photos",
        "python": "3.11.2",
        "stoker": "0.1.0",
        "torch": "2.13.0+cpu",
        "numpy": "2.3.1",
        "hostname": "box",
        "cores": 8.0,
        "memory_bytes": 32 << 30,
        "accelerator": "",
        "config": {"workers": None, "max_workers": None, "cpu_budget": None},
    }
    return RunHeader(**{**values, **fields})  # type: ignore[arg-type]


def opened(loader: int = 0, **fields: object) -> LoaderOpened:
    values: dict[str, object] = {
        "t_s": 0.4,
        "loader": loader,
        "site": "train.py:41" if loader == 0 else "train.py:47",
        "dataset": "ImageFolder",
        "length": 200,
        "batch_size": BATCH_SIZE,
        "declared_workers": 2,
        "tier": "elastic",
        "reason": "items depend on the index and the sample's own seed alone (8 probes, no shared state written)",
        "evidence": ["RandomResizedCrop draws from torch's generator: seeded for each sample"],
    }
    return LoaderOpened(**{**values, **fields})  # type: ignore[arg-type]


@dataclass
class Loader:
    """A loader's course: what its items and steps cost, and who is there to make them."""

    number: int
    item_s: float
    """Wall time of one batch in one worker."""
    step_s: float
    h2d_s: float = 0.0
    other_s: float = 0.002
    cpu_frac: float = 0.95
    workers: int = 2
    capacity: int = 4
    counters: dict[str, float] = field(default_factory=dict)
    declared_capacity: int = 0
    iteration: int = -1
    delivered_s: float = 0.0
    paused_s: float = 0.0
    handover_s: float = 0.0
    """Stoker's own time for each batch."""

    def __post_init__(self) -> None:
        if not self.workers:
            self.capacity = 0
        self.declared_capacity = self.capacity

    def advance(self, noise: float) -> float:
        """Delivers one batch; returns how long the program took from one batch to the next."""
        make_s = self.item_s * noise / max(1, self.workers)
        own_s = self.step_s + self.h2d_s + self.other_s
        wait_s = max(0.0004, make_s - own_s) if self.workers else self.item_s * noise
        starved_s, wait_s = wait_s if wait_s > 0.0004 else 0.0, wait_s + self.handover_s
        total_s = own_s + wait_s
        busy_s = min(self.item_s * noise, self.workers * total_s) if self.workers else 0.0
        self._add("batches", 1)
        self._add("samples", BATCH_SIZE)
        self._add("bytes", BATCH_SIZE * IMAGE_BYTES)
        self._add("input_wait_s", wait_s)
        self._add("h2d_s", self.h2d_s)
        self._add("compute_s", self.step_s)
        self._add("other_s", self.other_s)
        self._add("starved_steps", 1 if starved_s > 0.001 else 0)
        self._add("starved_s", starved_s)
        self._add("worker_busy_s", busy_s)
        self._add("worker_idle_s", max(0.0, self.workers * total_s - busy_s))
        self._add("worker_cpu_s", busy_s * self.cpu_frac)
        return total_s

    def _add(self, name: str, value: float) -> None:
        self.counters[name] = self.counters.get(name, 0) + value

    def progress(self, t_s: float, ready: int) -> Progress:
        whole = ("batches", "samples", "bytes", "starved_steps", "optimizer_steps")
        counters = {name: int(value) if name in whole else value for name, value in self.counters.items()}
        return Progress(
            t_s=t_s,
            loader=self.number,
            iteration=self.iteration,
            delivered_s=self.delivered_s,
            paused_s=self.paused_s,
            workers=self.workers,
            ready=ready,
            capacity=self.capacity,
            **counters,  # type: ignore[arg-type]
        )


@dataclass
class Course:
    """Writes records while time goes by."""

    seed: int = 0
    now_s: float = 0.5
    events: list[AnyEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def iterate(self, loader: Loader, batches: int, act: Callable[[int], None] | None = None) -> None:
        """One iteration; ``act(batch)`` may change the loader before each batch."""
        loader.iteration += 1
        self.add(
            IterationStarted(
                t_s=self.now_s, loader=loader.number, iteration=loader.iteration, workers=loader.workers, start_s=0.03
            )
        )
        shown_s = self.now_s
        loader.paused_s += self.now_s - loader.delivered_s if loader.delivered_s else 0.0
        for batch in range(batches):
            if act is not None:
                act(batch)
            self.now_s += loader.advance(self.random.uniform(0.85, 1.15))
            loader.delivered_s = self.now_s
            total = loader.counters["batches"]
            warm = 1 + loader.declared_capacity
            if total in (1, warm, warm + 20) or self.now_s - shown_s >= 1.0 or batch == batches - 1:
                shown_s = self.now_s
                self.show(loader)

    def show(self, loader: Loader) -> None:
        fed = loader.item_s / max(1, loader.workers) < loader.step_s + loader.h2d_s + loader.other_s
        ready = self.random.randint(loader.capacity // 2, loader.capacity) if fed else self.random.randint(0, 1)
        self.add(loader.progress(self.now_s, ready))

    def change(self, loader: Loader, workers: int, reason: str) -> None:
        loader.workers, loader.capacity = workers, 3 * workers
        self.add(WorkersChanged(t_s=self.now_s, loader=loader.number, workers=workers, depth=3, reason=reason))

    def add(self, event: AnyEvent) -> None:
        self.events.append(event)


def growth_run(*, epochs: int = 3, batches: int = 400, end: str = "finished", with_incidents: bool = True) -> Run:
    """25 batches at 2 workers and 60 % wait, then growth to 6; a validation loader; a worker killed on the way."""
    course = Course()
    train = Loader(0, item_s=0.62, step_s=0.105, h2d_s=0.004, other_s=0.015)
    val = Loader(1, item_s=0.3, step_s=0.04, workers=2)
    course.add(opened(0, length=batches))
    plan = {25: 3, 45: 4, 67: 5, 95: 6}

    def grow(batch: int) -> None:
        if train.iteration == 0 and batch in plan:
            starved = f"starved at {max(4, 90 - batch)} % of the steps, {8 - plan[batch]} cores free"
            course.change(train, plan[batch], starved)
        if train.iteration == 0 and batch == 150:
            text = "loader 0 (train.py:41): 6 workers keep input wait under 1 %"
            course.add(Notice(t_s=course.now_s, text=text, loader=0))
        if with_incidents and train.iteration == 1 and batch == 30:
            course.add(
                WorkerLost(
                    t_s=course.now_s, loader=0, worker=3, pid=4711, cause="killed by signal 9 (SIGKILL)", released=3
                )
            )

    course.iterate(train, batches, grow)
    course.add(opened(1, t_s=course.now_s, length=40, site="train.py:47"))
    course.iterate(val, 40)
    for _ in range(epochs - 1):
        course.iterate(train, batches, grow)
        course.iterate(val, 40)
    if end:
        course.add(RunEnded(t_s=course.now_s + 0.2, outcome=end))
    return Run(header=make_header(), events=course.events)


def saturated_run() -> Run:
    """Two cores, two workers that use them up: more workers would not help."""
    course = Course(seed=1)
    train = Loader(0, item_s=0.2, step_s=0.03)
    course.add(opened(0))
    for _ in range(2):
        course.iterate(train, 150)
    course.add(SampleQuarantined(t_s=9.0, loader=0, index="1234", path="photos/broken.jpg", seed=99, action="skip"))
    course.add(RunEnded(t_s=course.now_s, outcome="KeyboardInterrupt"))
    return Run(header=make_header(cores=2.0), events=course.events)


def short_run(batches: int = 7) -> Run:
    course = Course()
    course.add(opened(0))
    course.iterate(Loader(0, item_s=0.2, step_s=0.05), batches)
    return Run(header=make_header(), events=course.events)


def unused_run() -> Run:
    return Run(header=make_header(), events=[RunEnded(t_s=2.0, outcome="finished")])


def many_loaders_run() -> Run:
    """Nine loaders of every tier, some never measured."""
    course = Course(seed=3)
    tiers = ["elastic", "pinned", "process", "stock"]
    for number in range(9):
        tier = tiers[number % 4]
        reason = {
            "elastic": "items depend on the index and the sample's own seed alone",
            "pinned": "the dataset keeps `self.cache` between items (data/cached.py:88), so workers keep torch's order",
            "process": "num_workers=0 and `transform` reaches a Module on the accelerator (data/embed.py:19)",
            "stock": "StatefulDataLoader of torchdata keeps its own iterator",
        }[tier]
        site = f"a/rather/long/path/to/some/package/data_{number}.py:{40 + number}"
        workers = 0 if tier == "process" else 2
        dataset = f"Dataset{number}"
        course.add(opened(number, site=site, tier=tier, reason=reason, dataset=dataset, declared_workers=workers))
        if tier != "stock":
            course.iterate(Loader(number, item_s=0.05, step_s=0.04, workers=workers), 60)
    course.add(RunEnded(t_s=course.now_s, outcome="RuntimeError"))
    return Run(header=make_header(argv=["-m", "project.train", *["--option=value"] * 20]), events=course.events)


RUNS: dict[str, Callable[[], Run]] = {
    "growth": growth_run,
    "killed": lambda: growth_run(epochs=1, end=""),
    "saturated": saturated_run,
    "short": short_run,
    "unused": unused_run,
    "many": many_loaders_run,
}


def write_run(run: Run, folder: Path) -> Path:
    log = RunLog(folder, run.header)
    for event in run.events:
        log.on_event(event)
    log.close()
    return folder


if __name__ == "__main__":
    write_run(RUNS[sys.argv[2] if len(sys.argv) > 2 else "growth"](), Path(sys.argv[1]))
