"""One process under ``stoker profile``: measures its steps, samples some, writes the results, and may end there."""

from __future__ import annotations

import atexit
import gc
import io
import platform
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from stoker.core import host
from stoker.core.processes.forking import Owner
from stoker.core.saying import say
from stoker.perf.diagnosis.marks import steps_of
from stoker.perf.diagnosis.sampled import Sampled, analyse
from stoker.records import events
from stoker.records.profile import LoaderFacts, RankRecord, StepTimes, Usage, rank_name, write_record
from stoker.records.runlog import RunLog
from stoker.run.hard_exit import await_end
from stoker.run.header import describe_run
from stoker.run.profiling.options import ProfileOptions
from stoker.run.profiling.sampling import Sampler, mark_step
from stoker.run.profiling.schedule import Do, Schedule
from stoker.run.profiling.serving import ServedSession
from stoker.run.profiling.step_marks import StepRecorder
from stoker.run.profiling.usage import read_usage, used_between
from stoker.run.rank import find_place
from stoker.run.run_context import Active
from stoker.scale.budget import rank_cores


class ProfileSession:
    """State of one profiled process."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self._options = ProfileOptions.from_json(active.profile)
        self._owner = Owner()
        self._started_s, self._started_unix_s = time.monotonic(), time.time()
        self._watch = StepRecorder(self._on_step)
        self._sampler = Sampler()
        self._schedule: Schedule | None = None
        self._by_optimizer = True
        self._first_sampled = 0
        self._usage: tuple[int, Usage] | None = None
        self._end = 0
        self._finished = False
        self._serving: ServedSession | None = None

    def start(self) -> None:
        """Measures from now on; results are written after the last step, or when the interpreter exits."""
        if self._options.served:
            self._serving = ServedSession(self._active, self._watch)
        else:
            self._watch.install()
        atexit.register(self.end)

    def _on_step(self, end: int, by_optimizer: bool) -> None:
        if self._finished:
            return
        if self._schedule is None or by_optimizer != self._by_optimizer:
            # Batches counted until an optimizer stepped after all: start over.
            self._sampler.drop()
            self._watch.sampling = False
            self._by_optimizer, self._usage = by_optimizer, None
            self._schedule = Schedule(self._options, begin=end)
        self._end = end
        if self._serving is not None and end == self._schedule.first:
            self._serving.changes = 0
        match self._schedule.at(end):
            case Do.SAMPLE:
                self._sampler.start()
                self._first_sampled = end
                self._watch.sampling = self._sampler.active
                if self._sampler.active:
                    mark_step()
            case Do.MARK if self._sampler.active:
                mark_step()
            case Do.HALT if self._sampler.active:
                mark_step()
                self._watch.sampling = False
                self._sampler.stop()
            case Do.MEASURE:
                self._usage = (end, read_usage())
            case Do.FINISH:
                self._finish(complete=True, outcome="")
                if self._options.then == "stop":
                    flush_files()
                    await_end()
            case _:
                pass

    def end(self) -> None:
        """Writes the results so far when the program ends by itself, unless already written."""
        if self._owner.is_here and not self._finished:
            error = getattr(sys, "last_type", None)
            self._finish(complete=False, outcome=error.__name__ if error is not None else "finished")

    def _finish(self, *, complete: bool, outcome: str) -> None:
        self._finished = True
        usage = self._used()
        self._watch.sampling = False
        self._sampler.stop()
        if self._serving is None:
            self._watch.remove()
        else:
            self._watch.end()  # served loaders keep using the clock
        if not self._watch.marks:
            return  # a launcher, or another process that does not train
        if self._serving is not None and complete and self._options.then == "stop":
            self._serving.finish()  # before the record, whose reader ends all processes
        try:
            self._write(self._record(complete=complete, outcome=outcome, usage=usage))
        except Exception as error:  # a full disk must not change how the program continues
            say(f"what was measured could not be written: {type(error).__name__}: {error}")

    def _used(self) -> Usage:
        if self._usage is None or self._end <= self._usage[0]:
            return Usage()
        return used_between(self._usage[1], read_usage(), self._end - self._usage[0])

    def _record(self, *, complete: bool, outcome: str, usage: Usage) -> RankRecord:
        watch, schedule, place = self._watch, self._schedule, find_place()
        steps = steps_of(
            watch.marks,
            by_optimizer=watch.by_optimizer and bool(watch.optimizers),
            sampled=schedule.disturbed if schedule is not None else (0, 0),
        )
        first = schedule.first if schedule is not None else 0
        counted = [step for step in steps if step.number >= first]
        notes = [self._sampler.failure] if self._sampler.failure else []
        if not [step for step in counted if not step.sampled] and steps:
            counted = steps[1:] or steps
            notes.append(f"the program ended during warm-up: all but the first of {len(steps) + 1} steps count")
        loader = watch.main_loader()
        if self._serving is not None and loader is not None:
            loader = self._serving.facts(loader)
            notes += self._serving.notes()
        trace = self._sampler.read()
        sampled = analyse(trace, first=self._first_sampled) if trace is not None else Sampled()
        device = watch.device if watch.optimizers or not torch.cuda.is_initialized() else "cuda"
        return RankRecord(
            run_id=self._run_id,
            rank=place.rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
            hostname=socket.gethostname(),
            device=device,
            device_name=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
            cores=rank_cores(host.cores(), place.local_world_size),
            threads=torch.get_num_threads(),
            precision=self._precision(device),
            unit="optimizer step" if watch.by_optimizer and watch.optimizers else "batch",
            complete=complete,
            outcome=outcome,
            steps=counted,
            samples=sampled.steps,
            modules=sampled.modules,
            operators=sampled.operators,
            loader=loader,
            # Other ranks of this machine have separate cores.
            usage=usage if place.local_world_size == 1 else msgspec.structs.replace(usage, others_s=0.0),
            optimizers=len(watch.optimizers),
            notes=notes,
        )

    def _precision(self, device: str) -> str:
        if self._sampler.precision:
            return self._sampler.precision
        found = {"bfloat16": "bf16", "float16": "fp16"}.get(self._watch.dtype, "fp32")
        if found == "fp32" and device == "cuda" and torch.get_float32_matmul_precision() != "highest":
            return "tf32"
        return found

    def _write(self, record: RankRecord) -> None:
        """The rank's own file, and the records that `stoker report` reads."""
        if self._serving is not None:  # its session keeps the records
            folder = self._serving.session.folder
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                write_record(folder / rank_name(record.rank), record)
            return
        log = RunLog(self._active.run_dir, lambda: self._header(record))
        for event in _events_of(record, time.monotonic() - self._started_s):
            log.on_event(event)
        log.close()
        if log.silent or log.failed:
            return
        write_record(Path(log.folder) / rank_name(record.rank), record)

    def _header(self, record: RankRecord) -> events.RunHeader:
        active = self._active
        return describe_run(
            self._run_id, active.program or active.argv, active.settings, self._started_unix_s, record.cores,
            find_place(),
        )  # fmt: skip

    @property
    def _run_id(self) -> str:
        return self._active.run_id or Path(self._active.run_dir).name


