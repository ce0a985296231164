"""An engine in Verilator: models share a netlist, all outputs are the law's, a change of models mixes none."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from stoker.deploy.hardware.engine_updates import ChangedRun, check_change, judged_changes, verify_changes
from stoker.deploy.hardware.engines import write_model
from stoker.deploy.hardware.verification import WAYS, law_of, problem_of
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.engine.compiling import compiled
from stoker.deploy.rtl.engine.files import netlist, read_engine
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.rtl.folders import PROGRAM
from stoker.deploy.tools.engine_simulation import (
    EngineOutcome,
    LoadedModel,
    engine_simulator,
    lint_engine,
    simulate_engine,
)
from stoker.deploy.tools.simulation import Stalls
from stoker.records.deploy.hardware import UpdatedWay
from tests.deploy.graphs import numbers_for
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.engine.nets import attention, classifier, counted
from tests.deploy.rtl.nets import NetBuilder, any_net, residual_digits, tower

SHAPE = EngineShape(lanes=4, data_words=1024, weight_words=1024, table_words=1024, scale_words=256)
MASKED = counted(1, (2, 5, 5), (1, 1, 5))
STALLS = (Stalls(seed=1), Stalls(seed=2, before=0.4, after=0.4))


class LiveModel:
    """A model on an engine, and the law of its outputs."""

    def __init__(self, graph: IntegerGraph, folder: Path, shape: EngineShape = SHAPE, samples: int = 6) -> None:
        self.graph, self.folder, self.samples = graph, folder, samples
        write_model(graph, shape, folder)
        self.description = read_engine(folder)
        self.inputs = numbers_for(graph, samples)
        self.law = law_of(graph, self.inputs)

    def run(
        self, program: Path, stalls: Stalls, update: LoadedModel | None = None
    ) -> tuple[dict[str, NDArray[np.int32]], EngineOutcome]:
        return simulate_engine(program, self.folder, self.graph, self.inputs, stalls=stalls, update=update)

    def check(self, program: Path) -> None:
        """All outputs, the pace without pauses, the protocol and the engine's own counters."""
        for stalls in STALLS:
            got, seen = self.run(program, stalls)
            assert not problem_of(seen, self.description, self.samples)
            assert {name: int((got[name] != wanted).sum()) for name, wanted in self.law.items()} == dict.fromkeys(
                self.law, 0
            )
            if not stalls.before:
                assert seen.interval() == self.description.cycles
                assert seen.load_cycles == self.description.bytes // 4 + 6


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_models_on_one_netlist_and_a_change_in_mid_stream(tmp_path: Path) -> None:
    """One simulator for all of it: most of the time is its compilation."""
    models = [
        LiveModel(graph, tmp_path / str(at))
        for at, graph in enumerate([attention(1), classifier(1), MASKED, tower(2), any_net(3), residual_digits(0)])
    ]
    lint_engine(models[0].folder, limit_s=60)
    program = engine_simulator(models[0].folder)
    for model in models:
        assert engine_simulator(model.folder) == program
        model.check(program)

    old, other = models[-1], LiveModel(residual_digits(1), tmp_path / "other", samples=12)
    old = LiveModel(old.graph, old.folder, samples=12)
    for stalls in STALLS:
        got, seen = old.run(program, stalls, LoadedModel(folder=other.folder, after=4))
        assert not problem_of(seen, old.description, old.samples)
        (name,) = old.law
        own, new = ((got[name] == each.law[name]).all(axis=1) for each in (old, other))
        switched = int(own.argmin())
        assert 4 < switched < old.samples
        assert own[:switched].all()
        assert new[switched:].all()
        assert seen.update_cycles <= 1.1 * other.description.bytes / 4


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator for each number of lanes")
@needs_verilator
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_models_made_at_random_on_engines_of_all_sizes(tmp_path: Path, lanes: int) -> None:
    shape = structs.replace(
        SHAPE, lanes=lanes, data_words=4096, weight_words=4096, table_words=2048, scale_words=1024
    )  # fmt: skip
    graphs = [*(any_net(seed) for seed in range(30)), tower(lanes)]
    graphs += [attention(seed, tokens=seed + 2, heads=seed % 3 + 1, size=seed % 4 + 2) for seed in range(6)]
    graphs += [classifier(seed, seed, 2 * seed + 1) for seed in range(1, 4)]
    graphs += [
        counted(seed, (2, 5, 5), counts, masked=seed % 2 > 0, share_bits=8 + seed)
        for seed, counts in enumerate([(1, 1, 5), (1, 5, 5), (2, 5, 1), (2, 1, 5), (1, 1, 1)])
    ]
    models = [LiveModel(graph, tmp_path / str(at), shape) for at, graph in enumerate(graphs)]
    lint_engine(models[0].folder, limit_s=60)
    program = engine_simulator(models[0].folder, tmp_path / "kept")
    for model in models:
        model.check(program)


