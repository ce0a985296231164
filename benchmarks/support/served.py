"""Stoker inside one process, switched on for one loader at a time, so that it can alternate with torch's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from stoker.records import events
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings


class Stoker:
    """Serves the loaders it is handed; everything else in the process stays torch's."""

    def __init__(self, settings: RunSettings) -> None:
        self.events: list[events.AnyEvent] = []
        self.serving = Serving(settings, sinks=[self.events.append])

    def iterate(self, loader: DataLoader[Any]) -> Any:
        """What ``iter(loader)`` gives in a program under ``stoker run``."""
        patch.install(self.serving)
        try:
            return iter(loader)
        finally:
            patch.remove()

    def feed(self, loader: DataLoader[Any]) -> Any:
        """What stoker keeps for a loader: counters, engine, tier."""
        return self.serving.feed_for(loader)

    def tiers(self) -> str:
        """The tier that the loaders run in."""
        return ", ".join(sorted({event.tier for event in self.events if isinstance(event, events.LoaderOpened)}))

    def notices(self) -> list[str]:
        """What stoker had to say, once each."""
        return list(dict.fromkeys(event.text for event in self.events if isinstance(event, events.Notice)))


@contextlib.contextmanager
def stoker(**settings: Any) -> Iterator[Stoker]:
    """A :class:`Stoker` with these settings, closed at the end."""
    served = Stoker(RunSettings.of(quiet=True, **settings))
    try:
        yield served
    finally:
        served.serving.close()


def shut_down(loader: DataLoader[Any]) -> None:
    """Ends the workers of a persistent loader of torch."""
    iterator = loader._iterator  # pyright: ignore[reportPrivateUsage]
    loader._iterator = None  # pyright: ignore[reportPrivateUsage]
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
