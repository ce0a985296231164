import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.programs.dataflows import FEW, Dataflow, drawn, enumerate_cuts
from stoker.graph.choice.cut import NO_TIME, Prices, choose, value_of

FAST = Prices(bytes_per_s=5e9)
ANY_SAVING = replace(FAST, min_saving_frac=0.0)
GRAPHS = st.builds(drawn, st.integers(0, 10**9), st.integers(1, 10))
PRICES = st.builds(
    Prices,
    bytes_per_s=st.sampled_from((1e6, 5e7, 1e9, 1e11)),
    tensor_s=st.sampled_from((0.0, 12e-6, 1e-3)),
    verify_s=st.sampled_from((0.0, 3e-6, 1e-4)),
    worker_s_price=st.sampled_from((0.0, 0.05, 0.9, 1.5)),
    min_saving_frac=st.just(0.0),
)


def by_hand(graph, moved, prices):
    """Value and values sent, straight from the rules: a walk back from what the training process uses."""
    needed, walk = set(), list(graph.kept)
    for node in graph.nodes:
        if node.number not in moved:
            walk.extend(node.inputs)
    while walk:
        value = walk.pop()
        if value not in needed:
            needed.add(value)
            producer = graph.producer(value)
            if producer is not None and producer.is_view:
                walk.extend(producer.inputs)
    made = {value for n in moved if not graph.nodes[n].is_view for value in graph.nodes[n].outputs}
    sent = made & needed
    total = -sum(prices.tensor_s + graph.values[value].size_bytes / prices.bytes_per_s for value in sent)
    for number in moved:
        node = graph.nodes[number]
        saved = node.seconds - prices.verify_s
        if node.is_view:
            base = base_of(graph, node.outputs[0])
            if base not in made:
                continue
            saved = 0.0 if base in sent else max(0.0, saved)
        total += saved - prices.worker_s_price * node.seconds
    return total, sent


def base_of(graph, value):
    producer = graph.producer(value)
    return base_of(graph, producer.inputs[0]) if producer is not None and producer.is_view else value


@given(GRAPHS, PRICES)
def test_the_value_of_every_cut_follows_from_the_rules(graph, prices):
    for cut in enumerate_cuts(graph):
        assert value_of(graph, cut, prices) == pytest.approx(by_hand(graph, cut, prices)[0], abs=1e-7)


@given(GRAPHS, PRICES)
def test_no_cut_is_better_than_the_chosen_one_and_none_as_good_is_smaller(graph, prices):
    cut = choose(graph, prices)
    values = {other: value_of(graph, other, prices) for other in enumerate_cuts(graph)}
    best = max(values.values())
    assert values[cut.moved] == best
    assert all(cut.moved <= other for other, value in values.items() if value == best)


@given(GRAPHS, PRICES)
def test_a_cut_is_closed_and_sends_what_is_needed_and_never_views_or_leaves(graph, prices):
    cut = choose(graph, prices)
    for number in cut.moved:
        assert not graph.nodes[number].state
        producers = {graph.values[value].producer for value in graph.nodes[number].inputs} - {None}
        assert producers <= cut.moved
    assert set(cut.boundary) == by_hand(graph, cut.moved, prices)[1]
    assert list(cut.boundary) == sorted(cut.boundary)
    assert all(graph.producer(value) is not None and not graph.producer(value).is_view for value in cut.boundary)
    assert cut.boundary_bytes == sum(graph.values[value].size_bytes for value in cut.boundary)
    assert cut.worker_s == pytest.approx(sum(graph.nodes[number].seconds for number in cut.moved))


@given(GRAPHS, PRICES)
def test_each_stateless_node_moves_or_has_a_reason(graph, prices):
    cut = choose(graph, prices)
    stateless = {node.number for node in graph.nodes if not node.state}
    assert cut.moved.isdisjoint(cut.stayed)
    assert cut.moved | set(cut.stayed) == stateless
    assert all(cut.stayed.values())


@given(GRAPHS, PRICES)
def test_a_cheaper_transport_never_saves_less(graph, prices):
    free_workers = replace(prices, worker_s_price=0.0)
    at = [choose(graph, replace(free_workers, bytes_per_s=rate)).saved_s for rate in (1e6, 1e8, 1e10, math.inf)]
    assert all(slow <= fast for slow, fast in pairwise(at))
    values = [
        value_of(graph, choose(graph, dearer).moved, dearer)
        for dearer in (replace(prices, bytes_per_s=rate) for rate in (1e6, 1e8, 1e10, math.inf))
    ]
    assert all(slow <= fast for slow, fast in pairwise(values))


