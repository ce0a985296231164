"""Serving loaders inside a test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings


@contextmanager
def served(workers: int | None = None) -> Iterator[Serving]:
    """Serves every DataLoader of this process inside the block."""
    serving = Serving(RunSettings.of(workers=workers), sinks=[])
    patch.install(serving)
    try:
        yield serving
    finally:
        patch.remove()
        serving.close()
