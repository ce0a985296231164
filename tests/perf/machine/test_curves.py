"""Probes lie where features look for them, and none has the sizes of a model of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch

from benchmarks.programs.cpu_models import OTHERS, SIX
from stoker.perf.features.records import MATRIX_KINDS, Operation, StepFeatures
from stoker.perf.features.step import characterise
from stoker.perf.machine.curves import placed
from stoker.perf.machine.matrix_probes import matrix_probes
from stoker.perf.machine.memory_probes import memory_probes
from stoker.perf.machine.operands import Operands, Probe, halton

PROBES = [*matrix_probes(), *memory_probes()]
SMALL = 3_000_000.0


def first_of_each_curve() -> Iterator[Probe]:
    seen: set[str] = set()
    for probe in PROBES:
        if probe.work.curve not in seen and probe.footprint < SMALL:
            seen.add(probe.work.curve)
            yield probe


def traced(run: Callable[[], object]) -> tuple[Operation, ...]:
    """Operations of a call whose tensors are real."""

    def step(x: object) -> object:
        return run()

    return characterise(step, (torch.zeros(1),), target="cpu").operations


@pytest.fixture(scope="module")
def operands() -> Operands:
    return Operands(2_000_000)


def phase_of(curve: str) -> str:
    if curve.endswith(".optimizer"):
        return "optimizer"
    backward = "backward" in curve or ".weight" in curve
    return "backward" if backward else "forward"


@pytest.mark.parametrize("probe", [*first_of_each_curve()], ids=lambda probe: probe.work.curve)
def test_a_probe_is_what_features_say_of_the_same_call(probe: Probe, operands: Operands) -> None:
    found = [
        msgspec.structs.replace(operation, phase=phase_of(probe.work.curve))
        for operation in traced(probe.make(operands))
    ]
    works = [placed(operation) for operation in found if operation.kind]
    same = [work for work in works if work.curve == probe.work.curve]
    assert same, [work.curve for work in works]
    assert same[0].dims == pytest.approx(probe.work.dims, rel=0.1)
    assert same[0].bytes == pytest.approx(probe.work.bytes, rel=0.1)
    if probe.work.flops:
        assert same[0].flops == pytest.approx(probe.work.flops, rel=0.02)


@pytest.fixture(scope="module")
def steps() -> dict[str, StepFeatures]:
    models = {name: make() for name, make in {**SIX, **OTHERS}.items()}
    return {
        name: characterise(model.module, model.inputs, optimizer=model.optimizer, target="cpu")
        for name, model in models.items()
    }


def test_no_size_of_a_model_is_measured(steps: dict[str, StepFeatures]) -> None:
    measured = {(probe.work.curve, tuple(round(size) for size in probe.work.dims)) for probe in PROBES}
    met: list[tuple[str, tuple[int, ...]]] = []
    for features in steps.values():
        for operation in features.operations:
            if operation.kind in MATRIX_KINDS or operation.kind in ("norm", "embedding"):
                work = placed(operation)
                met.append((work.curve, tuple(round(size) for size in work.dims)))
    assert len(met) > 100
    assert not measured & set(met)


def test_every_matrix_operation_of_the_models_has_a_curve(steps: dict[str, StepFeatures]) -> None:
    curves = {probe.work.curve for probe in PROBES}
    for features in steps.values():
        assert {placed(op).curve for op in features.operations if op.kind in MATRIX_KINDS} <= curves


def test_sizes_are_spread_over_their_ranges() -> None:
    found = halton(64, (3, 40), (8, 260))
    assert len(set(found)) > 55
    for low, high, values in ((3, 40, [x for x, _ in found]), (8, 260, [y for _, y in found])):
        assert min(values) >= low
        assert max(values) <= high
        middle = (low * high) ** 0.5
        assert 24 <= sum(value < middle for value in values) <= 40
