"""Replaces attributes of other libraries, and restores them.

Importing stoker replaces nothing: each replacement has a beginning and an end. What other code has replaced since is
left alone, because restoring the original would undo that as well.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self, cast

_ABSENT: Any = object()
_logger = logging.getLogger("stoker")


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute of an object itself, not one that it inherits."""

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
    """An item of a table."""

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


set_class: Callable[[Any, type[Any]], None] = vars(object)["__class__"].__set__
"""Gives an object a class, whatever the object takes an assignment to ``__class__`` for."""


@dataclass(frozen=True, slots=True)
class _Class:
    """The class of an object."""

    owner: Any

    def get(self) -> Any:
        return cast("type[Any]", type(self.owner))

    def put(self, value: Any) -> None:
        set_class(self.owner, value)

    def __str__(self) -> str:
        return f"class of a {type(self.owner).__qualname__}"


@dataclass(frozen=True, slots=True)
class _Change:
    place: _Attribute | _Item | _Class
    ours: Any
    before: Any


class Patches:
    """The replacements for one purpose; as a context manager, restored at the end of its block.

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
        """Replaces an attribute until :meth:`restore`; does nothing if it has this value already.

        Args:
            owner: a module, a class or another object that has a ``__dict__``.
            name: of the attribute, which may be inherited.
            value: the replacement; for a class as its ``__dict__`` would hold it.
            adds: whether the name may be missing.

        Raises:
            AttributeError: the name is missing.
        """
        place = _Attribute(owner, name)
        if not adds and not hasattr(owner, name):
            raise AttributeError(f"`{place}` must exist to be replaced, and does not; is its library too new?")
        self._change(place, value)

    def set_item(self, table: MutableMapping[Any, Any], key: Hashable, value: Any, name: str) -> None:
        """Likewise replaces an item of a table, which may be missing.

        Args:
            table: a library's.
            key: of the item.
            value: the replacement.
            name: the table's, for people.
        """
        self._change(_Item(table, key, name), value)

    def set_class(self, owner: Any, value: type[Any]) -> None:
        """Likewise replaces the class of an object by one that derives from it and adds nothing to its layout.

        Raises:
            TypeError: python can't do that for this class.
        """
        self._change(_Class(owner), value)

    def _change(self, place: _Attribute | _Item | _Class, value: Any) -> None:
        before = place.get()
        if before is not value:
            place.put(value)
            self._changes.append(_Change(place, value, before))

    def restore(self) -> list[str]:
        """Restores what was there, last first.

        Returns:
            Names that other code has replaced since. They stay as they are and are logged as warnings; a later call
            restores them once they hold our replacement again.
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
                "`%s` must hold stoker's replacement (%s) to be restored, and other code has replaced it since; "
                "it stays as it is",
                name,
                self.purpose,
            )
        return names

    @property
    def names(self) -> list[str]:
        """Names that are replaced now, in the order of replacement."""
        return list(dict.fromkeys(str(change.place) for change in self._changes))


def patched() -> dict[str, list[str]]:
    """Names that are replaced in this process now, by purpose."""
    found: dict[str, list[str]] = {}
    for patches in sorted(_all, key=lambda patches: patches.purpose):
        if names := patches.names:
            found.setdefault(patches.purpose, []).extend(names)
    return found


_all: weakref.WeakSet[Patches] = weakref.WeakSet()
