"""Files of a design: the same for the same graph, read back unchanged or not at all."""

import json
from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.ir import operations as op
from stoker.deploy.rtl.folding import Folding, LayerWork, constant_folding, works_of
from stoker.deploy.rtl.generate import design_files, read_design, write_design
from stoker.deploy.rtl.geometry import Windows
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.memories import packed, weight_words
from tests.deploy.rtl.engine.nets import classifier
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, residual_digits


def test_the_same_graph_gives_the_same_files() -> None:
    first, second = (lower(graph, random_foldings(graph, 1)) for graph in (residual_digits(), residual_digits()))
    assert design_files(first) == design_files(second)


def test_lines_are_no_longer_than_in_the_rest_of_the_project() -> None:
    graph = any_net(17)
    files = design_files(lower(graph, random_foldings(graph, 1)))
    assert all(len(line) <= 120 for name, text in files.items() if name.endswith(".sv") for line in text.splitlines())


def test_layers_in_the_circuit_have_no_memories_of_weights_and_no_multipliers() -> None:
    graph = residual_digits()
    works = works_of(graph)
    first = next(iter(works))
    foldings = random_foldings(graph, 1) | {first: constant_folding(first, works[first], 4)}
    structure = lower(graph, foldings, constant=[first])
    files = design_files(structure)
    node = next(each for each in structure.nodes.values() if each.layer == first)
    assert (node.module, node.multipliers, node.cycles) == ("constant_unit", 4 * 2, 64 * 8 // 4)
    assert not [name for name in files if name.startswith(f"{node.name}_weights")]
    assert "(LAYER == 0)" in files["constant_array.sv"]
    assert files["constant_sums_0.sv"].startswith(f"// {len(node.constant.sums.sums)} additions in ")
    order = json.loads(files["design.json"])["files"]
    assert order.index("constant_sums_0.sv") < order.index("constant_array.sv") < order.index("constant_unit.sv")
    assert all(len(line) <= 120 for name, text in files.items() if name.endswith(".sv") for line in text.splitlines())
    with pytest.raises(ValueError, match="leave out `--constant` or `--updatable`"):
        lower(graph, foldings, constant=[first], updatable=True)
    with pytest.raises(ValueError, match="one group and a folding over whole windows"):
        lower(graph, foldings | {first: Folding(4, 1, 3)}, constant=[first])


def test_what_has_no_unit_is_sent_to_the_engine() -> None:
    net = NetBuilder(0)
    source = net.input((6, 4))
    rows = net.mean(net.dense(source, 4))
    graph = net.graph(rows)
    with pytest.raises(ValueError, match=r"an engine runs it: `stoker deploy rtl --structure engine`"):
        lower(graph, random_foldings(graph, 1))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    graph = residual_digits()
    written = write_design(lower(graph, random_foldings(graph, 1)), tmp_path, "ab" * 32)
    assert read_design(tmp_path) == written
    memory = next(tmp_path.glob("*_weights.hex"))
    text = memory.read_text()
    memory.write_text(("1" if text[0] == "0" else "0") + text[1:])
    with pytest.raises(ValueError, match="must hold what was written; write it again with `stoker deploy rtl`"):
        read_design(tmp_path)
    memory.unlink()
    with pytest.raises(ValueError, match="must hold what was written"):
        read_design(tmp_path)
    with pytest.raises(ValueError, match="must hold a design"):
        read_design(tmp_path / "nothing")


def test_weights_are_in_the_order_of_the_beats() -> None:
    work = LayerWork(windows=Windows(size=(5, 5), channels=4, kernel=(3, 3)), outputs=6, groups=2)
    weight = np.random.default_rng(0).integers(-8, 8, (6, 3, 3, 2))
    folding = Folding(3, 1, 3)
    words = list(weight_words(weight, work, folding, 4).words)
    expected = []
    for group in range(2):
        for row in range(3):
            for channel in range(2):
                numbers = [weight[group * 3 + pe, row, column, channel] for pe in range(3) for column in range(3)]
                expected.append(sum((int(each) & 15) << (4 * at) for at, each in enumerate(numbers)))
    assert words == expected


def test_numbers_are_packed_lowest_first() -> None:
    assert packed(np.array([[1, -1], [-8, 7]]), 4).text() == "f1\n78\n"


def test_an_operation_without_a_unit_is_named() -> None:
    net = NetBuilder(0)
    source = net.input((3, 4))
    other = net.input((4, 5))
    product = net._requantised(
        lambda output, by: op.MatMul(sources=(source, other), output=output, transposed=False, requantiser=by),
        8, signed=True, channels=1,
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=rf"`{product}` must be of a kind that a dataflow design has a unit for, got MatMul"
    ):
        lower(net.graph(product), {})


def test_a_softmax_that_is_the_last_is_refused_with_both_ways_out() -> None:
    graph = classifier(0)
    layers = {name: Folding(1, 1, 1) for name in works_of(graph)}
    with pytest.raises(ValueError, match=r"got Softmax; an engine runs it: .*; scores without it have the same order"):
        lower(graph, layers)


def test_a_folding_that_does_not_divide_its_layer_is_refused() -> None:
    net = NetBuilder(0)
    result = net.dense(net.input((6,)), 4)
    with pytest.raises(ValueError, match=rf"`{result}`: its folding must divide its channels and taps"):
        lower(net.graph(result), {result: Folding(3, 6, 1)})
