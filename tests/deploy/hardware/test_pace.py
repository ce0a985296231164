"""The pace of units that are as fast as they can be, or nearly: what the closed form says is what is measured."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.hardware.verification import problem_of, random_samples
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.folding import Folding, constant_folding, divisors, works_of
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from tests.deploy.hardware.live import LiveDesign, needs_verilator
from tests.deploy.rtl.nets import NetBuilder, together

pytestmark = [pytest.mark.integration, needs_verilator]
SAMPLES, TOGETHER = 400, 24


def dense(seed: int, prefix: str) -> IntegerGraph:
    """Two dense layers of odd sizes."""
    net = NetBuilder(seed, prefix)
    first, second, third = (int(each) for each in net.random.choice([1, 2, 3, 4, 7, 8, 9, 13, 17], 3))
    return net.graph(net.dense(net.dense(net.input((first,)), second), third))


def line(seed: int, prefix: str) -> IntegerGraph:
    """A convolution over an image of one column, whose rows are one pixel, a pooling, and a dense layer."""
    net = NetBuilder(seed, prefix)
    random = net.random
    length, channels, outputs, kernel = (int(each) for each in random.integers((6, 1, 1, 1), (12, 4, 5, 5)))
    stride = int(random.integers(1, kernel + 1))
    above, below = (int(each) for each in random.integers(0, kernel, 2))
    found = net.conv(
        net.input((length, 1, channels)), outputs, (kernel, 1), stride=(stride, 1), padding=(above, below, 0, 0)
    )  # fmt: skip
    if net.values[found].shape[0] > 2 and seed % 2:
        found = net.max_pool(found, (2, 1), (int(random.integers(1, 3)), 1))
    return net.graph(net.dense(net.flat(found), int(random.integers(1, 5))))


def fast_foldings(graph: IntegerGraph, seed: int) -> dict[str, Folding]:
    """Of few cycles more often than of many."""
    random = np.random.default_rng(seed)
    found: dict[str, Folding] = {}
    for name, work in works_of(graph).items():
        choices = sorted(work.foldings(), key=work.cycles)
        found[name] = choices[int(len(choices) * random.random() ** 2)]
    return found


def check(folder: Path, graph: IntegerGraph, structure: Structure, fastest: int) -> None:
    live = LiveDesign(graph, structure, folder)
    inputs = random_samples(graph, SAMPLES, 1)
    law = live.law(inputs)
    got, seen = live.run(inputs)
    assert not problem_of(seen, live.description, SAMPLES)
    assert all((got[name] == law[name]).all() for name in law)
    measured = [seen.interval(at) for at in range(len(structure.outputs))]
    closed = [structure.cycles_of(end) for end in structure.outputs]
    assert min(closed) == fastest
    assert measured == pytest.approx(closed, rel=0.01)


@pytest.mark.slow("compiles a simulator of two dozen networks")
@pytest.mark.parametrize("updatable", [False, True])
@pytest.mark.parametrize(("made", "fastest"), [(dense, 1), (line, 10)])
def test_as_many_cycles_as_the_closed_form_says(
    tmp_path: Path, made: Callable[[int, str], IntegerGraph], fastest: int, updatable: bool
) -> None:
    graph = together(made(seed, f"net{seed}_") for seed in range(TOGETHER))
    check(tmp_path / "design", graph, lower(graph, fast_foldings(graph, 1), updatable=updatable), fastest)


@pytest.mark.slow("compiles a simulator of eight networks")
def test_so_do_weights_in_the_circuit(tmp_path: Path) -> None:
    graph = together(dense(seed, f"net{seed}_") for seed in range(8))
    foldings, random, constant = fast_foldings(graph, 1), np.random.default_rng(1), list[str]()
    for name, work in works_of(graph).items():
        if random.random() < 0.8:
            foldings[name] = constant_folding(name, work, int(random.choice(divisors(work.outputs))))
            constant.append(name)
    check(tmp_path / "design", graph, lower(graph, foldings, constant=constant), 1)
