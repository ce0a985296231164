"""From one GPU to several: published steps, each predicted from the same configuration on one GPU of the same box.

Arithmetic on published rows: the figures are the same on every machine. Bandwidths of boxes and the share of waiting
are fitted to the other families of models alone. Families whose rows say nothing about links are not among those
judged; they are listed with the reason and with their errors.

MPT's steps on 16 to 128 GPUs are predicted from those on one server (the least count that was published) by the
simulation of FSDP alone: nothing in it is fitted to them. Tensor and pipeline parallelism stand beside vTrain's table,
which is arithmetic too: that is agreement, not accuracy.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.catalogue import gpu
from stoker.perf.communication import PassTimes, spread
from stoker.perf.communication.blocks import paths_of
from stoker.perf.communication.links import fabric_of
from stoker.perf.communication.stragglers import slowest
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import StepFeatures
from stoker.perf.strategy import Machines, Strategy
from stoker.perf.study.communication.fitted_fabrics import exposed_s
from stoker.perf.study.communication.fitting import FabricPrediction, held_out
from stoker.perf.study.communication.scaling import Scaling, peculiarity, scalings
from stoker.perf.study.decoders import decoder
from stoker.perf.study.tables.rows import Published, published
from stoker.perf.study.workloads import gpt
from stoker.perf.study.workloads.mpt import SHAPES, VOCABULARY

BAR = Bar(
    "perf_scaling",
    "steps on 2 to 16 GPUs from the step on one, by models that the links were not fitted to",
    headline=("median", "mean", "covered", "width", "fsdp"),
)
_HEADER = ["", "steps", "median error", "mean", "free exchange: median", "mean", "covered"]


def measure(_: Options) -> Report:
    """Errors by family, GPU and count, beside those of an exchange that costs nothing."""
    report = Report()
    found = held_out(scalings())
    judged = [each for each in found if not peculiarity(each.scaling.family)]
    for key in (lambda row: row.family, lambda row: row.gpu, lambda row: f"{row.gpus} GPUs"):
        report.table(_HEADER, _by(judged, key))
    left_out = [each for each in found if peculiarity(each.scaling.family)]
    rows = _by(left_out, lambda row: row.family)
    report.table([*_HEADER, "why it is not judged"], [[*row, peculiarity(row[0])] for row in rows])
    many = _servers()
    report.table(
        ["FSDP over servers", "steps", "median error", "mean", "more servers free: median", "mean"], _many(many)
    )
    cuts = _cuts()
    header = ["beside vTrain, from the uncut step", "iterations", "median difference"]
    report.table(header, [[name, str(len(own)), number(statistics.median(own), 3)] for name, own in cuts.items()])
    report.table(["on specifications alone", "steps", "median error", "mean", "free: median", "mean"], _unfitted())

    report.at_most("median", "one family left out: median error", [_median(judged)], 0.04, 3)
    report.at_most("mean", "one family left out: mean error", [_mean(judged)], 0.08, 3)
    report.at_least("covered", "steps inside their interval", [_covered(judged)], 0.85)
    report.at_most("covered_most", "the same, at most", [_covered(judged)], 0.95)
    report.at_most("width", "upper / lower end, median", [statistics.median(p.high / p.low for p in judged)], 1.6)
    report.at_most(
        "fsdp", "FSDP over servers: median error", [statistics.median(error for _, error, _ in many)], 0.03, 3
    )
    report.at_most("cuts", "agreement with vTrain: median difference", [statistics.median(cuts["all"])], 0.08, 3)
    return report


def _by(found: Sequence[FabricPrediction], key: Callable[[Scaling], str]) -> list[list[str]]:
    names = sorted({key(each.scaling) for each in found})
    return [_row(name, [each for each in found if key(each.scaling) == name]) for name in names]


def _row(name: str, found: Sequence[FabricPrediction]) -> list[str]:
    free = [_free(each.scaling) for each in found]
    figures = (_median(found), _mean(found), statistics.median(free), statistics.fmean(free), _covered(found))
    return [name, str(len(found)), *(number(figure, 3) for figure in figures)]


def _free(row: Scaling) -> float:
    return abs(row.alone_s / row.step_s - 1)


def _median(found: Sequence[FabricPrediction]) -> float:
    return statistics.median(each.error for each in found)


def _mean(found: Sequence[FabricPrediction]) -> float:
    return statistics.fmean(each.error for each in found)


def _covered(found: Sequence[FabricPrediction]) -> float:
    return statistics.fmean(each.is_covered for each in found)


_BOXES: dict[str, Callable[[Scaling], bool]] = {
    "servers with NVLink": lambda row: row.source == "nvidia-dle" or row.gpu == "H100-SXM",
    "PCIe cards": lambda row: not row.gpu.endswith("-SXM"),
    "virtual machines with A100 and V100, as if they had NVLink": lambda row: (
        row.source == "lambda-v1" and row.gpu in ("A100-80GB-SXM", "V100-16GB-SXM")
    ),
}


def _unfitted() -> list[list[str]]:
    """What a user gets who names the GPU alone."""
    rows: list[list[str]] = []
    for name, belongs in _BOXES.items():
        own = [row for row in scalings() if belongs(row) and not peculiarity(row.family)]
        errors = [abs(_on_specification(row) / row.step_s - 1) for row in own]
        free = [_free(row) for row in own]
        figures = [f(values) for values in (errors, free) for f in (statistics.median, statistics.fmean)]
        rows.append([name, str(len(own)), *(number(figure, 3) for figure in figures)])
    return rows


def _on_specification(row: Scaling) -> float:
    return row.alone_s * (1 + slowest(row.gpus)[0]) + exposed_s(row, fabric_of(gpu(row.gpu), gpus=row.gpus))


_MPT_NETWORK = 1600e9 / 8
"""Bytes/s of each server's links, as llm-foundry says."""


