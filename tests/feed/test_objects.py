"""The walk over what a dataset refers to: every change shows, obstacles are named, and it always ends."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import io
import itertools
import logging
import random
import struct
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.purity.objects import is_library, survey

LIMIT = 5
HELPERS = types.ModuleType("user_helpers")
HELPERS.__file__ = str(Path(__file__).with_name("user_helpers.py"))
HELPERS.scale = 2  # type: ignore[attr-defined]


class Box:
    """An instance with whatever is put on it."""

    shared: Any = None

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


class Grown(Slotted):
    __slots__ = ("more",)


@dataclasses.dataclass
class Row:
    x: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Bag(list[int]):
    """A container with attributes of its own."""

    flag = 0


class Table(dict[str, int]):
    flag = 0


class Pixels(np.ndarray):  # type: ignore[type-arg]
    flag = 0


def reads_a_global() -> int:
    return LIMIT


def reads_a_module() -> int:
    return HELPERS.scale  # type: ignore[attr-defined]


def reads_in_a_comprehension() -> list[int]:
    return [LIMIT for _ in range(3)]


def with_default(a: list[int] = [1]) -> list[int]:  # noqa: B006
    return a


def fingerprint(root: Any) -> bytes | None:
    return survey([("dataset", root)]).fingerprint


def obstacles(root: Any) -> str:
    return "; ".join(survey([("dataset", root)]).obstacles)


def closure() -> tuple[Callable[[], int], Callable[[int], None]]:
    value = 0

    def get() -> int:
        return value

    def put(new: int) -> None:
        nonlocal value
        value = new

    return get, put


def _bag() -> tuple[Any, Callable[[], Any]]:
    bag = Bag([1, 2])
    return bag, lambda: setattr(bag, "flag", 1)


def _table() -> tuple[Any, Callable[[], Any]]:
    table = Table(a=1)
    return table, lambda: setattr(table, "flag", 1)


def _pixels() -> tuple[Any, Callable[[], Any]]:
    pixels = np.zeros(3).view(Pixels)
    return pixels, lambda: setattr(pixels, "flag", 1)


def _on(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def build() -> tuple[Any, Callable[[], Any]]:
        thing = make()
        return Box(inner=[thing]), lambda: change(thing)

    return build


CHANGES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "attribute": _on(lambda: Box(a=1), lambda box: setattr(box, "a", 2)),
    "new attribute": _on(Box, lambda box: setattr(box, "b", 2)),
    "deep attribute": _on(lambda: Box(a=Box(b=Box(c=1))), lambda box: setattr(box.a.b, "c", 2)),
    "slot": _on(lambda: Slotted(1), lambda obj: setattr(obj, "value", 2)),
    "slot of a base class": _on(lambda: Grown(1), lambda obj: setattr(obj, "value", 2)),
    "slot filled": _on(lambda: Grown(1), lambda obj: setattr(obj, "more", 2)),
    "dataclass": _on(lambda: Row(1), lambda row: setattr(row, "x", 2)),
    "type of a value": _on(lambda: Box(a=1), lambda box: setattr(box, "a", True)),
    "sign of zero": _on(lambda: Box(a=0.0), lambda box: setattr(box, "a", -0.0)),
    "enum member": _on(lambda: Box(a=Color.RED), lambda box: setattr(box, "a", Color.BLUE)),
    "list item": _on(lambda: [1, 2], lambda items: items.append(3)),
    "list order": _on(lambda: [1, 2], lambda items: items.reverse()),
    "list of pairs": _on(lambda: [("a", 1), ("b", 2)], lambda items: items.__setitem__(0, ("a", 2))),
    "dict value": _on(lambda: {"a": 1}, lambda items: items.update(a=2)),
    "dict key": _on(lambda: {"a": 1}, lambda items: items.update(b=1)),
    "set": _on(lambda: {1, 2}, lambda items: items.add(3)),
    "deque": _on(lambda: collections.deque([1]), lambda items: items.append(2)),
    "attribute of a list": _bag,
    "attribute of a dict": _table,
    "attribute of an array": _pixels,
    "tensor": _on(lambda: torch.zeros(3), lambda tensor: tensor.add_(1)),
    "tensor through a view": _on(lambda: torch.zeros(2, 3).t(), lambda tensor: tensor[0].add_(1)),
    "shape of a tensor": _on(lambda: Box(t=torch.zeros(6)), lambda box: setattr(box, "t", torch.zeros(2, 3))),
    "type of a tensor": _on(lambda: Box(t=torch.zeros(2)), lambda box: setattr(box, "t", torch.zeros(2).int())),
    "array": _on(lambda: np.zeros(3), lambda array: array.__iadd__(1)),
    "array of objects": _on(lambda: np.array([[1], [2]], dtype=object), lambda array: array.__setitem__((0, 0), 9)),
    "strided array": _on(lambda: np.zeros(9)[::2], lambda array: array.__setitem__(1, 1)),
    "closure": _on(closure, lambda pair: pair[1](5)),
    "default": _on(lambda: Box(f=with_default), lambda box: with_default().append(1)),
    "partial": _on(lambda: functools.partial(int, []), lambda part: part.args[0].append(1)),
    "bound method": _on(lambda: [1].append, lambda method: method(2)),
    "random.Random": _on(lambda: random.Random(1), lambda rng: rng.random()),
    "numpy generator": _on(lambda: np.random.default_rng(1), lambda rng: rng.random()),
    "numpy RandomState": _on(lambda: np.random.RandomState(1), lambda rng: rng.rand()),
    "torch generator": _on(lambda: torch.Generator().manual_seed(1), lambda rng: torch.rand(1, generator=rng)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_shows(name: str) -> None:
    root, change = CHANGES[name]()
    before = fingerprint(root)
    if before is None:
        assert obstacles(root), "what can't be looked into is at least named"
        return
    assert fingerprint(root) == before
    change()
    assert fingerprint(root) != before


@pytest.mark.parametrize("part", ["epoch", "pixels"])
def test_a_known_fingerprint_is_met_only_by_what_is_unchanged(part: str) -> None:
    root = {"pixels": np.arange(1000), "epoch": 0}
    known = fingerprint(root)
    assert known is not None
    assert survey([("dataset", root)], known=known).fingerprint == known
    if part == "epoch":
        root["epoch"] = 1
    else:
        root["pixels"][7] = -1
    found = survey([("dataset", root)], known=known).fingerprint
    assert found != known
    # The outline alone says so where something else than an array has changed.
    assert found is not None
    assert (len(found) < len(known), known.startswith(found[:16])) == (
        (True, False) if part == "epoch" else (False, True)
    )


@pytest.mark.parametrize("name", [n for n in CHANGES if n not in ("bound method",)])
def test_nothing_of_these_stands_in_the_way_of_watching(name: str) -> None:
    assert fingerprint(CHANGES[name]()[0]) is not None


class TestCode:
    """What functions refer to counts as what objects refer to."""

    def test_a_global(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for function in (reads_a_global, reads_in_a_comprehension):
            before = fingerprint(function)
            monkeypatch.setitem(globals(), "LIMIT", 6)
            assert fingerprint(function) != before
            monkeypatch.undo()
            assert fingerprint(function) == before

    def test_a_member_of_a_module_of_the_users(self) -> None:
        before = fingerprint(reads_a_module)
        HELPERS.scale = 3  # type: ignore[attr-defined]
        assert fingerprint(reads_a_module) != before
        HELPERS.scale = 2  # type: ignore[attr-defined]
        assert fingerprint(reads_a_module) == before

    def test_an_attribute_of_a_class_and_of_its_base(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Below(Box):
            pass

        box = Below()
        before = fingerprint(box)
        monkeypatch.setattr(Box, "shared", [1])
        assert fingerprint(box) != before

    def test_a_replaced_method(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = fingerprint(Box())
        monkeypatch.setattr(Box, "__init__", lambda self: None)
        assert fingerprint(Box()) != before

    def test_what_a_cached_function_is_made_of(self) -> None:
        get, put = closure()
        cached = functools.lru_cache(get)
        before = fingerprint(cached)
        assert before is not None
        put(3)
        assert fingerprint(cached) != before


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


class Touchy:
    """Raises at the look that the walk takes."""

    __slots__ = ("__dict__",)

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


class Shy(enum.Enum):
    A = 1

    def __repr__(self) -> str:
        raise ValueError("no")


class TestObstacles:
    def test_what_raises_when_it_is_shown_is_walked_all_the_same(self) -> None:
        assert fingerprint(Box(a=Shy.A)) is not None

    @pytest.mark.parametrize(
        ("thing", "words"),
        [
            (torch.nn.Parameter(torch.zeros(2)), "is a parameter"),
            (torch.zeros(2, requires_grad=True), "is a parameter"),
            (torch.nn.Linear(2, 2), "module with parameters or buffers (Linear)"),
            (torch.nn.BatchNorm1d(2), "module with parameters or buffers"),
            (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), "is an optimizer"),
            (torch.zeros(2, device="meta"), "is a tensor on meta"),
            (torch.zeros(2, 2).to_sparse(), "tensor of layout torch.sparse_coo"),
            (nested(), "is a nested tensor"),
            (torch.nn.LazyLinear(2), "is a tensor that is yet to get its shape"),
            (threading.Lock(), "can't be looked into"),
            (itertools.count(), "can't be looked into"),
            ((n for n in range(3)), "can't be looked into"),
            (io.BytesIO(b"abc"), "can't be looked into"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_are_named_with_their_place(self, thing: Any, words: str) -> None:
        found = obstacles(Box(inner={"model": thing}))
        assert words in found
        assert "`dataset.inner['model']" in found

    def test_what_raises_when_it_is_looked_at(self) -> None:
        found = survey([("dataset", {"model": Touchy()})])
        assert found.fingerprint is None
        assert found.obstacles[0].endswith("Touchy, which can't be looked into (ValueError)")

    def test_a_compiled_format_is_none(self) -> None:
        assert fingerprint(Box(a=struct.Struct("<QI"))) == fingerprint(Box(a=struct.Struct("<QI"))) is not None
        assert fingerprint(Box(a=struct.Struct("<QI"))) != fingerprint(Box(a=struct.Struct("<QQ")))

    def test_an_open_file(self, tmp_path: Path) -> None:
        with (tmp_path / "x").open("w") as file:
            found = survey([("dataset", Box(file=file))])
        assert found.fingerprint is None
        assert "`dataset.file` is a _io.TextIOWrapper" in found.obstacles[0]

    def test_library_code_and_plain_modules_are_none(self) -> None:
        assert obstacles(Box(a=np.sqrt, b=torch.relu, c=torch.nn.ReLU(), d=logging.getLogger("x"), e=json_like())) == ""
        assert fingerprint(Box(a=np.sqrt, b=torch.relu, c=torch.nn.ReLU())) is not None

    @pytest.mark.parametrize(
        "place", ["venv/lib/python3.11/site-packages/lib.py", "usr/lib/python3/dist-packages/lib.py"]
    )
    def test_packages_of_another_installation_are_library_code(self, place: str, tmp_path: Path) -> None:
        """Of the system under an environment, of the user's own site, of a folder on PYTHONPATH."""
        assert is_library(str(tmp_path / place))
        assert not is_library(str(tmp_path / "packages" / "lib.py"))
        assert is_library(str(torch.__file__))

    def test_functions_of_numpy_that_arrays_may_override(self) -> None:
        assert obstacles(Box(a=np.where, b=np.concatenate)) == ""

    def test_no_more_than_four(self) -> None:
        found = survey([("dataset", [torch.nn.Parameter(torch.zeros(1)) for _ in range(9)])])
        assert len(found.obstacles) <= 4


