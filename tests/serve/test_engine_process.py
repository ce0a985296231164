"""An engine in its process: warmed behind those that answer, where its library allows it."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from stoker.core.slots.ring import Mapping, Ring
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec
from stoker.serve.processes.engine_process import EngineProcess
from stoker.serve.processes.messages import FRAMING, Birth, EngineMessage
from stoker.wire.polled import PolledChannel

NUMBERS = TensorSpec("x", np.dtype("f4"), (ANY,))


class NotesPriority:
    """A model and its engine, which note the priorities of the threads that use them."""

    interface = Interface((NUMBERS,), (TensorSpec("y", np.dtype("f4"), (ANY,)),), "test")

    def __init__(self, in_any_thread: bool) -> None:
        self.in_any_thread = in_any_thread
        self.niceness: set[int] = set()

    def engine(self) -> NotesPriority:
        self._note()
        return self

    def run(self, inputs: Arrays) -> Arrays:
        self._note()
        return {"y": inputs["x"]}

    def _note(self) -> None:
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.parametrize(
    ("behind", "in_any_thread", "nicer"), [(True, True, 10), (True, False, 0), (False, True, 0)]
)  # fmt: skip
def test_warming_yields_to_engines_that_answer(behind: bool, in_any_thread: bool, nicer: int) -> None:
    ours, theirs = socket.socketpair()
    ring = Ring(0, 4096, 1)
    mapping = Mapping(os.dup(ring.fd), 4096)
    model = NotesPriority(in_any_thread)
    process = EngineProcess(theirs, mapping, Birth(0, 4096, 4096, 2, 0.0, behind))
    thread = threading.Thread(target=process.run, args=(model,))
    thread.start()
    channel: PolledChannel[EngineMessage] = PolledChannel(ours, FRAMING, blocking=True)
    frames = channel.receive()
    channel.close()
    thread.join()
    theirs.close()
    ring.close()
    assert frames is not None
    assert frames[0].kind is EngineMessage.READY
    assert model.niceness == {min(os.getpriority(os.PRIO_PROCESS, 0) + nicer, 19)}
