"""A design in Verilator: all outputs are the law's, cycles the closed form's, a FIFO one word short is named."""

from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.hardware.verification import problem_of, random_samples
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.tools.simulation import Stalls
from tests.deploy.hardware.live import LiveDesign, needs_verilator
from tests.deploy.rtl.nets import NetBuilder, random_foldings, together
from tests.deploy.rtl.test_flow import with_depth

SAMPLES = 24


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_outputs_cycles_and_a_short_fifo(tmp_path: Path) -> None:
    """One simulator for all of it: most of the time is its compilation."""
    right, short = NetBuilder(1, "right_"), NetBuilder(2, "short_")
    source = right.input((5, 6, 4), signed=False)
    first = right.conv(source, 4, (3, 3), 6, padding=(1, 1, 1, 1), weight_bits=4)
    joined = right.add(right.conv(first, 4, (3, 3), padding=(1, 1, 1, 1), groups=4), first)
    pooled = right.max_pool(right.table(joined, 5), (2, 2), (2, 2))
    result = right.dense(right.flat(pooled), 6)
    entry = short.input((4, 4, 1))
    stuck = short.add(short.conv(entry, 1, padding=(1, 1, 1, 1)), entry)
    parts = right.graph(result), short.graph(stuck)
    graph = together(parts)
    # Two layers with their weights in the circuit: one gives two of its four results in a cycle, one all.
    constant = {first: Folding(2, 4, 9), result: Folding(6, right.values[pooled].elements, 1)}
    foldings = random_foldings(graph, 1) | constant
    structure = lower(graph, foldings, constant=constant)
    name, depth = _skip_of(lower(graph, foldings, fifos="least", constant=constant), "short_")
    live = LiveDesign(graph, with_depth(structure, name, depth - 1), tmp_path / "design")

    inputs = random_samples(graph, SAMPLES, 0)
    law = live.law(inputs)
    assert len(np.unique(law[result])) > 20  # it would be no proof that all are clamped
    for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.4, after=0.4)):
        got, seen = live.run(inputs, stalls)
        assert (got[result] == law[result]).all()
        assert seen.interval() == pytest.approx(structure.cycles_of(structure.outputs[0]), rel=0.01)
        assert seen.stuck
        assert len(got[stuck]) < SAMPLES
        assert f"full: `{name}` of {depth - 1} words" in problem_of(seen, live.description, SAMPLES)


def _skip_of(structure: Structure, prefix: str) -> tuple[str, int]:
    """The FIFO of a network's one branch that holds nothing, and the least words that it must have."""
    return next((name, depth) for name, depth in structure.fifos.items() if prefix in name)