def _servers() -> list[tuple[str, float, float]]:
    """Of MPT's steps at 2,048 tokens on more than one server: size, error, and that if more servers cost nothing."""
    found: list[tuple[str, float, float]] = []
    rows = [row for row in published() if row.family == "mpt" and row.seq_len == 2048]
    for group in {(row.model, row.gpu, row.checkpointing) for row in rows}:
        own = sorted(
            (row for row in rows if (row.model, row.gpu, row.checkpointing) == group), key=lambda row: row.gpus
        )
        sequence_s = _alone_s(own[0])
        unchanged_s = _step_s(own[0]) / (own[0].batch_per_gpu * own[0].accumulation)
        for row in own:
            if row.gpus > own[0].gpus:
                free = unchanged_s * row.batch_per_gpu * row.accumulation
                measured = _step_s(row)
                found.append((row.model, abs(_spread_s(row, sequence_s) / measured - 1), abs(free / measured - 1)))
    return found


_LAUNCHING_S = 2.25e-3
"""Of the host for forward and backward pass of a block: what :mod:`stoker.perf.study.workloads.gpt` believes, 3 ms,
less the quarter that is recomputation."""


def _cuts() -> dict[str, list[float]]:
    """Differences by degree of tensor and pipeline parallelism, from the step of the same shape that is not cut."""
    groups: dict[tuple[object, ...], dict[tuple[int, int], Published]] = defaultdict(dict)
    for row in published():
        if row.source == "vtrain-single":
            plan = gpt.plan_of(row)
            key = plan.layers, plan.width, row.batch_per_gpu, row.gpus
            groups[key][plan.tensor, plan.pipeline] = row
    found: dict[str, list[float]] = defaultdict(list)
    for own in groups.values():
        if (1, 1) not in own:
            continue
        compute_s = _bisected(lambda seconds, row=own[1, 1]: _cut_s(row, seconds) - row.step_s, own[1, 1].step_s)
        for (tensor, pipeline), row in own.items():
            if tensor * pipeline > 1:
                difference = abs(_cut_s(row, compute_s) / row.step_s - 1)
                for name in ("all", f"TP{tensor} PP{pipeline}"):
                    found[name].append(difference)
    return dict(sorted(found.items()))


@functools.cache
def _gpt(layers: int, width: int, batch: int, length: int) -> tuple[StepFeatures, PassTimes]:
    features = decoder(width, layers, gpt.VOCABULARY, batch, length, weight_bytes=2)
    return features, PassTimes.measured(features, 1.0)


def _cut_s(row: Published, compute_s: float) -> float:
    """Seconds of an iteration whose device takes so long for a micro-batch; vTrain knows no waiting."""
    plan = gpt.plan_of(row)
    features, whole = _gpt(plan.layers, plan.width, int(row.batch_per_gpu), row.seq_len)
    alone = replace(whole.scaled(compute_s), host_s=_LAUNCHING_S * plan.layers)
    strategy = Strategy(
        tensor=plan.tensor, pipeline=plan.pipeline, accumulation=row.accumulation,
        recomputed=paths_of(layers_of(features)) if row.checkpointing else (),
    )  # fmt: skip
    step = spread(alone, features, Machines(gpu=gpu(row.gpu), gpus=row.gpus), strategy, precision=row.precision)
    return step.step_s - step.waiting_s


def _bisected(excess: Callable[[float], float], most: float) -> float:
    """Where an ascending function is 0, between 0 and ``most``."""
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return high


def _step_s(row: Published) -> float:
    return row.gpus * row.batch_per_gpu * row.accumulation * row.seq_len / row.throughput


def _spread_s(row: Published, sequence_s: float) -> float:
    """Seconds of a step whose forward and backward passes take so long for each sequence."""
    shape = SHAPES[row.model]
    features = decoder(shape.width, shape.layers, VOCABULARY, int(row.batch_per_gpu), row.seq_len)
    alone = PassTimes.measured(features, sequence_s * row.batch_per_gpu)
    machines = Machines(gpu=gpu(row.gpu), gpus=row.gpus, network=_MPT_NETWORK)
    strategy = Strategy(data="fsdp", accumulation=row.accumulation)
    return spread(alone, features, machines, strategy, precision=row.precision).step_s


def _alone_s(row: Published) -> float:
    """Seconds of a sequence on one GPU with which the measured step comes out, by bisection."""
    return _bisected(lambda seconds: _spread_s(row, seconds) - _step_s(row), _step_s(row))


def _many(found: Sequence[tuple[str, float, float]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in ("all", *(model for model in SHAPES if any(model == each for each, _, _ in found))):
        errors = [error for model, error, _ in found if name in ("all", model)]
        free = [error for model, _, error in found if name in ("all", model)]
        figures = [f(values) for values in (errors, free) for f in (statistics.median, statistics.fmean)]
        rows.append([name, str(len(errors)), *(number(figure, 3) for figure in figures)])
    return rows


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