def _events_of(record: RankRecord, now_s: float) -> list[events.AnyEvent]:
    """What `stoker report` shows of a profile: the main loader in the steps that were measured."""
    found: list[events.AnyEvent] = []
    steps = [step for step in record.steps if not step.sampled]
    loader = record.loader
    if loader is not None and steps:
        found.append(
            events.LoaderOpened(
                t_s=0.0, loader=0, site=loader.site, dataset=loader.dataset, length=None, batch_size=loader.batch_size,
                declared_workers=loader.workers, tier="stock", reason="left to torch while `stoker profile` measured",
            )
        )  # fmt: skip
        lasted_s = sum(step.period_s for step in steps)
        found += [_progress(loader, [], max(0.0, now_s - lasted_s)), _progress(loader, steps, now_s)]
    return [*found, events.RunEnded(t_s=now_s, outcome=record.outcome or "finished")]


def _progress(loader: LoaderFacts, steps: Sequence[StepTimes], t_s: float) -> events.Progress:
    batches = sum(step.batches for step in steps)
    wait_s, other_s = sum(step.wait_s for step in steps), sum(step.after_s for step in steps)
    return events.Progress(
        t_s=t_s, loader=0, iteration=0, batches=batches, samples=batches * (loader.batch_size or 0), bytes=0,
        input_wait_s=wait_s, h2d_s=0.0, compute_s=sum(step.period_s for step in steps) - wait_s - other_s,
        other_s=other_s, starved_steps=0, workers=loader.workers, ready=0, capacity=0, worker_busy_s=0.0,
        worker_idle_s=0.0, worker_cpu_s=0.0, optimizer_steps=len(steps),
    )  # fmt: skip


def cpu_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next(named, platform.machine())


def flush_files() -> None:
    """Writes out what the program has written to its files so far: it is ended without its own clean-up."""
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            try:
                thing.flush()
            except (OSError, ValueError):
                continue
