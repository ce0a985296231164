"""Pinned prefixes: kept in a file, so that all processes see a change at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from stoker.cache.names import ObjectName
from stoker.cache.store.contents import is_under


class Pins:
    """The pinned prefixes of a store.

    Args:
        path: of the file.
        generation: a number that all processes see change when the file does.
        advance: changes it.
    """

    def __init__(self, path: Path, generation: Callable[[], int], advance: Callable[[], None]) -> None:
        self._path, self._generation, self._advance = path, generation, advance
        self._seen = -1
        self._prefixes: tuple[ObjectName, ...] = ()

    def prefixes(self) -> tuple[ObjectName, ...]:
        """All pinned prefixes."""
        if self._seen != (now := self._generation()):
            try:
                pairs: list[list[str]] = json.loads(self._path.read_text(encoding="utf-8"))
                self._prefixes = tuple(ObjectName(*pair) for pair in pairs)
            except (OSError, ValueError, TypeError):
                self._prefixes = ()  # no file yet, or a damaged one: nothing is pinned
            self._seen = now
        return self._prefixes

    def covers(self, name: ObjectName) -> bool:
        """Whether an object is pinned."""
        prefixes = self.prefixes()
        return bool(prefixes) and any(is_under(name, prefix) for prefix in prefixes)

    def change(self, prefixes: set[ObjectName]) -> None:
        """Set the pinned prefixes. Under the publish lock."""
        aside = self._path.with_name(f"pins.{os.getpid()}")
        aside.write_text(json.dumps(sorted(map(list, prefixes))), encoding="utf-8")
        aside.replace(self._path)
        self._advance()
