"""What containers and ordinary objects hold: a copy made of the parts is a copy; others have none."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.holding import is_ordinary, parts_of, with_parts


class Cache:
    def __init__(self) -> None:
        self.layers = [[1, 2], {"keys": 3}]


class Derived(Cache):
    """A class without slots of its own below another."""


@dataclass
class Record:
    number: int


class Slotted:
    __slots__ = ("__dict__", "number")


class Refuses(Cache):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class Looked(Cache):
    def __getattr__(self, name: str) -> Any:
        return 0


class Ended(Cache):
    def __del__(self) -> None:
        pass


class Called(Cache):
    def __call__(self) -> None:
        pass


class Saved(Cache):
    def __reduce__(self) -> Any:
        return Saved, ()


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("kind", [Cache, Derived])
def test_an_object_made_of_the_parts_is_a_copy(kind: type[Cache]) -> None:
    cache = kind()
    parts = parts_of(cache)
    assert parts is not None
    copy = with_parts(kind, parts)
    assert type(copy) is kind
    assert vars(copy) == vars(cache)
    assert vars(copy) is not vars(cache)
    copy.layers = []
    assert cache.layers


@pytest.mark.parametrize(
    "value",
    [
        Refuses, Cache, Slotted(), Looked(), Ended(), Called(), Saved(), Colour.RED, len, lambda: 0, threading, 1, "a",
        None, {1}, OrderedDict(), ValueError(), threading.Lock(),
    ],
)  # fmt: skip
def test_what_has_ways_of_its_own_has_no_parts(value: object) -> None:
    assert not is_ordinary(value)
    assert parts_of(value) is None


def test_objects_of_a_class_that_guards_its_attributes_have_none() -> None:
    assert not is_ordinary(object.__new__(Refuses))
    assert is_ordinary(Record(1))


@given(st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_containers_are_made_of_their_parts(value: Any) -> None:
    parts = parts_of(value)
    if isinstance(value, int):
        assert parts is None
    else:
        assert parts is not None
        assert with_parts(type(value), parts) == value
