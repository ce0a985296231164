import logging
import types
from typing import Any

import pytest

from stoker.core.patching import Patches, patched


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def own(self) -> str:
        return "own"

    @staticmethod
    def plain() -> str:
        return "plain"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


def other(*_: object) -> str:
    return "other"


@pytest.fixture
def owner() -> Any:
    return type("Owner", (Base,), dict(vars(Owner)))


@pytest.fixture
def patches() -> Patches:
    return Patches("a test")


def test_attributes_of_modules_classes_and_objects_come_back(patches: Patches, owner: Any) -> None:
    module = types.ModuleType("library")
    vars(module).update(size=1, table={})
    instance = owner()
    for place, name in ((module, "size"), (owner, "own"), (instance, "own")):
        patches.set(place, name, other)
    assert (module.size, owner().own(), instance.own()) == (other, "other", "other")
    assert patches.restore() == []
    assert (module.size, owner().own(), vars(instance)) == (1, "own", {})


def test_what_a_class_inherits_is_inherited_again(patches: Patches, owner: Any) -> None:
    patches.set(owner, "inherited", other)
    assert owner().inherited() == "other"
    assert Base().inherited() == "base"
    patches.restore()
    assert "inherited" not in vars(owner)
    assert owner().inherited() == "base"


def test_descriptors_come_back_as_they_were(patches: Patches, owner: Any) -> None:
    before = dict(vars(owner))
    patches.set(owner, "plain", staticmethod(other))
    patches.set(owner, "of_class", classmethod(other))
    assert (owner.plain(), owner().plain(), owner.of_class()) == ("other",) * 3
    patches.restore()
    assert dict(vars(owner)) == before
    assert (owner.plain(), owner.of_class()) == ("plain", "Owner")


def test_items_of_tables_come_back(patches: Patches) -> None:
    table = {"kept": 1, "changed": 2}
    patches.set_item(table, "changed", 3, "a table")
    patches.set_item(table, "new", 4, "a table")
    assert table == {"kept": 1, "changed": 3, "new": 4}
    patches.restore()
    assert table == {"kept": 1, "changed": 2}


def test_the_last_is_put_back_first(patches: Patches, owner: Any) -> None:
    own = owner.own
    patches.set(owner, "own", other)
    patches.set(owner, "own", lambda self: f"{other()} again")
    assert owner().own() == "other again"
    assert patches.restore() == []
    assert owner.own is own


def test_the_same_value_twice_is_one_change(patches: Patches, owner: Any) -> None:
    own = owner.own
    for _ in range(2):
        patches.set(owner, "own", other)
    patches.restore()
    assert owner.own is own
    assert patches.restore() == []


def test_what_somebody_else_put_on_top_stays_and_is_told(
    patches: Patches, owner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inherited, own = owner.inherited, owner.own
    patches.set(owner, "own", other)
    patches.set(owner, "inherited", other)

    def theirs(self: object) -> str:
        return f"theirs over {other()}"

    owner.own = theirs
    with caplog.at_level(logging.WARNING, "stoker"):
        left = patches.restore()
    name = f"{__name__}.Owner.own"
    assert left == patches.names == [name]
    assert [f"`{name}`" in line and "(a test)" in line for line in caplog.messages] == [True]
    assert (owner().own(), owner.inherited) == ("theirs over other", inherited)
    owner.own = other  # they have gone
    patches.set(owner, "own", other)
    assert patches.restore() == []
    assert owner.own is own


def test_what_is_back_already_is_no_matter(patches: Patches, owner: Any) -> None:
    own = owner.own
    patches.set(owner, "own", other)
    owner.own = own
    assert patches.restore() == []
    assert owner.own is own


def test_a_name_that_is_missing_is_refused_unless_it_is_added(patches: Patches, owner: Any) -> None:
    with pytest.raises(AttributeError, match=r"`.*Owner\.gone` must exist to be replaced"):
        patches.set(owner, "gone", other)
    assert not hasattr(owner, "gone")
    patches.set(owner, "gone", other, adds=True)
    assert owner().gone() == "other"
    patches.restore()
    assert not hasattr(owner, "gone")


def test_a_block_puts_back_whatever_happens_in_it(owner: Any) -> None:
    own = owner.own

    def work() -> None:
        with Patches("a test") as patches:
            patches.set(owner, "own", other)
            raise OSError("in it")

    with pytest.raises(OSError, match="in it"):
        work()
    assert owner.own is own


def test_what_is_replaced_is_listed_by_purpose(patches: Patches, owner: Any) -> None:
    more = Patches("another test")
    module = types.ModuleType("library")
    patches.set(owner, "own", other)
    patches.set(module, "function", other, adds=True)
    more.set_item({}, int, other, "library.table")
    found = {purpose: names for purpose, names in patched().items() if "test" in purpose}
    assert found == {
        "a test": [f"{__name__}.Owner.own", "library.function"],
        "another test": ["library.table[int]"],
    }
    patches.restore()
    more.restore()
    assert not {"a test", "another test"} & patched().keys()
