"""What spreading a step over GPUs costs: links, collectives, overlap, and the step on all GPUs."""

from __future__ import annotations

from stoker.perf.communication.collectives import Group
from stoker.perf.communication.cost import ExchangeCost
from stoker.perf.communication.links import Interconnect, fabric_of, network_of
from stoker.perf.communication.step_on_cluster import Spread, refusal, spread
from stoker.perf.communication.times import PassTimes, layers_of

Cost, Fabric, StepTimes = ExchangeCost, Interconnect, PassTimes  # their first documented names

__all__ = [
    "Cost",
    "ExchangeCost",
    "Fabric",
    "Group",
    "Interconnect",
    "PassTimes",
    "Spread",
    "StepTimes",
    "fabric_of",
    "layers_of",
    "network_of",
    "refusal",
    "spread",
]
