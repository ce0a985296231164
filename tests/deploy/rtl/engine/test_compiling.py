"""Programs of an engine by the instructions' law: equal to the graph's law; what does not fit is named."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.engine.compiling import compiled
from stoker.deploy.rtl.engine.ends import beats_of, values_of
from stoker.deploy.rtl.engine.instructions import First, InstructionKind, Second
from stoker.deploy.rtl.engine.machine import ProgramMachine
from stoker.deploy.rtl.engine.shape import EngineShape
from tests.deploy.graphs import graphs, numbers_for
from tests.deploy.rtl.engine.nets import RowBuilder, attention, classifier, counted
from tests.deploy.rtl.nets import NetBuilder, any_net, residual_digits, tower

LARGE = EngineShape(lanes=4, data_words=4096, weight_words=2048, table_words=2048, scale_words=1024)


def differing(graph: IntegerGraph, shape: EngineShape, samples: int = 2) -> int:
    """Outputs of a program that are not the law's."""
    inputs = numbers_for(graph, samples)
    machine = ProgramMachine(compiled(graph, shape))
    words = [np.stack(machine.run(list(beats))) for beats in beats_of(graph, inputs, shape.lanes)]
    found = values_of(graph, np.stack(words).astype(np.uint16))
    law = NumpyEngine(graph).integers(inputs)
    return sum(int((found[name] != array.reshape(samples, -1)).sum()) for name, array in law.items())


@given(graph=graphs(), lanes=st.sampled_from([2, 4, 8]))
@settings(max_examples=30)
def test_a_program_computes_what_the_graph_does(graph: IntegerGraph, lanes: int) -> None:
    assert differing(graph, structs.replace(LARGE, lanes=lanes)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_branches_groups_and_strides(seed: int) -> None:
    assert differing(any_net(seed), LARGE) == 0


@pytest.mark.parametrize("masked", [True, False])
def test_attention_and_layer_norm(masked: bool) -> None:
    graph = attention(3, masked=masked)
    assert differing(graph, LARGE) == 0
    assert differing(attention(4, tokens=3, heads=3, size=4, masked=masked), structs.replace(LARGE, lanes=8)) == 0


@given(
    seed=st.integers(0, 99), heads=st.integers(1, 3), tokens=st.integers(1, 6), data=st.data(),
    lanes=st.sampled_from([2, 4, 8]), masked=st.booleans(), bits=st.sampled_from([4, 8]), wide=st.booleans(),
)  # fmt: skip
@settings(max_examples=30)
def test_shares_of_what_an_input_says_counts(
    seed: int, heads: int, tokens: int, data: st.DataObject, lanes: int, masked: bool, bits: int, wide: bool
) -> None:
    shape = (heads, tokens, tokens)
    counts = tuple(data.draw(st.sampled_from([1, size])) for size in shape)
    graph = counted(seed, shape, counts, masked=masked, bits=bits, share_bits=16 if wide else 8)
    assert differing(graph, structs.replace(LARGE, lanes=lanes), samples=5) == 0


def test_a_constant_mask_of_which_a_row_counts_nothing() -> None:
    net = RowBuilder(1)
    graph = net.graph(net.softmax(net.input((3, 5)), mask=np.array([[0] * 5, [1, 0, 1, 0, 0], [0] * 5])))
    assert differing(graph, LARGE) == 0


@pytest.mark.parametrize(
    ("width", "channels", "lanes", "words"),
    # Words of a row of results; with one pixel after another there would be 12, 6, 8, 16 and 14 of them.
    [(6, 12, 8, 9), (6, 2, 4, 3), (8, 1, 8, 1), (8, 9, 8, 9), (7, 12, 8, 14)],
)
def test_words_of_a_depthwise_convolution_go_on_through_pixels(
    width: int, channels: int, lanes: int, words: int
) -> None:
    net = NetBuilder(1)
    first = net.conv(net.input((3, width, channels)), channels, padding=(1, 1, 1, 1), groups=channels)
    graph = net.graph(net.conv(first, channels, padding=(0, 0, 1, 1), stride=(1, 2), groups=channels))
    shape = structs.replace(LARGE, lanes=lanes)
    image = compiled(graph, shape)
    steps = [each.steps for each, name in zip(image.instructions, image.operations, strict=True) if name == first]
    assert steps[-1] == 3 * words * 9
    assert differing(graph, shape) == 0


def test_an_image_is_written_into_the_border_that_all_who_read_it_want() -> None:
    net = RowBuilder(2)
    source = net.input((4, 8, 4))
    first = net.conv(source, 8, padding=(1, 1, 1, 1), groups=4)
    second = net.add(net.conv(first, 8, padding=(1, 1, 1, 1)), net.conv(first, 8, padding=(1, 1, 1, 1)))
    third = net.conv(net.table(net.max_pool(second, (2, 2), (1, 1), (1, 0, 0, 2))), 8, padding=(2, 1, 1, 1))
    fourth = net.conv(net.multiplied(third, third), 4, padding=(1, 1, 1, 1))
    last = net.conv(fourth, 3, padding=(1, 1, 1, 1))
    wanted_as_it_is, of_another_size = net.conv(fourth, 4, (1, 1)), net.conv(fourth, 2, (5, 5), padding=(2, 2, 2, 2))
    graph = net.graph(*(net.flat(each) for each in (last, wanted_as_it_is, of_another_size)), fourth)
    for lanes in (4, 8):  # of 4 numbers a pixel: with 8 lanes no word of a row is full
        assert differing(graph, structs.replace(LARGE, lanes=lanes)) == 0
    image = compiled(graph, LARGE)
    # The three that read the fourth, and the graph, share no border: it is copied into two.
    nests = [each for each in image.instructions if each.kind == InstructionKind.NEST and not each.array]
    copies = [each for each in nests if (each.first, each.second, each.reduce) == (First.OWN, Second.ONE, 0)]
    assert len(copies) == 2


def test_values_that_share_numbers_have_borders_by_their_own_shapes() -> None:
    net = RowBuilder(3)
    first = net.input((4, 6, 2))
    parts = [net.conv(each, 3, padding=(1, 1, 1, 1)) for each in (first, net.shaped(first, (6, 4, 2)))]
    assert differing(net.graph(*(net.flat(each) for each in parts)), LARGE) == 0


@pytest.mark.parametrize("size", [4, 24])
def test_a_border_takes_no_more_steps_than_its_numbers_ask(size: int) -> None:
    net = NetBuilder(4)
    first = net.input((size, size, 4))
    second = net.conv(first, 8, padding=(1, 1, 1, 1))
    image = compiled(net.graph(net.flat(second)), structs.replace(LARGE, weight_words=4096))
    fills = [each.steps for each in image.instructions if each.second == Second.ZERO]
    # All of a small image at once; of a large one rows above and below with a corner each, and what is between rows.
    assert fills == {4: [36], 24: [2 * 27, 2 * 23]}[size]


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (4, 5), (2, 10)])
def test_logarithms_of_shares(rows: int, classes: int) -> None:
    assert differing(classifier(rows, rows, classes), structs.replace(LARGE, lanes=8)) == 0


