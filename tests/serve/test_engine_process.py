"""An engine in its process: warmed behind those that answer, where its library allows it."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.core.code.definitions import load_function
from stoker.core.errors import ServingError
from stoker.core.slots.ring import Mapping, Ring
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec
from stoker.serve.processes.engine_process import EngineProcess, told
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


def test_an_exception_names_the_users_own_file_and_one_of_ours_none(tmp_path: Path) -> None:
    code = tmp_path / "model.py"
    code.write_text("import json\n\ndef make():\n    json.loads('{')\n")
    with pytest.raises(json.JSONDecodeError) as raised:
        load_function(str(code), "make")()
    assert told(raised.value).endswith(f" at {code}:4")
    assert told(ServingError("`m` must return a pair")) == "`m` must return a pair"