@given(GRAPHS, PRICES)
def test_a_saving_below_the_floor_moves_nothing(graph, prices):
    saved_s = choose(graph, prices).saved_s
    floor = choose(graph, replace(prices, min_saving_s=2 * saved_s + 1e-6))
    assert not floor
    assert (floor.boundary, floor.saved_s, floor.worker_s, floor.boundary_bytes) == ((), 0.0, 0.0, 0)
    assert choose(graph, replace(prices, min_saving_s=saved_s)).saved_s == saved_s


@given(GRAPHS, PRICES, st.floats(0.0, 0.1), st.sampled_from((1.0, 3.0, 100.0)))
def test_data_workers_that_have_no_time_never_make_a_cut_better(graph, prices, item_s, workers):
    busy = choose(graph, replace(prices, item_s=item_s, workers=workers))
    assert 0.0 <= busy.saved_s <= choose(graph, prices).saved_s + 1e-9
    assert busy.moved | set(busy.stayed) == {node.number for node in graph.nodes if not node.state}


def of_busy_workers():
    """A batch takes a worker 4 of the step's 5 ms already; of two calls the cheaper one is sent for next to nothing."""
    flow = Dataflow(step_s=5e-3)
    flow.model(flow.call("sum", flow.leaf(), seconds=0.8e-3, size_bytes=80))
    wide = flow.call("scale", flow.leaf(), seconds=2e-3, size_bytes=5_000_000)
    flow.model(wide)
    return flow.graph


def test_a_cut_that_data_workers_have_no_time_for_is_not_made():
    graph = of_busy_workers()
    assert choose(graph, FAST).moved == {0, 2}
    assert choose(graph, replace(FAST, item_s=4e-3, workers=2)).moved == {0, 2}
    none = choose(graph, replace(FAST, item_s=6e-3, workers=1))
    assert not none
    assert set(none.stayed.values()) == {NO_TIME}


def test_calls_that_wait_need_little_of_the_data_workers_where_more_are_added():
    flow = Dataflow(step_s=7e-3)
    flow.model(flow.call("read", flow.leaf(), seconds=6e-3, size_bytes=80))
    prices = replace(FAST, item_s=1e-3, workers=1)
    flow.graph.busy_s = 1.5e-3
    assert choose(flow.graph, prices).saved_s < 1e-3
    assert choose(flow.graph, replace(prices, waits_overlap=True)).saved_s == pytest.approx(4.5e-3, rel=0.01)
    flow.graph.busy_s = 6.5e-3
    assert choose(flow.graph, replace(prices, waits_overlap=True)) == choose(flow.graph, prices)


def test_of_a_cut_too_large_for_the_data_workers_what_saves_most_of_their_time_is_made():
    cut = choose(of_busy_workers(), replace(FAST, item_s=3.5e-3, workers=1))
    assert cut.moved == {0}
    assert cut.stayed[2] == NO_TIME
    assert cut.saved_s == pytest.approx(0.7e-3, rel=0.1)


def test_an_expanding_prefix_stays():
    flow = Dataflow()
    labels = flow.leaf(400_000)
    flow.model(flow.call("nn.functional.one_hot", labels, seconds=0.3e-3, size_bytes=40_000_000))
    cut = choose(flow.graph, FAST)
    assert not cut
    assert cut.stayed == {0: "its result would add 38.1 MiB to a batch: 8.01 ms to send against 282 us saved"}


def test_a_shrinking_prefix_moves():
    flow = Dataflow(step_s=50e-3)
    images = flow.leaf(38_000_000)
    scaled = flow.call("div", images, seconds=8e-3, size_bytes=152_000_000)
    flow.model(small := flow.call("interpolate", scaled, seconds=5e-3, size_bytes=10_000_000))
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0, 1}
    assert cut.boundary == (small,)
    assert cut.boundary_bytes == 10_000_000
    assert cut.saved_s == pytest.approx(13e-3 - 2 * 3e-6 - 12e-6 - 2e-3)
    assert cut.worker_s == pytest.approx(13e-3)
    assert cut.stayed == {}


def test_a_maximal_cut_is_not_chosen_where_bytes_dominate():
    flow = Dataflow()
    small = flow.call("log", flow.leaf(), seconds=2e-3, size_bytes=80_000)
    wide = flow.call("one_hot", small, seconds=2e-3, size_bytes=80_000_000)
    flow.model(wide)
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0}
    assert cut.boundary == (small,)
    assert value_of(flow.graph, {0, 1}, FAST) < 0 < value_of(flow.graph, {0}, FAST)


