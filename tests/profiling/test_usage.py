"""Processor time of this process, of those below it, and of all others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from stoker.run.profiling.usage import read_usage, used_between

pytestmark = pytest.mark.integration
SPIN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def test_what_others_hold_is_told_from_our_own() -> None:
    """A process that is none of ours spins on our first core, then one of ours does; both make us wait."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    # Its parent ends at once: it belongs to nobody here.
    # It holds no pipe of ours: `run` would wait for its end, and nothing would spin.
    command = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=subprocess.DEVNULL).pid, flush=True)"
    )
    other = int(subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout)
    try:
        start, first = time.monotonic(), read_usage()
        while time.monotonic() < start + 1.0:
            pass
        found = used_between(first, read_usage(), 1)
    finally:
        os.kill(other, 9)
        os.sched_setaffinity(0, before)
    passed = time.monotonic() - start
    assert 0.2 * passed < found.others_s < 0.95 * passed
    assert 0.2 * passed < found.delayed_s
    assert found.process_s + found.others_s == pytest.approx(passed, rel=0.25)
