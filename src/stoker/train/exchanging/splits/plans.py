"""Parts of a plan, and words about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec.structs import replace

from stoker.records.exchange import SPLITS, AgreedExchange, LayerMethod, MeasuredExchange
from stoker.train.exchanging.layout import OF_WEIGHTS
from stoker.train.exchanging.own_rings import BY_RING


class ExchangePlanner(Protocol):
    """Decides, on rank 0, from what all ranks measured."""

    def __call__(self, measured: list[MeasuredExchange]) -> AgreedExchange:
        """The plan."""
        ...


def by_weight(agreed: AgreedExchange, weights: Collection[str]) -> dict[str, LayerMethod]:
    """A plan's methods by the names of weights: some are of one weight, sums of all that a module has.

    Args:
        agreed: the plan.
        weights: names of those that are exchanged.
    """
    found: dict[str, LayerMethod] = {}
    for each in agreed.methods:
        if each.method in OF_WEIGHTS:
            found[each.weight] = each
        else:
            found |= {name: each for name in weights if name.rpartition(".")[0] == each.module}
    return found


def ring_share(ranks: int) -> float:
    """Bytes that a rank sends for an all-reduce of one byte."""
    return 2 * (ranks - 1) / ranks


def gain_words(gain: float) -> str:
    """What a trial found, as a part of a sentence about a step."""
    return f"takes {100 * abs(gain):.0f} % {'less' if gain >= 0 else 'more'} time"


def is_by_ring(agreed: AgreedExchange) -> bool:
    """Whether a plan has sums by sockets."""
    return any(each.method in BY_RING for each in agreed.methods)


def without_ring(agreed: AgreedExchange, note: str) -> AgreedExchange:
    """A plan without its sums by sockets; the note is its own if nothing else is left."""
    rest = [each for each in agreed.methods if each.method not in BY_RING]
    return replace(agreed, methods=rest, note=agreed.note or ("" if rest else note))


def splits_of(agreed: AgreedExchange) -> dict[str, str]:
    """The layers that a plan splits, with their methods."""
    return {each.module: each.method for each in agreed.methods if each.method in SPLITS}


def without_sums(agreed: AgreedExchange) -> AgreedExchange:
    """A plan with its splits alone."""
    return replace(agreed, methods=[each for each in agreed.methods if each.method in SPLITS])


def without_splits(agreed: AgreedExchange) -> AgreedExchange:
    """A plan with what DDP still exchanges."""
    return replace(agreed, methods=[each for each in agreed.methods if each.method not in SPLITS])


def unsplit(measured: MeasuredExchange, reasons: Mapping[str, str]) -> MeasuredExchange:
    """What a rank measured, of which some layers are not to be split, for a reason."""
    layers = [
        replace(each, splits=[], unsplit=reasons[each.module]) if each.module in reasons else each
        for each in measured.layers
    ]
    return replace(measured, layers=layers)


def predicted_of(agreed: AgreedExchange, split: Collection[str]) -> tuple[float, float]:
    """Seconds of a step in which a plan's splits alone are made, and bytes that a rank sends in it.

    Args:
        agreed: the plan. Of one with other methods as well no such time is known, and 0 comes back.
        split: the layers that it splits.
    """
    report = agreed.report
    if report is None:
        return 0.0, 0.0
    sent = sum(
        each.bytes if each.module in split else ring_share(report.ranks) * each.gradient_bytes for each in report.layers
    )
    return report.after.step_s.likely if len(agreed.methods) == len(split) else 0.0, sent
