"""The process of one engine: takes batches from slots, leaves their outputs behind them, and ends with the service."""

from __future__ import annotations

import dataclasses
import os
import socket
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stoker.core.errors import ModelChangedError, StokerError
from stoker.core.processes.background import in_background
from stoker.core.slots.ring import Mapping
from stoker.serve.engine import Interface, Model, ModelEngine, TensorSpec
from stoker.serve.processes.messages import (
    FRAMING,
    BatchDone,
    BatchRun,
    Birth,
    EngineMessage,
    Failure,
    pack,
    unpack,
    warm,
)
from stoker.serve.processes.places import array_at, placed
from stoker.serve.processes.probing import PROBE_RUNS, mixed
from stoker.wire.polled import PolledChannel

_REPEATS = 3
"""Runs of each size; the fastest counts, since whatever disturbs one only makes it slower."""
_TEXT = 400
_NOT_USERS = tuple(
    f"{os.path.abspath(path)}{os.sep}"
    for path in (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), Path(__file__).parents[2])
)
"""Folders of libraries, and ours."""


class EngineProcess:
    """Serves one engine over a socket until that is closed.

    Args:
        sock: connected to the service.
        ring: memory of the slots.
        birth: their sizes.
    """

    def __init__(self, sock: socket.socket, ring: Mapping, birth: Birth) -> None:
        self._channel: PolledChannel[EngineMessage] = PolledChannel(sock, FRAMING, blocking=True)
        self._ring = ring
        self._birth = birth
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        """The bytes of slots, by their numbers."""

    def run(self, model: Model) -> None:
        """Makes the engine, measures it, and computes what comes."""
        try:
            behind = self._birth.behind and model.in_any_thread
            engine, interface, costs = in_background(lambda: self._warm(model)) if behind else self._warm(model)
        except Exception as error:  # the user's model: the service says what it is
            self._channel.send(failed_by(error), pack(Failure(told(error))))
            return
        self._channel.send(EngineMessage.READY, warm(interface, costs))
        while (frames := self._channel.receive()) is not None:
            for frame in frames:
                self._compute(engine, unpack(frame.body, BatchRun))

    def _warm(self, model: Model) -> tuple[ModelEngine, Interface, list[tuple[int, float]]]:
        engine, birth = model.engine(), self._birth
        costs = measure(engine, birth.max_batch, birth.budget_s)
        interface = engine.interface
        # The first engine of a version says for all; a model that takes seconds is not asked.
        is_asked = birth.budget_s > 0.0 and interface.is_batched and PROBE_RUNS * costs[0][1] <= birth.budget_s
        if is_asked and (why := mixed(engine)):
            interface = dataclasses.replace(interface, alone=why)
            costs = costs[:1]
        return engine, interface, costs

    def _compute(self, engine: ModelEngine, run: BatchRun) -> None:
        memory = self._memory.get(run.slot)
        if memory is None:
            memory = self._ring.view(run.slot * self._birth.slot_bytes, self._birth.slot_bytes)
            self._memory[run.slot] = memory
        begun_s = time.perf_counter()
        try:
            inputs = {
                spec.name: array_at(memory, offset, shape, spec.dtype)
                for spec, offset, shape in zip(engine.interface.inputs, run.offsets, run.shapes, strict=True)
            }
            outputs = engine.run(inputs)
            arrays = [_checked(outputs[spec.name], spec) for spec in engine.interface.outputs]
            offsets = _left(arrays, memory, run.used_bytes)
        except Exception as error:  # of the user's model, for these inputs
            self._channel.send(EngineMessage.BROKEN, pack(Failure(told(error), run.batch)))
            return
        took_s = time.perf_counter() - begun_s
        self._channel.send(
            EngineMessage.DONE, pack(BatchDone(run.batch, took_s, offsets, [array.shape for array in arrays]))
        )


def _checked(array: npt.NDArray[np.generic], spec: TensorSpec) -> npt.NDArray[np.generic]:
    if array.dtype != spec.dtype or not spec.fits(array.shape):
        raise ValueError(f"`{spec.name}` must be {spec.dtype} of shape {spec.shape}, got {array.dtype} {array.shape}")
    return array


def _left(arrays: Sequence[npt.NDArray[np.generic]], memory: npt.NDArray[np.uint8], used_bytes: int) -> list[int]:
    """Copies outputs behind the inputs; where each is."""
    places = placed([array.nbytes for array in arrays], used_bytes, len(memory))
    if places is None:
        size = sum([array.nbytes for array in arrays])
        raise ValueError(
            f"outputs have {size} bytes, more than are left in a slot of {len(memory)}; allow more with --slot-bytes"
        )
    for array, offset in zip(arrays, places.offsets, strict=True):
        array_at(memory, offset, array.shape, array.dtype)[...] = array
    return places.offsets


def measure(
    engine: ModelEngine, max_batch: int, budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> list[tuple[int, float]]:
    """Seconds for batches of 1, 2, 4 and so on samples, of zeros; at least one size, and the largest if time allows.

    Args:
        engine: to be measured; it is warm afterwards.
        max_batch: most samples.
        budget_s: after which no further size is tried.
        clock: in seconds.
    """
    costs: list[tuple[int, float]] = []
    begun_s = clock()
    sizes = [1]
    if engine.interface.is_batched:
        sizes = sorted({*(1 << power for power in range(max_batch.bit_length())), max_batch})
    for size in sizes:
        inputs = {spec.name: zeros(spec, size) for spec in engine.interface.inputs}
        took: list[float] = []
        for _ in range(_REPEATS + 1):  # the first of a size may compile or allocate
            since_s = clock()
            engine.run(inputs)
            took.append(clock() - since_s)
        costs.append((size, max(min(took), 1e-7)))
        if clock() - begun_s > budget_s:
            break
    return costs


def zeros(spec: TensorSpec, samples: int) -> npt.NDArray[np.generic]:
    """An input of so many samples, free sizes as 1; where it does not take 0, of what is next to it."""
    sizes = [max(size, 1) for size in spec.shape]
    if spec.is_batched:
        sizes[0] = samples
    low, high = spec.values or (0, 0)
    return np.full(sizes, min(max(0, low), high), spec.dtype)


def told(error: BaseException) -> str:
    """An exception in a line; one of the user's model with the place in the user's files where it was raised."""
    if isinstance(error, StokerError):
        return str(error.args[0])[:_TEXT]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:_TEXT]}{where}"


def failed_by(error: BaseException) -> EngineMessage:
    """The message for what a model, or an engine of it, is not made by."""
    return EngineMessage.CHANGED if isinstance(error, ModelChangedError) else EngineMessage.FAILED


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor one of a library."""
    return os.path.isabs(file) and not os.path.abspath(file).startswith(_NOT_USERS)
