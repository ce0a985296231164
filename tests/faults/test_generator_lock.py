"""Threads that read the state of torch's generator while Python collects garbage: none waits for ever.

``torch.Generator.get_state`` makes its tensor while it holds the generator's lock. Up to Python 3.11 garbage may be
collected there; a tensor that is freed lets another thread go on, and with plain ``get_state`` all stand in a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.warm import programs

pytestmark = pytest.mark.integration

PROGRAM = """
import faulthandler, gc, sys, threading, time

import torch
from {module} import {name} as state_of

faulthandler.dump_traceback_later(15, exit=True)  # the lock is waited for with the interpreter's, so nothing else ends
sys.setswitchinterval(1e-5)
gc.freeze()
gc.set_threshold(3, 1, 1)

def loop():
    until_s = time.monotonic() + 0.4
    while time.monotonic() < until_s:
        for _ in range(20):
            garbage = [torch.ones(1000)]
            garbage.append(garbage)
        del garbage
        state_of(torch.default_generator)

threads = [threading.Thread(target=loop) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(
    ("module", "name"), [("stoker.graph.randomness", "state_of"), ("stoker.feed.streams", "torch_state")]
)
def test_threads_that_read_it_end(module: str, name: str, tmp_path: Path) -> None:
    program = tmp_path / "threads.py"
    program.write_text(PROGRAM.format(module=module, name=name))
    done = programs.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
