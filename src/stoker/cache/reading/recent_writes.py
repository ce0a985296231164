"""When this process last wrote to paths, so that nothing older counts as fresh.

What was cached of a path that is written whole is dropped for all processes; of a tree that was removed or copied, the
names in it are not all known, and this is what makes a process see its own writes.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.processes.forking import ForkedLock

_MOST_PATHS = 4096
_MOST_TREES = 64


class Writes:
    """Times of the process's own writes. False as long as there were none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts empty.

        Args:
            clock: seconds since the epoch.
        """
        self._clock = clock
        self._paths: dict[str, float] = {}
        self._trees: dict[str, float] = {}
        self._all = 0.0
        self._any = False
        self._lock = ForkedLock()

    def __bool__(self) -> bool:
        return self._any

    def wrote(self, path: str) -> None:
        """Notes a write to one path."""
        self._note(self._paths, path, _MOST_PATHS)

    def wrote_below(self, path: str) -> None:
        """Notes a write to a path or any below it; the empty path stands for all."""
        self._note(self._trees, path.rstrip("/"), _MOST_TREES)

    def last(self, path: str) -> float:
        """When the path was last written to (seconds since the epoch); 0 if it was not."""
        found = max(self._all, self._paths.get(path, 0.0))
        for tree, written_at in tuple(self._trees.items()):
            if written_at > found and (path == tree or path.startswith(f"{tree}/") or not tree):
                found = written_at
        return found

    def _note(self, times: dict[str, float], path: str, most: int) -> None:
        with self._lock:
            self._any = True
            if path not in times and len(times) >= most:
                # Better to ask the store once more than to grow for ever.
                self._all = self._clock()
                self._paths.clear()
                self._trees.clear()
            else:
                times[path] = self._clock()
