"""Networks made at random, several in a simulator: equal to the law at the closed form's pace, whatever came before."""

from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.hardware.verification import problem_of, random_samples
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.timing import latencies
from stoker.deploy.tools.simulation import Stalls
from tests.deploy.hardware.live import LiveDesign, needs_verilator
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, together, tower

pytestmark = [pytest.mark.integration, needs_verilator]
SAMPLES = 24
TOGETHER = 8


@pytest.mark.slow("compiles a simulator of eight networks")
@pytest.mark.parametrize(
    ("first", "fifos"), [(0, "full"), (8, "full"), (16, "full"), (24, "full"), (0, "least"), (8, "least")]
)
def test_all_outputs_are_the_laws(tmp_path: Path, first: int, fifos: str) -> None:
    graph = together(any_net(seed, f"net{seed}_") for seed in range(first, first + TOGETHER))
    structure = lower(graph, random_foldings(graph, first), fifos="full" if fifos == "full" else "least")
    live = LiveDesign(graph, structure, tmp_path / "design")
    inputs = random_samples(graph, SAMPLES, first)
    law = live.law(inputs)
    for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.3, after=0.3), Stalls(seed=3, after=0.7)):
        got, seen = live.run(inputs, stalls)
        assert not problem_of(seen, live.description, SAMPLES)
        assert {name: int((got[name] != law[name]).sum()) for name in law} == dict.fromkeys(law, 0)
        if stalls == Stalls(seed=1) and fifos == "full":
            measured = [seen.interval(at) for at in range(len(structure.outputs))]
            closed = [structure.cycles_of(end) for end in structure.outputs]
            assert measured == pytest.approx(closed, rel=0.01)
            first_done = [seen.latency(at) for at in range(len(structure.outputs))]
            assert latencies(structure) == pytest.approx(first_done, rel=0.03, abs=4)  # of joins


@pytest.mark.slow("compiles a simulator")
def test_rows_of_tables_sums_of_them_and_numbers_side_by_side(tmp_path: Path) -> None:
    graph = tower(4)
    structure = lower(graph, random_foldings(graph, 4))
    live = LiveDesign(graph, structure, tmp_path / "design")
    inputs = random_samples(graph, SAMPLES, 4)
    (result,) = live.law(inputs)
    for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.3, after=0.3)):
        got, seen = live.run(inputs, stalls)
        assert not problem_of(seen, live.description, SAMPLES)
        assert (got[result] == live.law(inputs)[result]).all()
        assert seen.interval() == pytest.approx(structure.cycles, rel=0.01 if not stalls.before else 0.1)


@pytest.mark.slow("compiles a simulator")
def test_an_output_does_not_depend_on_the_samples_before(tmp_path: Path) -> None:
    graph = together(any_net(seed, f"net{seed}_") for seed in (0, 2, 11))
    live = LiveDesign(graph, lower(graph, random_foldings(graph, 5)), tmp_path / "design")
    inputs = random_samples(graph, SAMPLES, 5)
    once, _ = live.run(inputs)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(SAMPLES)
        again, _ = live.run({name: array[order] for name, array in inputs.items()}, Stalls(seed=seed, before=0.2))
        for name, array in once.items():
            assert (again[name] == array[order]).all()


@pytest.mark.slow("compiles a simulator, and sends all numbers through small units")
def test_small_units_over_all_numbers(tmp_path: Path) -> None:
    """Each pair of numbers of 5 and 6 bits through an addition, a rescaling, a table and sums of products."""
    nets: list[NetBuilder] = []
    outputs: list[str] = []
    for at in range(6):
        net = NetBuilder(at, f"unit{at}_")
        pair = net.input((2,), 6, signed=bool(at % 2))
        match at // 2:
            case 0:
                # Sums with all weights of 3 bits among their rows, extreme ones first.
                result = net.dense(pair, 12, 4, weight_bits=3, signed=bool(at % 2))
            case 1:
                result = net.add(net.rescale(pair, 5), net.table(pair, 5), 4, signed=not at % 2)
            case _:
                result = net.rescale(net.add(pair, net.rescale(pair, 8), 7), 3)
        nets.append(net)
        outputs.append(result)
    graph = together(net.graph(result) for net, result in zip(nets, outputs, strict=True))
    live = LiveDesign(graph, lower(graph, random_foldings(graph, 2)), tmp_path / "design")
    every = np.stack(np.meshgrid(np.arange(64), np.arange(64)), axis=-1).reshape(-1, 2).astype(np.int32)
    inputs = {port.value: every + graph.value(port).low for port in graph.inputs}
    law = live.law(inputs)
    got, seen = live.run(inputs)
    assert not problem_of(seen, live.description, len(every))
    for name in outputs:
        assert (got[name] == law[name]).all()
        assert len(np.unique(law[name])) > 2