def test_what_expands_moves_when_it_shrinks_again():
    flow = Dataflow()
    wide = flow.call("one_hot", flow.leaf(), seconds=1e-3, size_bytes=80_000_000)
    flow.model(flow.call("sum", wide, seconds=1e-3, size_bytes=8000))
    assert choose(flow.graph, FAST).moved == {0, 1}


def test_a_node_after_one_that_stays_names_it():
    flow = Dataflow()
    wide = flow.call("one_hot", flow.leaf(), seconds=1e-3, size_bytes=80_000_000)
    flow.model(flow.call("sum", wide, seconds=1e-3, size_bytes=8000), wide)
    cut = choose(flow.graph, FAST)
    assert not cut
    assert "76.3 MiB" in cut.stayed[0]
    assert cut.stayed[1] == "depends on a node that stays: one_hot"


def test_a_tensor_is_paid_once_however_many_use_it():
    flow = Dataflow()
    value = flow.call("log", flow.leaf(), seconds=2e-3, size_bytes=5_000_000)
    for _ in range(5):
        flow.model(value)
    cut = choose(flow.graph, FAST)
    assert cut.saved_s == pytest.approx(2e-3 - 3e-6 - 12e-6 - 1e-3)


def test_the_base_of_a_view_is_sent_and_the_view_made_on_both_sides():
    flow = Dataflow()
    base = flow.call("log", flow.leaf(), seconds=5e-3, size_bytes=1_000_000)
    column = flow.call("select", base, seconds=4e-6, size_bytes=1000, view=True)
    row = flow.call("unsqueeze", column, seconds=4e-6, size_bytes=1000, view=True)
    dear = flow.call("sort", row, seconds=5e-3, size_bytes=1000)
    flow.model(row, dear)
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0, 1, 2, 3}
    assert cut.boundary == (base, dear)
    # The views save nothing: the training process makes them itself.
    assert cut.saved_s == pytest.approx(10e-3 - 2 * 3e-6 - 2 * 12e-6 - 0.2002e-3)


def test_a_view_that_nobody_needs_is_saved_with_its_base():
    flow = Dataflow()
    base = flow.call("log", flow.leaf(), seconds=5e-3, size_bytes=1_000_000)
    pieces = flow.call("split", base, seconds=50e-6, size_bytes=[10, 10], view=True)
    flow.model(total := flow.call("add", pieces, pieces + 1, seconds=1e-3, size_bytes=10))
    cut = choose(flow.graph, FAST)
    assert cut.boundary == (total,)
    assert cut.saved_s == pytest.approx(6.05e-3 - 3 * 3e-6 - 12e-6, abs=1e-8)


def test_a_view_of_a_leaf_alone_stays():
    flow = Dataflow()
    flow.model(flow.call("select", flow.leaf(), seconds=1e-3, view=True))
    cut = choose(flow.graph, FAST)
    assert not cut
    assert cut.stayed == {0: "is a view of a tensor that the training process has, and costs nothing"}


def test_a_view_of_a_leaf_moves_with_what_needs_it():
    flow = Dataflow()
    column = flow.call("select", flow.leaf(), seconds=2e-6, view=True)
    flow.model(column, flow.call("sort", column, seconds=1e-3))
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0, 1}
    assert cut.boundary == (flow.graph.nodes[1].outputs[0],)


def test_all_arguments_of_a_view_that_is_made_here_are_here():
    flow = Dataflow()
    like = flow.call("log", flow.leaf(), seconds=5e-3)
    flow.model(flow.call("expand_as", flow.leaf(), like, seconds=2e-6, view=True))
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0}
    assert cut.boundary == (like,)


def test_a_kept_value_is_sent_although_no_node_uses_it():
    flow = Dataflow()
    total = flow.call("sum", flow.leaf(), seconds=1e-3, size_bytes=4)
    flow.keep(total)
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0}
    assert cut.boundary == (total,)


def test_the_base_of_a_kept_view_is_sent():
    flow = Dataflow()
    base = flow.call("log", flow.leaf(), seconds=1e-3)
    flow.keep(flow.call("select", base, seconds=2e-6, view=True))
    assert choose(flow.graph, FAST).boundary == (base,)


def test_what_is_kept_may_be_too_large_to_move():
    flow = Dataflow()
    value = flow.call("log", flow.leaf(), seconds=1e-3, size_bytes=100_000_000)
    flow.model(flow.call("sum", value, seconds=1e-3, size_bytes=4))
    assert choose(flow.graph, FAST).moved == {0, 1}
    flow.keep(value)
    assert not choose(flow.graph, FAST)


def test_dead_code_is_saved_and_nothing_is_sent():
    flow = Dataflow()
    flow.call("log", flow.leaf(), seconds=1e-3)
    cut = choose(flow.graph, FAST)
    assert cut.moved == {0}
    assert cut.boundary == ()


