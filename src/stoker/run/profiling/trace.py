"""Reads a trace of torch's profiler into plain spans; the only module that knows torch's format."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from stoker.perf.diagnosis.kernels import label_of_operator
from stoker.perf.diagnosis.sampled import Kernel, ProfilerTrace
from stoker.perf.diagnosis.timeline import STEP, TracedRange
from stoker.run.profiling.torch_private import DeviceType, is_made_of_others


def read_trace(events: list[Any]) -> ProfilerTrace:
    """The events of a finished profile, by what they are.

    Args:
        events: as kineto keeps them, ``prof.profiler.kineto_results.events()``.
    """
    threads: defaultdict[int, list[TracedRange]] = defaultdict(list)
    exchanges: list[tuple[int, int]] = []
    kernels: list[Kernel] = []
    main = 0
    for event in events:
        name, start = event.name(), event.start_ns()
        end = start + event.duration_ns()
        if event.device_type() != DeviceType.CPU:
            if not (event.is_user_annotation() or name.startswith("stoker::")):
                kernels.append(Kernel(name=name, start=start, end=end, operator=event.linked_correlation_id()))
            continue
        thread = event.start_thread_id()
        if event.is_async() or thread != event.end_thread_id():
            # An exchange that the process group's threads carry out; other asynchronous ranges may overlap arbitrarily.
            if label_of_operator(name) == "communication":
                exchanges.append((start, end))
            continue
        label = label_of_operator(name, is_wrapper=_is_wrapper(name))
        span = TracedRange(name, start, end, label, event.sequence_nr(), event.correlation_id())
        threads[thread].append(span)
        if name == STEP:
            main = thread
    others = [spans for thread, spans in threads.items() if thread != main]
    return ProfilerTrace(main=threads.get(main, []), threads=others, exchanges=exchanges, kernels=kernels)


@functools.cache
def _is_wrapper(name: str) -> bool:
    """Whether torch implements an operator by others on all devices (``CompositeImplicitAutograd``)."""
    if not name.startswith("aten::"):
        return False
    try:
        return is_made_of_others(name)
    except (RuntimeError, IndexError, AttributeError):
        return False
