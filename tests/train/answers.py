"""What programs of several ranks say: they start their ranks themselves, and print one line of JSON last."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.warm import programs


def answers_of(module: str, ranks: int, *words: str, limit_s: float = 110) -> Any:
    """The last line of a program.

    Args:
        module: of the program, below ``tests.train``.
        ranks: that it starts.
        words: its other arguments.
        limit_s: for all of it.
    """
    done = programs.run(
        [sys.executable, "-m", f"tests.train.{module}", str(ranks), *words],
        capture_output=True, text=True, timeout=limit_s, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