def test_a_node_that_costs_less_than_its_verification_stays_unless_others_need_it():
    flow = Dataflow()
    quick = flow.call("neg", flow.leaf(), seconds=1e-6)
    assert choose(flow.graph, FAST).stayed == {0: "costs no more than verifying it (1.00 us)"}
    flow.model(flow.call("sort", quick, seconds=1e-3))
    assert choose(flow.graph, FAST).moved == {0, 1}


def test_a_node_that_saves_no_more_than_a_workers_time_costs_stays():
    flow = Dataflow()
    flow.call("neg", flow.leaf(), seconds=5e-6)
    cut = choose(flow.graph, replace(FAST, worker_s_price=0.5))
    assert cut.stayed == {0: "costs little more than verifying it (5.00 us), less than a data worker's time for it"}


def test_a_tie_stays():
    flow = Dataflow()
    flow.model(flow.call("log", flow.leaf(), seconds=2e-6 + 10e-6, size_bytes=0))
    prices = replace(ANY_SAVING, verify_s=2e-6, tensor_s=10e-6, worker_s_price=0.0)
    cut = choose(flow.graph, prices)
    assert not cut
    assert cut.stayed == {0: "its result must be sent: 10.0 us to send against 10.0 us saved"}


def test_only_the_cpu_moves():
    flow = Dataflow()
    there = flow.call("Tensor.to", flow.leaf(), seconds=5e-3, device="cuda:0")
    flow.call("log", there, seconds=5e-3, device="cuda:0")
    flow.call("nonzero", there, seconds=5e-3)
    cut = choose(flow.graph, FAST)
    assert not cut
    assert cut.stayed == dict.fromkeys(range(3), "runs on cuda:0")


def test_what_makes_no_tensor_stays_and_needs_its_arguments():
    flow = Dataflow()
    value = flow.call("log", flow.leaf(), seconds=1e-3)
    flow.call("Tensor.tolist", value, seconds=1e-3, size_bytes=())
    cut = choose(flow.graph, FAST)
    assert cut.boundary == (value,)
    assert cut.stayed == {1: "makes no tensor: its result is used in the training process at once"}


def test_what_depends_on_an_accelerator_or_on_state_stays():
    flow = Dataflow()
    state = flow.model(flow.leaf())
    first = flow.call("log", state, seconds=1e-3)
    flow.call("exp", first, seconds=1e-3)
    cut = choose(flow.graph, FAST)
    assert cut.stayed == {1: "depends on a node that stays: linear", 2: "depends on a node that stays: log"}


def test_a_saving_of_less_than_two_percent_of_a_step_is_not_worth_it():
    flow = Dataflow(step_s=100e-3)
    flow.model(flow.call("log", flow.leaf(), seconds=1e-3))
    cut = choose(flow.graph, FAST)
    assert not cut
    assert cut.stayed == {0: "is worth moving, but all such nodes save 985 us a step; a cut must save at least 2.00 ms"}
    assert choose(flow.graph, ANY_SAVING).moved == {0}


def test_a_graph_of_nothing():
    cut = choose(Dataflow().graph, FAST)
    assert not cut
    assert cut.stayed == {}


def test_long_chains_are_no_problem():
    flow = Dataflow()
    value = flow.leaf()
    for number in range(1500):
        value = flow.call("op", value, seconds=1e-5, view=number % 2 == 1)
    flow.model(value)
    assert len(choose(flow.graph, FAST).moved) >= 1499


def test_a_value_is_asked_only_of_legal_cuts():
    flow = Dataflow()
    first = flow.call("log", flow.leaf(), seconds=1e-3)
    flow.model(flow.call("exp", first, seconds=1e-3))
    with pytest.raises(ValueError, match="node 1 depends on node 0"):
        value_of(flow.graph, {1}, FAST)
    with pytest.raises(ValueError, match="node 2 cannot: takes a parameter"):
        value_of(flow.graph, {0, 1, 2}, FAST)


def test_every_cut_is_tried_of_small_graphs_only():
    flow = Dataflow()
    leaf = flow.leaf()
    for _ in range(FEW + 1):
        flow.call("op", leaf, seconds=1e-3)
    with pytest.raises(ValueError, match="at most 12 nodes"):
        list(enumerate_cuts(flow.graph))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes_per_s", 0.0),
        ("tensor_s", -1.0),
        ("verify_s", math.nan),
        ("worker_s_price", math.inf),
        ("min_saving_s", -1.0),
        ("min_saving_frac", 2.0),
    ],
)
def test_prices_check_themselves(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        replace(FAST, **{name: value})
