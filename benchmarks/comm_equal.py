"""Planned exchanges against plain DDP: equal losses, the same weights on all ranks to the last bit.

Twelve models, and what programs do with them. Every layer that has the form goes by late-multiply or by rows, whether
that pays or not, and without a trial: so each step exercises them.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from random import Random

from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.exchanged_models import Case, drawn, train
from benchmarks.programs.exchanged_models import cases as every
from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.ranks import on_ranks
from stoker.records.exchange import AgreedExchange, LayerMethod, MeasuredExchange
from stoker.train.exchanging.calling import serve
from stoker.train.exchanging.replica import ReplicaExchange
from stoker.train.exchanging.weights import hash_of

BAR = Bar(
    "comm_equal",
    "12 models x what programs do: losses of 30 steps as by plain DDP, weights equal to the bit on all ranks",
    headline=("losses", "autocast", "different"),
)
STEPS = 30


@dataclass(frozen=True)
class Found:
    """What one rank saw of a case."""

    case: Case
    apart: float
    """Largest relative difference of a loss."""
    worse: float
    """Under autocast: its distance from fp32 over that of plain DDP, which is at least 2e-3; 0 elsewhere."""
    weights: int
    gathered: int
    """Steps of layers that went their planned way."""
    doubts: dict[str, int]
    repaired: int


def everything(measured: list[MeasuredExchange]) -> AgreedExchange:
    """All that has the form leaves the all-reduce."""
    methods: list[LayerMethod] = []
    for place, layer in enumerate(measured[0].layers):
        ranks = [each.layers[place] for each in measured]
        if not any(each.why_not for each in ranks):
            methods.append(
                LayerMethod(
                    module=layer.module, weight=layer.weight, method="rows" if layer.table_rows else "late",
                    rows=max(each.rows for each in ranks), factor_type=layer.factor_type,
                )
            )  # fmt: skip
    return AgreedExchange(methods=methods)


def compare(case: Case, rank: int, steps: int = STEPS) -> Found:
    """One rank's part of a case: plain, then served."""

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        return serve(ddp, everything, tries=False)

    plain, _, _ = train(case, rank, steps, lambda ddp: None)
    whole: list[float] = []
    if case.option == "autocast":
        whole, _, _ = train(Case(case.model, "plain"), rank, steps, lambda ddp: None)
    losses, ddp, replica = train(case, rank, steps, served)
    record = replica.record()
    assert record is not None
    replica.close()
    doubts: dict[str, int] = {}
    for each in record.counts:
        for reason, count in each.doubts.items():
            doubts[reason] = doubts.get(reason, 0) + count
    return Found(
        case=case, apart=_apart(plain, losses), gathered=sum(each.steps for each in record.counts), doubts=doubts,
        worse=_apart(whole, losses) / max(_apart(whole, plain), 2e-3) if whole else 0.0,
        weights=hash_of(list(ddp.parameters())), repaired=record.repaired,
    )  # fmt: skip


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(one, other, strict=True))


def compared(cases: list[Case], ranks: int, steps: int = STEPS) -> list[list[Found]]:
    """For each case what each rank found."""
    found = on_ranks(ranks, lambda rank: [compare(case, rank, steps) for case in cases], timeout_s=900)
    return [list(each) for each in zip(*found, strict=True)]


def measure(options: Options) -> Report:
    """Differences of losses and of weights."""
    report = Report()
    cases = options.pick(every(), list(drawn(Random(16), 24)), [Case("mlp", "plain")])
    found = compared(cases, 3)
    rows = [
        [str(each[0].case), f"{max(r.apart for r in each):.1e}", str(each[0].gathered), str(each[0].doubts or "")]
        for each in found
    ]
    report.table(["case", "losses apart", "layers' steps", "by all-reduce"], rows)
    exact = [max(r.apart for r in each) for each in found if each[0].case.option != "autocast"]
    rounded = [max(r.worse for r in each) for each in found if each[0].case.option == "autocast"]
    different = sum(len({r.weights for r in each}) > 1 or any(r.repaired for r in each) for each in found)
    report.at_most("losses", "losses apart, relative, worst case", [max(exact)], 1e-5, 8)
    report.at_most(
        "autocast", "autocast: distance from fp32 / plain DDP's, or 2e-3", [statistics.median(rounded or [0.0])], 1.1
    )
    report.at_most("different", "cases in which ranks' weights differ", [float(different)], 0)
    report.figure("cases", len(cases))
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