def package(graph: IntegerGraph, number: int) -> IntegerPackage:
    return IntegerPackage(graph, None, "", f"{number:08x}" * 8)


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, where no earlier run did")
@needs_verilator
def test_models_of_other_structures_come_and_go(tmp_path: Path) -> None:
    """As `stoker deploy verify --update` has it; a program that mixes versions is seen."""
    one, other = package(residual_digits(0), 1), package(smaller_digits(), 2)
    write_model(one.graph, SHAPE, tmp_path, one.digest)
    inputs = numbers_for(one.graph, 5)
    found = verify_changes(one, other, tmp_path, inputs)
    assert [(each.differing, each.mixed, each.problem) for each in found.ways] == [(0, 0, "")] * len(WAYS)
    assert {each.updates for each in found.ways} == {2}
    sizes = [compiled(each.graph, SHAPE).bytes for each in (other, one)]
    assert [found.bytes, found.bytes_back] == sizes
    assert max(sizes) / 4 <= found.ways[0].load_cycles <= 1.1 * max(sizes) / 4
    assert found.ways[0].until_next_cycles >= found.ways[0].load_cycles
    assert found.equal

    same = verify_changes(one, package(one.graph, 3), tmp_path, inputs, ways=["back to back"])
    assert same.ways[0].problem.startswith("both models give the same outputs for all samples")
    assert not same.equal


def smaller_digits() -> IntegerGraph:
    """Another structure with the ends of `residual_digits`."""
    net = NetBuilder(5)
    return net.graph(net.dense(net.flat(net.input((8, 8, 1), 8, signed=False)), 10))


NEVER = "the other model must answer once it is loaded, and did not"


class ChangedOutputs:
    """A run of eight samples of two numbers, three of them answered before the other model was sent."""

    laws = ({"y": np.zeros((8, 2), np.int32)}, {"y": np.ones((8, 2), np.int32)})

    def judged(self, rows: list[tuple[int, int]], done: int = 8) -> UpdatedWay:
        got = np.array(rows, np.int32)
        outcome = EngineOutcome(
            digest=0, cycles=100, done=(tuple(range(10, 10 * done + 10, 10)),), stuck=False, full=(), wrong="",
            samples_in=8, samples_out=8, misplaced=False, array_cycles=0, load_cycles=0, update_cycles=7,
        )  # fmt: skip
        run = ChangedRun(laws=self.laws, found=[{"y": got}] * 2, outcome=outcome, after=3)
        description = SimpleNamespace(fifos={}, cycles=10)
        return judged_changes("back to back", [run], [description])  # type: ignore[list-item]


def test_a_change_is_judged_by_whole_samples() -> None:
    old, new, half = (0, 0), (1, 1), (0, 1)
    right = ChangedOutputs().judged([old] * 5 + [new] * 3)
    assert (right.differing, right.mixed, right.updates, right.until_next_cycles) == (0, 0, 1, 20)
    assert right.equal
    mixed = ChangedOutputs().judged([old] * 5 + [half] + [new] * 2)
    assert (mixed.differing, mixed.mixed) == (1, 1)
    back = ChangedOutputs().judged([old] * 5 + [new, old, new])
    assert (back.differing, back.mixed) == (2, 0)
    early = ChangedOutputs().judged([old] * 2 + [new] * 6)
    assert early.problem == NEVER
    assert ChangedOutputs().judged([old] * 8).problem == NEVER


def test_a_model_that_cannot_take_the_place_is_refused_before_a_tool_runs(tmp_path: Path) -> None:
    write_model(residual_digits(), SHAPE, tmp_path)
    description = read_engine(tmp_path)
    check_change(residual_digits(), smaller_digits(), description)
    with pytest.raises(ValueError, match=r"as many numbers in its inputs as the one that answers, 64, got \d+"):
        check_change(residual_digits(), tower(0), description)
    net = NetBuilder(5)
    large = net.graph(net.dense(net.dense(net.flat(net.input((8, 8, 1), 8, signed=False)), 600), 10))
    with pytest.raises(ValueError, match="memory of weights must hold"):
        check_change(residual_digits(), large, description)


def test_a_changed_program_is_refused(tmp_path: Path) -> None:
    folder = LiveModel(tower(0), tmp_path).folder
    program = folder / PROGRAM
    program.write_bytes(program.read_bytes()[:-1] + b"\7")
    with pytest.raises(ValueError, match="must hold what was written; write it again with `stoker deploy rtl --struct"):
        read_engine(folder)
    program.unlink()
    with pytest.raises(ValueError, match=r"must hold an engine: .*; write one with `stoker deploy rtl --structure eng"):
        read_engine(folder)


def test_the_netlist_depends_on_the_engines_shape_alone(tmp_path: Path) -> None:
    for at, graph in enumerate([tower(0), any_net(1)]):
        write_model(graph, SHAPE, tmp_path / str(at))
    for name, text in netlist(SHAPE).items():
        assert all((tmp_path / folder / name).read_text() == text for folder in ("0", "1"))
        assert all(len(line) <= 120 for line in text.splitlines())
