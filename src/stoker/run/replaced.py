"""Lists the names of other libraries that stoker replaces, by replacing them; for a separate, short-lived process."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from importlib.util import find_spec

from stoker.core.patching import patched
from stoker.feed import streams
from stoker.feed.worker.arena import SlotArena
from stoker.graph.torch_private import COMPILER
from stoker.graph.watching import modes
from stoker.run.elastic.checkpoints import CheckpointWatch
from stoker.run.elastic.told import RankSizes
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.profiling.step_marks import StepRecorder
from stoker.run.settings import RunSettings


def ignore(_: object) -> None:
    """Takes what would be recorded."""


def replace_all() -> dict[str, list[str]]:
    """Replaces all that a served and profiled program, its data workers and the cache may; their names by purpose.

    What is replaced in processes of stoker's own, as where a program is traced for its features, is not among them.

    Raises:
        AttributeError: a library has one of them no more.
    """
    patch.install(Serving(RunSettings(), []))
    with contextlib.suppress(Exception):  # which is torch's business, until the program compiles
        importlib.import_module(COMPILER)
    modes.watch_compiled()
    StepRecorder(lambda end, by_optimizer: None).install()
    CheckpointWatch(RankSizes(workers=1, reason="", limit=""), ignore, lambda: 0.0, ignore).install()
    arena = SlotArena()
    arena.install()
    streams.watch_reads()
    if all(map(find_spec, ("fsspec", "xxhash"))):
        # Imported here: these are packages of an extra.
        from stoker.cache.filesystem import routing

        routing.install(directory=tempfile.gettempdir())
    return patched()
