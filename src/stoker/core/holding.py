"""What a container or an ordinary object holds, and how one is made that holds something else.

Ordinary is an object of a Python class without a special way to be copied, saved, or to get and set attributes, such as
a cache of keys and values: a copy of its attributes is a copy of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, cast

_HEAP_TYPE = 1 << 9
"""Flag of classes that Python code makes (``Py_TPFLAGS_HEAPTYPE``)."""
_OWN_WAYS = ("__setattr__", "__getattribute__", "__reduce__", "__reduce_ex__")
_NOT_ORDINARY = ("__getattr__", "__del__", "__copy__", "__deepcopy__", "__getstate__", "__setstate__")


def parts_of(value: object) -> Mapping[Any, Any] | None:
    """What a list, tuple, dictionary or ordinary object holds, by its place in it; None of anything else."""
    kind = type(value)
    if kind is dict:
        return cast("dict[Any, Any]", value)
    if kind is list or kind is tuple:
        return dict(enumerate(cast("Iterable[Any]", value)))
    return vars(value) if is_ordinary(value) else None


def is_ordinary(value: object) -> bool:
    """Whether a copy of the attributes of an object is a copy of it."""
    kind = type(value)
    if isinstance(value, enum.Enum) or callable(value) or not hasattr(value, "__dict__"):
        return False
    if any(getattr(kind, name) is not getattr(object, name) for name in _OWN_WAYS):
        return False
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in _NOT_ORDINARY):
        return False
    return all(each is object or _has_no_memory(each) for each in kind.__mro__)


def _has_no_memory(kind: type) -> bool:
    """Whether objects of a class keep everything in their attributes: no slots, and no C code below it."""
    return bool(kind.__flags__ & _HEAP_TYPE) and not vars(kind).get("__slots__")


def with_parts(kind: type[Any], parts: Mapping[Any, Any]) -> Any:
    """A new container or object of a kind that :func:`parts_of` knows, with these parts."""
    if kind is dict:
        return dict(parts)
    if kind is list:
        return list(parts.values())
    if kind is tuple:
        return tuple(parts.values())
    made: Any = object.__new__(kind)
    made.__dict__.update(parts)
    return made
