"""The traceback of a program that raised while it was traced: as python would show it, without who traced it."""

from __future__ import annotations

import logging
import sys
import traceback

from stoker.perf.features.tracing.places import OWN, TORCH


def print_raised(error: BaseException) -> None:
    """Prints the traceback of a program to standard error.

    Args:
        error: that the program raised. Frames of stoker and of torch's stand-ins for tensors are left out.
    """
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each is not None:
        each.stack = traceback.StackSummary.from_list(frame for frame in each.stack if not _is_tracing(frame.filename))
        each = each.__cause__ or each.__context__
    sys.stderr.write("".join(told.format()))


def hush_stand_ins() -> None:
    """Keeps torch from logging an operation that failed on a stand-in: it raises the same at the program's line."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


def _is_tracing(path: str) -> bool:
    """Whether a file traces: stoker's, python's runner of programs, or torch's without a public name."""
    return path.startswith((*OWN, f"{TORCH}_")) or path in ("<frozen runpy>", "<frozen importlib._bootstrap>")