def json_like() -> dict[str, Any]:
    return {"a": [1, 2.5, None, True, "x", b"y", (1, 2)], "b": {"c": Path("x"), "d": np.float32(3)}}


class TestBounds:
    def test_cycles(self) -> None:
        box = Box()
        box.me = box
        box.items = [box]
        assert fingerprint(box) is not None

    def test_a_chain_longer_than_the_stack(self) -> None:
        chain: Any = None
        for _ in range(20_000):
            chain = [chain, Box()]
        assert fingerprint(chain) is None or survey([("d", chain)]).num_objects > 20_000
        assert survey([("d", chain)], max_objects=10**6).fingerprint is not None

    def test_too_many_objects_are_given_up_soon_and_said(self) -> None:
        found = survey([("dataset", [[n] for n in range(100_000)])], max_objects=1000)
        assert found.fingerprint is None
        assert found.num_objects <= 1001
        assert "more than 1000 objects, too many to watch" in found.obstacles[0]

    def test_too_many_bytes(self) -> None:
        found = survey([("dataset", [torch.zeros(1 << 20), np.zeros(1 << 20)])], max_bytes=1 << 20)
        assert found.fingerprint is None
        assert "more than 1 MiB" in found.obstacles[0]

    @given(
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text(), st.floats(), st.binary()),
            lambda inner: st.one_of(
                st.lists(inner),
                st.dictionaries(st.text(), inner),
                st.tuples(inner, inner),
                inner.map(lambda v: Box(v=v)),
            ),
            max_leaves=30,
        ),
        st.integers(1, 20),
    )
    def test_any_graph_and_any_bound(self, root: Any, max_objects: int) -> None:
        whole = survey([("d", root)])
        assert whole.fingerprint is not None
        assert survey([("d", root)]).fingerprint == whole.fingerprint
        bounded = survey([("d", root)], max_objects=max_objects)
        assert bounded.fingerprint in (None, whole.fingerprint)

    def test_nothing_is_kept(self) -> None:
        box = Box(data=[Box() for _ in range(10)])
        before = len(gc.get_referrers(box))
        survey([("d", box)])
        gc.collect()
        assert len(gc.get_referrers(box)) <= before
