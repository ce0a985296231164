"""A graph that does not say the truth about itself is refused, with what is wrong."""

from typing import Any

import msgspec
import numpy as np
import pytest

from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from tests.deploy.rtl.engine.nets import counted
from tests.deploy.test_package import small


def changed(graph: IntegerGraph, **changes: Any) -> IntegerGraph:
    fields = {name: getattr(graph, name) for name in ("inputs", "outputs", "values", "operations", "constants")}
    return IntegerGraph(**(fields | changes))


def of_value(graph: IntegerGraph, **changes: Any) -> IntegerGraph:
    return changed(graph, values={**graph.values, "y": msgspec.structs.replace(graph.values["y"], **changes)})


def of_layer(graph: IntegerGraph, **changes: Any) -> IntegerGraph:
    return changed(graph, operations=(msgspec.structs.replace(graph.operations[0], **changes),))


def of_requantiser(graph: IntegerGraph, **changes: Any) -> IntegerGraph:
    by = graph.operations[0].requantiser  # type: ignore[union-attr]
    return of_layer(graph, requantiser=msgspec.structs.replace(by, **changes))


def of_counts(**changes: Any) -> IntegerGraph:
    """Shares of scores of which an input says what counts, and that input changed."""
    graph = counted(1, (2, 3, 3), (1, 1, 3))
    name = graph.inputs[1].value
    return changed(graph, values={**graph.values, name: msgspec.structs.replace(graph.values[name], **changes)})


def test_a_sound_graph_is_kept() -> None:
    assert checked(small()).operations == small().operations


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (of_value(small(), low=-1, high=1), "`y`: the range must hold"),
        (of_value(small(), shape=(3,)), r"`y`: the shape must be \(2,\), got \(3,\)"),
        (of_value(small(), scale=float("nan")), "`scale` must be positive and finite"),
        (of_value(small(), zero_point=5), "zero point"),
        (of_value(small(), bits=40), "`bits` must be"),
        (of_layer(small(), source="none"), "reads `none`, which must be computed before it"),
        (of_layer(small(), weight="none"), "reads the constant `none`, which the graph lacks"),
        (of_layer(small(), weight_bits=4), "`w` must fit 4 bits"),
        (of_requantiser(small(), shift=60), "`shift` must be 0 to 46, got 60"),
        (of_requantiser(small(), high=1000), "clamp within the result's type"),
        (
            changed(small(), constants={**small().constants, "m": np.array([1, 70000])}),
            "multipliers must be 0 to 65535",
        ),
        (
            changed(small(), constants={**small().constants, "b": np.array([1])}),
            "`b` must have one number for each of 2",
        ),
        (
            changed(small(), constants={**small().constants, "b": np.array([1 << 60, 0])}),
            "must fit",
        ),
        (of_counts(bits=2, high=2), "`counts` must hold 0 and 1, got 0 to 2"),
        (of_counts(shape=(1, 1, 2)), "must differ only where one is 1"),
        (of_counts(shape=(1, 1, 1)), "the caller's shape"),
        (changed(small(), operations=()), "output `y` must be a value that is computed"),
        (changed(small(), operations=small().operations * 2), "`y` must be computed once"),
    ],
)
def test_a_rule_that_is_broken_is_named(graph: IntegerGraph, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked(graph)
