"""Names of other libraries that stoker replaces, and gives back.

Nothing is replaced by an import: what replaces has a beginning and an end. What somebody else has replaced since is
left alone, because taking ours away would take theirs away as well.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self, cast

_ABSENT: Any = object()
_logger = logging.getLogger("stoker")


@dataclass(frozen=True, slots=True)
class _Attribute:
    """What an object has under a name itself; what it inherits is not its own."""

    owner: Any
    name: str

    def get(self) -> Any:
        return cast("Mapping[str, Any]", vars(self.owner)).get(self.name, _ABSENT)

    def put(self, value: Any) -> None:
        if value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def __str__(self) -> str:
        owner = self.owner
        if isinstance(owner, type):
            return f"{owner.__module__}.{owner.__qualname__}.{self.name}"
        return f"{getattr(owner, '__name__', f'a {type(owner).__qualname__}')}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Item:
    """What a table has under a key."""

    table: MutableMapping[Any, Any]
    key: Hashable
    name: str

    def get(self) -> Any:
        return self.table.get(self.key, _ABSENT)

    def put(self, value: Any) -> None:
        if value is _ABSENT:
            del self.table[self.key]
        else:
            self.table[self.key] = value

    def __str__(self) -> str:
        return f"{self.name}[{getattr(self.key, '__qualname__', repr(self.key))}]"


@dataclass(frozen=True, slots=True)
class _Change:
    place: _Attribute | _Item
    ours: Any
    before: Any


class Patches:
    """What is replaced for one purpose; as a context, for the length of its block.

    Args:
        purpose: in a few words, as ``stoker doctor`` shows it.

    Note: for one thread at a time.
    """

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self._changes: list[_Change] = []
        _all.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def set(self, owner: Any, name: str, value: Any, *, adds: bool = False) -> None:
        """Replaces an attribute until :meth:`restore`; nothing where it is this value already.

        Args:
            owner: a module, a class or another object that has a ``__dict__``.
            name: of the attribute, which may be inherited.
            value: in its place; for a class as its ``__dict__`` would hold it.
            adds: the name need not be there.

        Raises:
            AttributeError: it is not there.
        """
        place = _Attribute(owner, name)
        if not adds and not hasattr(owner, name):
            raise AttributeError(f"`{place}` must be there to be replaced, and is not; is its library a newer one?")
        self._change(place, value)

    def set_item(self, table: MutableMapping[Any, Any], key: Hashable, value: Any, name: str) -> None:
        """Likewise an item of a table, which need not be there.

        Args:
            table: of a library.
            key: of the item.
            value: in its place.
            name: of the table, for people.
        """
        self._change(_Item(table, key, name), value)

    def _change(self, place: _Attribute | _Item, value: Any) -> None:
        before = place.get()
        if before is not value:
            place.put(value)
            self._changes.append(_Change(place, value, before))

    def restore(self) -> list[str]:
        """Puts back what was there, last first.

        Returns:
            Names that somebody else has replaced since. They stay as they are, are told in a line of the log, and can
            be put back by a later call, once they hold ours again.
        """
        left: list[_Change] = []
        while self._changes:
            change = self._changes.pop()
            found = change.place.get()
            if found is change.ours:
                change.place.put(change.before)
            elif found is not change.before:
                left.append(change)
        self._changes = left[::-1]
        names = list(dict.fromkeys(str(change.place) for change in left))
        for name in names:
            _logger.warning(
                "`%s` must hold what stoker put there (%s) to be put back, and somebody else has replaced it since; "
                "it stays as it is",
                name,
                self.purpose,
            )
        return names

    @property
    def names(self) -> list[str]:
        """What is replaced now, in the order in which it was."""
        return list(dict.fromkeys(str(change.place) for change in self._changes))


def patched() -> dict[str, list[str]]:
    """Names that are replaced in this process now, by purpose."""
    found: dict[str, list[str]] = {}
    for patches in sorted(_all, key=lambda patches: patches.purpose):
        if names := patches.names:
            found.setdefault(patches.purpose, []).extend(names)
    return found


_all: weakref.WeakSet[Patches] = weakref.WeakSet()
