"""Runs cases in this process and writes one JSON line per case: ``python -m tests.contract.run --out F CASE...``.

The same command runs plain and under ``stoker run -m``. A line ``{"start": CASE}`` comes before each case, so that the
caller can name the case in which a process ended; a case that hangs ends the process with all stacks on stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import random
import time
import traceback
import warnings
from typing import Any, TextIO

import numpy as np
import torch

from .cases import CASES
from .registry import Case
from .transcript import Transcript

IGNORED_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)
"""Not about the loader: Python 3.12+ deprecates fork beside threads, whoever forks."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.contract.run")
    parser.add_argument("--out", required=True, help="file to write JSON lines to")
    parser.add_argument("--case-limit-s", type=float, default=60.0)
    parser.add_argument("cases", nargs="+", choices=list(CASES), metavar="CASE")
    options = parser.parse_args()
    gc.freeze()  # what is imported stays: neither the collection after each case nor those of workers look at it
    with open(options.out, "w", encoding="utf-8") as out:
        for name in options.cases:
            _write(out, {"start": name})
            faulthandler.dump_traceback_later(options.case_limit_s, exit=True)
            _write(out, _run(CASES[name]))
            faulthandler.cancel_dump_traceback_later()


def _write(out: TextIO, line: dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def _run(case: Case) -> dict[str, Any]:
    seed(case.name)
    start_s = time.perf_counter()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            transcript = case.program()
        except Exception as error:
            transcript = Transcript()
            transcript.event("case failed", "".join(traceback.format_exception(error))[-1500:])
        gc.collect()
    told = {_warning(w) for w in seen if not issubclass(w.category, IGNORED_WARNINGS)}
    transcript.rng("case end")
    if case.warnings:
        transcript.event("warnings", sorted(told))
    return {"case": case.name, "wall_s": time.perf_counter() - start_s, "events": transcript.events}


def _warning(warning: warnings.WarningMessage) -> str:
    """Its category and first words: enough to tell torch's warnings apart, without their numbers."""
    return f"{warning.category.__name__}: {' '.join(str(warning.message).split()[:3])}"


def seed(name: str) -> None:
    """Sets all main streams from the case's name, so that a case gives the same alone and after others."""
    number = sum(name.encode()) + 1
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


if __name__ == "__main__":
    main()
