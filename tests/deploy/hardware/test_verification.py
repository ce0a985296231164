"""What is said of a design that gives the right numbers and is slower than its closed form."""

from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.deploy.hardware.verification import random_samples, slowness_of, verify
from stoker.deploy.rtl import mapping
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.tools.simulation import Outcome
from stoker.ui.deploy.hardware_text import render_verification
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.nets import NetBuilder


def outcome(*done: tuple[int, ...]) -> Outcome:
    return Outcome(
        digest=0, cycles=done[0][-1], done=done, stuck=False, full=(), wrong="", samples_in=len(done[0]),
        samples_out=len(done[0]), misplaced=False,
    )  # fmt: skip


class Described(NamedTuple):
    cycles: int
    fifos: dict[str, int]
    full_speed: bool


def design(cycles: int, *, full_speed: bool = True) -> Described:
    return Described(cycles, {}, full_speed)


@pytest.mark.parametrize(
    ("cycles", "measured", "samples", "slow"),
    [
        (100, 101, 1000, False),
        (100, 102, 1000, True),
        (100, 99, 1000, False),
        (17, 18, 1000, True),
        (1, 2, 100, True),
        (1, 2, 4, False),  # of two samples it may be chance
        (1, 2, 1, False),
    ],
)
def test_a_pace_above_the_closed_form_is_a_problem(cycles: int, measured: int, samples: int, slow: bool) -> None:
    seen = outcome(tuple(measured * at for at in range(samples)))
    said = slowness_of(seen, design(cycles), samples)
    assert bool(said) == slow
    if slow:
        assert f"{measured}.00 cycles a sample were measured" in said
        assert f"above the {cycles} of the closed form" in said
    assert not slowness_of(seen, design(cycles, full_speed=False), samples)


def test_the_slowest_output_counts() -> None:
    fast, slow = (tuple(by * at for at in range(100)) for by in (10, 11))
    assert "11.00 cycles" in slowness_of(outcome(fast, slow), design(10), 100)


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator")
@needs_verilator
def test_a_design_with_too_few_rows_is_said_to_be_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = NetBuilder(0)
    result = net.dense(net.input((3,)), 2)
    graph = net.graph(result)
    monkeypatch.setattr(mapping, "_ring", lambda *_: 3)
    write_design(mapping.lower(graph, {result: Folding(2, 3)}), tmp_path / "slow")
    found = verify(graph, tmp_path / "slow", random_samples(graph, 200, 0), ways=["back to back"])
    assert not found.equal
    assert not found.ways[0].differing
    shown = " ".join(render_verification(found).split())
    assert "every output is the law's, but the design does NOT do what it must" in shown
    assert "1.67 cycles a sample were measured, 67 % above the 1 of the closed form" in shown
