"""The records of this process in memory: for a report while it runs, or without a writable folder."""

from __future__ import annotations

from stoker.records import events

_MAX_RECORDS = 20_000
"""Most records in memory; beyond it every second one of counters or averages is dropped, which costs resolution."""


class EventBuffer:
    """Stores records, older ones with less resolution."""

    def __init__(self) -> None:
        self.records: list[events.AnyEvent] = []

    def on_event(self, event: events.AnyEvent) -> None:
        """Keeps one record."""
        self.records.append(event)
        if len(self.records) > _MAX_RECORDS:
            self._thin()

    def _thin(self) -> None:
        kept: list[events.AnyEvent] = []
        dropping = True
        for record in self.records:
            if isinstance(record, events.Progress | events.ModelAveraged):
                dropping = not dropping
                if dropping:
                    continue
            kept.append(record)
        self.records = kept
