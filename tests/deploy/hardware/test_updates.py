"""Models that change in mid-stream: in Verilator, each output is wholly one model's, whoever pauses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from stoker.deploy.hardware.updates import judged, planned, verify_updates
from stoker.deploy.hardware.verification import WAYS, law_of, random_samples
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.updating import update_of
from stoker.deploy.tools.simulation import Outcome, SeenUpdate, Stalls, Update, simulate
from stoker.deploy.tools.verilator import lint, simulator
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.nets import NetBuilder, any_net, random_foldings, together, tower

SAMPLES = 24


def every_unit(trained: int) -> IntegerGraph:
    """Two networks side by side with all units that have numbers, and two inputs that are not equally fast."""
    net = NetBuilder(1, "units_", trained)
    source = net.input((5, 6, 4), signed=False)
    first = net.conv(source, 4, (3, 3), 6, padding=(1, 1, 1, 1), weight_bits=4)
    joined = net.add(net.conv(first, 4, (3, 3), padding=(1, 1, 1, 1), groups=4), net.rescale(first, 5))
    pooled = net.max_pool(net.table(joined, 5), (2, 2), (2, 2), (1, 0, 1, 0))
    result = net.dense(net.flat(net.sum_pool(pooled, (2, 2), (1, 1), (1, 0, 0, 1))), 5)
    return together([net.graph(result), tower(4, "tower_", trained)])


def packages(graphs: list[IntegerGraph]) -> list[IntegerPackage]:
    return [IntegerPackage(graph, None, "", f"{at + 1:08x}" * 8) for at, graph in enumerate(graphs)]


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_every_output_is_wholly_one_models(tmp_path: Path) -> None:
    one, other = packages([every_unit(1), every_unit(2)])
    structure = lower(one.graph, random_foldings(one.graph, 2), updatable=True)
    description = write_design(structure, tmp_path, one.digest)
    lint(tmp_path)
    inputs = random_samples(one.graph, SAMPLES, 0)
    found = verify_updates(one, other, tmp_path, inputs)
    assert [(each.differing, each.mixed, each.problem) for each in found.ways] == [(0, 0, "")] * len(WAYS)
    assert {each.updates for each in found.ways} == {4}
    # A word a cycle, and no other: this is the fastest that the stream can be.
    assert found.ways[0].load_cycles <= found.bytes / 4 + 2
    laws = [law_of(each.graph, inputs) for each in (one, other)]
    for name in laws[0]:  # it would be no proof if both models gave the same
        assert (laws[0][name] != laws[1][name]).any(axis=1).mean() > 0.9
    words = update_of(description, other.graph, other.digest)
    for cut in (words[:-1], [*words, 0], words[:1]):
        got, seen = simulate(
            simulator(tmp_path), tmp_path, description, inputs, stalls=Stalls(seed=5),
            updates=[Update(2, cut), Update(9, words)],
        )  # fmt: skip
        assert [each.refused for each in seen.updates] == [True, False]
        first = seen.updates[1].first
        for name in laws[0]:
            assert (got[name] == np.concatenate([laws[0][name][:first], laws[1][name][first:]])).all()


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator of eight networks")
@needs_verilator
@pytest.mark.parametrize("start", [0, 8, 16, 24])
def test_many_networks_change_their_numbers(tmp_path: Path, start: int) -> None:
    one, other = packages(
        [together(any_net(seed, f"net{seed}_", trained) for seed in range(start, start + 8)) for trained in (1, 2)]
    )
    structure = lower(one.graph, random_foldings(one.graph, start), updatable=True)
    write_design(structure, tmp_path, one.digest)
    lint(tmp_path)
    found = verify_updates(one, other, tmp_path, random_samples(one.graph, SAMPLES, start), count=7)
    assert [(each.differing, each.mixed, each.problem) for each in found.ways] == [(0, 0, "")] * len(WAYS)


def test_updates_are_spread_and_alternate() -> None:
    plan = planned(100, [[0], [1]], 4)
    assert [(each.after, each.words) for each in plan] == [(20, [1]), (40, [0]), (60, [1]), (80, [0])]
    assert [each.after for each in planned(2, [[0], [1]], 4)] == [0, 1]


class TestJudging:
    """Of runs that went wrong."""

    LAWS = ({"y": np.zeros((6, 2), np.int32)}, {"y": np.ones((6, 2), np.int32)})
    UPDATE = SeenUpdate(words=3, begun=5, taken=7, done=20, first=4, refused=False)
    SEEN = Outcome(
        digest=7, cycles=100, done=((10,),), stuck=False, full=(), wrong="", samples_in=6, samples_out=6,
        misplaced=False, updates=(UPDATE,),
    )  # fmt: skip

    def judge(self, results: list[list[int]], outcome: Outcome = SEEN):
        return judged(
            "w", self.LAWS, None, {"y": np.array(results, np.int32)}, outcome, updates=1, digest=7,  # type: ignore[arg-type]
        )  # fmt: skip

    def test_a_switch_between_two_samples_is_right(self) -> None:
        assert self.judge([[0, 0]] * 4 + [[1, 1]] * 2).equal

    def test_a_mixed_sample_is_counted(self) -> None:
        found = self.judge([[0, 0]] * 4 + [[0, 1], [1, 1]])
        assert (found.differing, found.mixed, found.equal) == (1, 1, False)

    def test_a_whole_sample_of_the_other_model_is_counted_too(self) -> None:
        found = self.judge([[0, 0]] * 3 + [[1, 1]] * 3)
        assert (found.differing, found.mixed, found.equal) == (2, 0, False)

    def test_samples_that_never_came_are_counted(self) -> None:
        found = self.judge([[0, 0]] * 4)
        assert (found.differing, found.mixed) == (4, 2)

    @pytest.mark.parametrize(
        ("changed", "told"),
        [
            ({"digest": 8}, "must say that its model is 00000007 at the end, and says 00000008"),
            ({"updates": ()}, "of 1 updates the design took 0"),
            ({"updates": (structs.replace(UPDATE, refused=True),)}, "of 1 updates the design took 0"),
        ],
    )
    def test_what_else_may_be_wrong(self, changed: dict[str, object], told: str) -> None:
        outcome = structs.replace(self.SEEN, **changed)
        rows = [[0, 0]] * 4 + [[1, 1]] * 2
        assert told in self.judge(rows, outcome).problem

    def test_switches_go_forward(self) -> None:
        twice = tuple(structs.replace(self.UPDATE, first=first) for first in (4, 4))
        outcome = structs.replace(self.SEEN, updates=twice)
        found = judged("w", self.LAWS, None, {"y": self.LAWS[0]["y"]}, outcome, updates=2, digest=7)  # type: ignore[arg-type]
        assert "must be for later and later samples, and were for 4, 4" in found.problem