def test_rows_of_tables_and_sums_of_them() -> None:
    assert differing(tower(4), LARGE) == 0


def test_numbers_too_wide_for_the_array_go_lane_by_lane() -> None:
    net = NetBuilder(0)
    graph = net.graph(net.dense(net.dense(net.input((9,)), 6, 16), 5))
    image = compiled(graph, LARGE)
    assert [each.array for each in image.instructions if each.levels and each.reduce] == [True, False]
    assert differing(graph, LARGE) == 0


def test_the_same_graph_gives_the_same_program() -> None:
    first, second = (list(compiled(residual_digits(), EngineShape()).transfers()) for _ in range(2))
    assert first == second


def test_a_change_costs_its_bytes_and_few_words_more() -> None:
    image = compiled(residual_digits(), EngineShape())
    assert len(list(image.transfers())) <= image.bytes / 4 + 6


@pytest.mark.parametrize(
    ("memory", "size"),
    [("data", "data_words"), ("weights", "weight_words"), ("scales", "scale_words"), ("instructions", "instructions"),
     ("tables", "table_words")],
)  # fmt: skip
def test_a_memory_that_is_too_small_is_named_with_what_it_lacks(memory: str, size: str) -> None:
    graph = attention(0)
    with pytest.raises(ValueError, match=rf"memory of {memory} must hold [\d,]+ words of the model, has 2: ") as error:
        compiled(graph, structs.replace(EngineShape(), **{size: 2}))
    larger = re.search(rf"`--memory {memory}=(\d+)`", str(error.value))
    assert larger is not None
    compiled(graph, structs.replace(EngineShape(), **{size: int(larger[1])}))


def test_sums_that_need_more_bits_are_refused() -> None:
    net = RowBuilder(0)
    graph = net.graph(net.product(net.input((1, 32), 16), net.input((32, 1), 16)))
    with pytest.raises(ValueError, match=r"`v2`: sums must fit 35 bits on an engine, need 3[6-9]; use fewer bits"):
        compiled(graph, LARGE)


@pytest.mark.parametrize("size", [{"lanes": 3}, {"data_words": 100}, {"weight_words": 1 << 20}])
def test_sizes_that_no_netlist_has_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"`{next(iter(size))}` must be"):
        EngineShape(**size)
