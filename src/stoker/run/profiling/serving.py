"""Loaders served by stoker while the program is measured: the session of `stoker run`, and facts about its loaders.

The clock of that session is the one that records marks: there is no second one.
"""

from __future__ import annotations

from msgspec.structs import replace

from stoker.records import events
from stoker.records.profile import LoaderFacts
from stoker.run.loaders.steps import StepClock
from stoker.run.run_context import Active
from stoker.run.session import Session


class ServedSession:
    """Serves the loaders of this process from now on, without output.

    Args:
        active: the run.
        clock: of the steps.
    """

    def __init__(self, active: Active, clock: StepClock) -> None:
        self.session = Session(replace(active, profile="", settings=active.settings.but(quiet=True)), clock)
        self.changes = 0
        """Times that the number of data workers changed, since this was last set to 0."""
        self._tiers: dict[int, events.LoaderOpened] = {}
        self._workers: dict[int, int] = {}
        self._batches: dict[int, int] = {}
        self.session.serving.add_sink(self._on_event)
        self.session.start()

    def _on_event(self, event: events.AnyEvent) -> None:
        match event:
            case events.LoaderOpened():
                self._tiers[event.loader] = event
            case events.Progress():
                self._workers[event.loader] = event.workers
                self._batches[event.loader] = event.batches
            case events.IterationStarted():
                self._workers[event.loader] = event.workers
            case events.WorkersChanged():
                self.changes += 1
                self._workers[event.loader] = event.workers
            case _:
                pass

    def finish(self) -> None:
        """Ends all data workers; their figures are kept."""
        self.session.serving.remove_sink(self._on_event)
        self.session.finish()

    def facts(self, found: LoaderFacts) -> LoaderFacts:
        """Facts about the loader that delivered most, with its tier and data workers."""
        of_dataset = [number for number, opened in self._tiers.items() if opened.dataset == found.dataset]
        if not of_dataset:
            return found
        number = max(of_dataset, key=lambda each: self._batches.get(each, 0))
        tier = self._tiers[number].tier
        if tier == "stock":
            return found
        return replace(found, tier=tier, workers=self._workers.get(number, 0))

    def notes(self) -> list[str]:
        """Notes on an unsteady measurement."""
        if not self.changes:
            return []
        times = "once" if self.changes == 1 else f"{self.changes} times"
        return [
            f"the number of data workers changed {times} while steps were measured: a longer `--warmup` lets it settle"
        ]
