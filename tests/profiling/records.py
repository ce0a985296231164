"""Profiles to judge, made of parts."""

from __future__ import annotations

from typing import Any

from stoker.records.parts import PARTS
from stoker.records.profile import LoaderFacts, RankRecord, SampledStep, StepTimes, Usage


def sampled(number: int, **seconds: float) -> SampledStep:
    return SampledStep(
        number=number,
        period_s=sum(seconds.values()),
        seconds={label: seconds.get(label, 0.0) for label in PARTS},
        ranges=100_000,
    )


def record(
    *, rank: int = 0, world_size: int = 1, number: int = 20, slower: float = 0.0, **seconds: float
) -> RankRecord:
    """A rank whose steps take these seconds by label; sampled ones take ``slower`` more of the host's time."""
    period_s = sum(seconds.values())
    wait_s, optimizer_s = seconds.get("input", 0.0), seconds.get("optimizer", 0.0)
    steps = [
        StepTimes(
            number=k, period_s=period_s, wait_s=wait_s, wait_cpu_s=wait_s / 2, optimizer_s=optimizer_s,
            after_s=seconds.get("other", 0.0), batches=1, sampled=False,
        )
        for k in range(number)
    ]  # fmt: skip
    longer = {**seconds, "host": seconds.get("host", 0.0) + slower}
    fields: dict[str, Any] = {"usage": Usage(process_s=period_s), "loader": LoaderFacts(batch_size=8, dataset="Rows")}
    return RankRecord(
        rank=rank, world_size=world_size, complete=True, steps=steps, cores=8.0, optimizers=1,
        samples=[sampled(k, **longer) for k in range(3)], **fields,
    )  # fmt: skip
