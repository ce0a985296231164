"""The same proofs of what yosys makes of units: cells of an ECP5, each module by itself; all states, all numbers.

Optimisers, maps of memories and multipliers are others' programs; what came out of them is what is looked at here.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.deploy.rtl.proofs import test_arithmetic as arithmetic
from tests.deploy.rtl.proofs import test_streams as streams
from tests.deploy.rtl.proofs import test_windows as windows
from tests.deploy.rtl.proofs.circuits import WrongError, circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_yosys]

CARRIERS = {
    "a FIFO": (streams.fifo(3), ("fifo",), ()),
    "a FIFO in block memory": (streams.fifo(3), ("fifo",), (streams.DEEP,)),
    "a fork": (streams.forked(2), ("fork_stream",), ()),
    "a join": (streams.joined(2, 1), ("concat_stream",), ()),
    "words put together": (streams.resized(1, 3), ("resize_stream",), ()),
    "words taken apart": (streams.resized(3, 1), ("resize_stream",), ()),
    "places": (streams.pipelined(4, 2, 2), ("fifo", "credits"), ()),
    "a line buffer": (windows.watched(*windows.CASES["one pixel, two folds"]), ("counter", "window"), ()),
}


@pytest.mark.slow("synthesises a unit")
@pytest.mark.parametrize("name", CARRIERS)
def test_units_that_carry_words(tmp_path: Path, name: str) -> None:
    top, units, changes = CARRIERS[name]
    assert circuit_of(tmp_path, top, *units, changes=changes, cells=True).explore().states > 2


@pytest.mark.slow("synthesises a unit")
def test_a_mistake_is_found(tmp_path: Path) -> None:
    wrong = circuit_of(tmp_path, streams.fifo(3), "fifo", changes=[("count != CW'(DEPTH)", "1'b1")], cells=True)
    with pytest.raises(WrongError):
        wrong.explore()


@pytest.mark.slow("synthesises a unit")
@pytest.mark.parametrize(("acc_bits", "factor", "shift"), [(12, None, 5), (12, 40961, 21), (18, 65535, 26)])
def test_requantisers(tmp_path: Path, acc_bits: int, factor: int | None, shift: int) -> None:
    top = arithmetic.requantiser(acc_bits, 8, factor, shift, 3, -128, 127)
    circuit = circuit_of(tmp_path, top, "requantise", files={"factors.hex": f"{factor or 0:04x}\n"}, cells=True)
    every = np.arange(1 << acc_bits)
    found = circuit.run([{"acc": every, "valid": np.array(1)}] + [{"acc": ~every}] * 5, len(every))[5]
    law = arithmetic.law_of(arithmetic.signed(every, acc_bits), factor, shift, 3, -128, 127)
    assert (arithmetic.signed(found["result"], 8) == law).all()
    assert len(np.unique(law)) > 50
