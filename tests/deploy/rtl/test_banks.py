"""Designs that take updates: no training is in their circuit; what a training decides is in an update, or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.banks import update_words
from stoker.deploy.rtl.folders import DESIGN
from stoker.deploy.rtl.generate import DesignDescription, design_files
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.updating import update_of
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, tower


def described(graph: IntegerGraph, seed: int) -> tuple[dict[str, str], DesignDescription]:
    files = design_files(lower(graph, random_foldings(graph, seed), updatable=True), "0" * 64)
    return files, msgspec.json.decode(files[DESIGN], type=DesignDescription)


@settings(max_examples=20)
@given(seed=st.integers(0, 200))
def test_two_trainings_are_one_circuit(seed: int) -> None:
    one, other = (any_net(seed, "", trained) for trained in (1, 2))
    (first, description), (second, _) = described(one, seed), described(other, seed)
    assert {name: text for name, text in first.items() if name.endswith(".sv")} == {
        name: text for name, text in second.items() if name.endswith(".sv")
    }
    words = update_of(description, other, "89abcdef")
    assert description.updates is not None
    assert (words[0], len(words)) == (0x89ABCDEF, description.updates.words)
    # An update is all that the memories would begin with.
    assert words[1:] == update_words(lower(other, random_foldings(other, seed), updatable=True), "0")[1:]
    assert words[1:] != update_words(lower(one, random_foldings(one, seed), updatable=True), "0")[1:]


def test_rows_of_tables_are_part_of_an_update() -> None:
    _, description = described(tower(1, trained=1), 1)
    assert update_of(description, tower(1, trained=2), "0" * 8) != update_of(description, tower(1, trained=1), "0" * 8)


def one_layer(**more: object) -> IntegerGraph:
    net = NetBuilder(0)
    chosen = {"outputs": 4, "kernel": (3, 3), "weight_bits": 8, **more}
    return net.graph(net.conv(net.input((4, 4, 2)), chosen.pop("outputs"), **chosen))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"weight_bits": 4}, "v1 has WEIGHT_W 4, the design 8"),
        ({"bits": 6}, "v1 has OUT_W 6, the design 8"),
        ({"kernel": (2, 2)}, "v1 has HEIGHT|v1 has KERNEL_Y 2, the design 3"),
        ({"outputs": 8}, "v1 has FOLDS|v1 has other memories|`v1` is"),
    ],
)
def test_another_structure_is_refused_by_what_differs(other: dict[str, object], told: str) -> None:
    _, description = described(one_layer(), 0)
    with pytest.raises(
        ValueError, match=r"must be of the design's structure, and differs: .*write a separate design"
    ) as found:
        update_of(description, one_layer(**other), "0" * 8)
    assert any(each in str(found.value) for each in told.split("|")), found.value


def test_a_layer_that_is_not_there_is_named() -> None:
    net = NetBuilder(0)
    longer = net.graph(net.conv(net.conv(net.input((4, 4, 2)), 4), 4, (1, 1)))
    _, description = described(one_layer(), 0)
    with pytest.raises(ValueError, match="the layer v2 is in one alone"):
        update_of(description, longer, "0" * 8)


def test_a_design_without_banks_takes_no_update() -> None:
    graph = one_layer()
    files = design_files(lower(graph, random_foldings(graph, 0)))
    description = msgspec.json.decode(files[DESIGN], type=DesignDescription)
    assert not any("bank" in text or "UPDATABLE" in text for text in files.values())
    with pytest.raises(ValueError, match="`design` must take updates; write it with `stoker deploy rtl --updatable`"):
        update_of(description, graph, "0" * 8)
