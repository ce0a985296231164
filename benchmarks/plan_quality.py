"""Plans against exhaustive search under the same model, and against what was measured of MPT.

Arithmetic on predictions and published rows: the figures are the same on every machine.

Of MPT the table has one configuration for nearly every model, GPU, number of GPUs and sequence length, so that no group
holds the same work on the same machines more than once. Three questions are put instead, each to a calibration that has
not seen the model's size; the best is that with the least measured time:

- *machines*: of one model and sequence length, which GPU, how many, micro-batch and checkpointing train a token for the
  least GPU-seconds;
- *tokens*: of one model on the same GPUs, which length, micro-batch and checkpointing train a token fastest;
- *arithmetic*: of the same groups, which of them spends the least time on a FLOP (longer sequences do more of them a
  token, so that the shortest does not win by itself).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.calibration.fitting import Array
from stoker.perf.features.records import StepFeatures
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.choosing import PlanLimits, front
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import Offer, read_prices
from stoker.perf.planning.pricing import PricedPlan, TrainingJob, predicted, refused
from stoker.perf.planning.searching import priced, search
from stoker.perf.planning.space import Candidate, Space, candidates
from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads import mpt

BAR = Bar(
    "plan_quality",
    "no plan beats the front under the same model; the truly best MPT configuration in the top 3, regret <= 5 %",
    headline=("beaten", "front_missed", "moved_by_prices", "machines_top3", "tokens_top3", "machines_regret"),
)
PRICES = Path(__file__).parents[1] / "examples" / "plan" / "prices.toml"
_MOST = 2000
"""Candidates of a space that is priced whole."""


def measure(options: Options) -> Report:
    """Both questions."""
    report = Report()
    _fronts(report, options)
    _mpt(report)
    return report


# Fronts.


def _fronts(report: Report, options: Options) -> None:
    offers = read_prices(PRICES).offers
    spaces = [space for each in offers[:: options.pick(1, 4, 10)] for space in _spaces(each)]
    spaces += _pairs(offers, options.pick(6, 2, 1))
    programs = {name: Batches(*traces) for name, traces in _programs(options).items()}
    beaten = missed = moved = total = looked_at = 0
    largest = 0
    for batches in programs.values():
        for space in spaces:
            memory = PlannedMemory()
            job = TrainingJob(
                samples=10**7, batches=batches, predict=predicted(), fits=memory.fits, recomputes=memory.recomputes,
                refuses=refused(),
            )  # fmt: skip
            everything = list(candidates(space))
            if not 0 < len(everything) <= _MOST:
                continue
            largest, total = max(largest, len(everything)), total + len(everything)
            known = priced(everything, job).plans
            found = search(space, job).plans
            looked_at += len(found)
            best = front(found)
            beaten += sum(_beats(one, other) for one in known for other in best)
            missed += len(_figures(known) - _figures(found))
            moved += _choices(best) != _choices(front(search(_dearer(space, 3.7), job).plans))
    report.note(
        f"{len(spaces)} spaces x {len(programs)} programs, {total:,} candidates, at most {largest:,} in one; the "
        f"search priced {looked_at:,} of them"
    )
    report.at_most("beaten", "plans that beat one on the front, over all exhaustive searches", [beaten], 0, 0)
    report.at_most("front_missed", "plans of the exhaustive front that the search has not found", [missed], 0, 0)
    report.at_most("moved_by_prices", "fronts that change when all prices are multiplied", [moved], 0, 0)


def _spaces(offer: Offer) -> list[Space]:
    return [
        Space(offers=(offer,), batch=batch, max_gpus=most, grows=grows, embeddings=True)
        for batch, most, grows in ((32, 32, False), (512, 64, False), (96, 24, False), (8, 64, True))
    ]


def _pairs(offers: Sequence[Offer], count: int) -> list[Space]:
    return [
        Space(offers=(offers[place], offers[-1 - place]), batch=256, max_gpus=16, embeddings=True)
        for place in range(count)
    ]


def _dearer(space: Space, times: float) -> Space:
    offers = tuple(dataclasses.replace(offer, per_hour=offer.per_hour * times) for offer in space.offers)
    return dataclasses.replace(space, offers=offers)


def _beats(one: PricedPlan, other: PricedPlan) -> bool:
    """As fast and as cheap, and better in one."""
    pairs = ((one.hours.likely, other.hours.likely), (one.cost.likely, other.cost.likely))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _figures(plans: Sequence[PricedPlan]) -> set[tuple[float, float]]:
    return {(plan.hours.likely, plan.cost.likely) for plan in front(plans, PlanLimits())}


def _choices(plans: Sequence[PricedPlan]) -> list[tuple[object, ...]]:
    found: list[Candidate] = [plan.candidate for plan in plans]
    return [(c.offer.name, c.gpus, c.strategy, c.micro_batch) for c in found]


def _programs(options: Options) -> dict[str, list[StepFeatures]]:
    """A language model and a recommender, small enough to be traced in a second or two."""
    # Imported here: all else works where torch is not.
    import torch
    from torch import nn

    from benchmarks.programs.traced_models import Decoder
    from stoker.perf import characterise

    def language(batch_size: int) -> StepFeatures:
        with torch.device("meta"):
            model = Decoder(6, 1024, 16, 16, 2816).to(torch.bfloat16)
            tokens = torch.zeros(batch_size, 512, dtype=torch.long)
        return characterise(model, tokens, optimizer=torch.optim.AdamW, name="decoder")

    def recommender(batch_size: int) -> StepFeatures:
        with torch.device("meta"):
            model = nn.Sequential(
                nn.EmbeddingBag(5_000_000, 64, mode="sum"), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)
            )
            ids = torch.zeros(batch_size, 20, dtype=torch.long)
        return characterise(model, ids, optimizer=torch.optim.Adagrad, name="recommender")

    makers = {"decoder": language, "recommender": recommender}
    chosen = list(makers)[: options.pick(2, 2, 1)]
    return {name: [makers[name](size) for size in (8, 16)] for name in chosen}


# MPT.


def _mpt(report: Report) -> None:
    study, rows = mpt.study()
    predicted_s = study.left_out([row.model for row in rows])
    tokens = np.array([row.gpus * row.batch_per_gpu * row.accumulation * row.seq_len for row in rows])
    gpus = np.array([row.gpus for row in rows], dtype=float)
    flops = tokens * np.array([_flops_per_token(row) for row in rows])
    work = {
        "machines": (gpus / tokens, [(row.model, row.seq_len) for row in rows]),
        "tokens": (1 / tokens, [(row.model, row.gpu, row.gpus) for row in rows]),
        "arithmetic": (1 / flops, [(row.model, row.gpu, row.gpus) for row in rows]),
    }
    table: list[list[str]] = []
    for name, (unit, groups) in work.items():
        verdicts = _verdicts(study.measured * unit, predicted_s * unit, groups)
        # Of three or fewer any order has the best among the first three.
        large = [verdict for verdict in verdicts if verdict.size > 3]
        top3 = float(np.mean([verdict.place < 3 for verdict in large]))
        first = float(np.mean([verdict.place == 0 for verdict in verdicts]))
        regret = [verdict.regret for verdict in verdicts]
        mean = float(np.mean(regret))
        table.append(
            [name, str(len(verdicts)), str(len(large)), number(top3, 2), number(first, 2), number(mean, 3),
             number(max(regret), 3)]
        )  # fmt: skip
        report.at_least(f"{name}_top3", f"{name}: the best in the top 3, groups of four and more", [top3], 0.8, 2)
        report.at_most(f"{name}_regret", f"{name}: regret of the first choice, mean over groups", [mean], 0.05, 3)
    report.table(["MPT, by", "groups", "of 4 and more", "best in top 3", "best first", "mean regret", "worst"], table)


def _flops_per_token(row: Published) -> float:
    """Of the model, without recomputation: 6 a parameter, 12 x layers x width x length for the squares of attention."""
    shape = mpt.SHAPES[row.model]
    return 6.0 * shape.parameters(row.seq_len) + 12.0 * shape.layers * shape.width * row.seq_len


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """A group: how many, where the truly best was put, and what the first choice takes beyond it."""

    size: int
    place: int
    regret: float


def _verdicts(measured: Array, expected: Array, groups: Sequence[Hashable]) -> list[_Verdict]:
    found: list[_Verdict] = []
    for name in dict.fromkeys(groups):
        own = np.array([place for place, group in enumerate(groups) if group == name])
        if len(own) < 2:
            continue
        order = own[np.argsort(expected[own], kind="stable")]
        best = own[np.argmin(measured[own])]
        place = int(np.flatnonzero(order == best)[0])
        found.append(_Verdict(len(own), place, float(measured[order[0]] / measured[best] - 1)))
    return found


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
