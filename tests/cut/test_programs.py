"""Classic kinds of programs, unmodified, with everything moved that can be: every line as under plain python."""

from __future__ import annotations

import functools
import importlib.util
import math

import pytest

from stoker.records.events import LoaderOpened

from .harness import Both, both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(250),
    pytest.mark.slow("the first test of a process waits for all its programs"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

SCALED = {"float", "div", "sub"}
GROUPS: dict[str, dict[str, set[str]]] = {
    # Programs that share a process, and the calls of each that must have moved.
    "usual things": {
        "mnist": SCALED,
        "imagenet": {"float"},
        "dcgan": {*SCALED, "full"},
        "vae": {"to", "div"},
        "moco": {"float", "div", "flip", "roll", "mul"},
        "wordlm": {"contiguous", "ne", "float", "sum", "div"},
        "recommender": {"mul", "remainder", "bitwise_xor", "log1p", "bucketize", "sub", "div", "clamp"},
        "lengths": {"lt", "long", "cumsum", "mul", "float", "clamp"},
        "branches": {"float", "div", "mean"},
        "habits": {*SCALED, "one_hot", "mean"},
    },
    "odd things": {
        "changes": {*SCALED, "mul", "tensor", "matmul", "full", "flip"},
        "grads": {*SCALED, "lerp", "mean", "std"},
        "inplace": {"float", "div", "mean", "amax", "bincount", "isfinite", "unbind"},
        "kinds": {"fft_rfft", "unbind", "unique", "std_mean", "where", "masked_fill"},
        "loaders": {*SCALED, "flip", "mul", "mean"},
        "endings": SCALED,
        "unusual": SCALED,
        "deaths": SCALED,
        "marked": {"denoise", "div", "sub"},
    },
    "surroundings": {
        "features": {*SCALED, "flip", "add", "mul", "matmul"},
        "compiled": {"flip", "float", "mul", "sub"},
    },
    "frameworks": {
        "lightning_steps": SCALED,
        "trainer_steps": SCALED,
        "accelerate_steps": SCALED,
    },
}
LEAST_COMPLETE_FRAC = {"loaders": 0.7, "endings": 0.8, "changes": 0.7, "grads": 0.8, "inplace": 0.3}
"""Steps that find all calls as recorded; all of them where the program does not do something else now and then."""
REVERTED = {"grads": 1, "inplace": 2}
"""Cuts that may be taken back: transforms set `requires_grad` on what wraps the batch, which counts as a write; an
outside tensor that is another one after some steps, or numbers of the batch as arguments, which differ seldom enough to
be the same while it was recorded, come as other calls later."""
PACKAGES = {"lightning_steps": "lightning", "trainer_steps": "transformers", "accelerate_steps": "accelerate"}
PAIRS = [(group, program) for group, programs in GROUPS.items() for program in programs]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    @functools.cache
    def run(group: str) -> Both:
        there = [name for name in GROUPS[group] if importlib.util.find_spec(PACKAGES.get(name, "torch"))]
        return both("several.py", *there, cwd=tmp_path_factory.mktemp(group.replace(" ", "-")))

    return run


@pytest.mark.parametrize(("group", "program"), PAIRS, ids=[program for _, program in PAIRS])
def test_same_and_moved(group: str, program: str, run) -> None:
    if program in PACKAGES:
        pytest.importorskip(PACKAGES[program])
    found: Both = run(group)
    found.check()
    plain, served = found.plain.section(program), found.served.section(program)
    assert len(plain.splitlines()) > 40, found.plain.err
    assert served == plain
    assert found.moved(program) >= GROUPS[group][program]
    reverted = [cut.reason for cut in found.cuts(program) if cut.outcome == "reverted"]
    assert len(reverted) <= REVERTED.get(program, 0), reverted
    began, complete = found.steps[program]
    assert began >= 10
    assert complete >= math.floor(began * LEAST_COMPLETE_FRAC.get(program, 1.0))


def test_loader_without_workers(run) -> None:
    """Once such a loader has been moved, its steps are cut as well."""
    found: Both = run("odd things")
    opened = {e.loader: e for e in found.ranks[0].events if isinstance(e, LoaderOpened) and "unusual.py" in e.site}
    served = {number for number, loader in opened.items() if loader.tier in ("elastic", "pinned")}
    assert {cut.loader for cut in found.cuts("unusual") if cut.outcome == "moved"} == served
    assert len(opened) == 3
    assert len(served) >= 2


def test_nothing_is_compiled_again(run) -> None:
    lines = [line for line in run("surroundings").served.section("compiled").splitlines() if "unique_graphs" in line]
    assert len(lines) == 4
