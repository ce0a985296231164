"""What spreading a step over GPUs costs: links, collectives, overlap, and the step on all GPUs."""

from __future__ import annotations

from stoker.perf.communication.collectives import Group
from stoker.perf.communication.cost import ExchangeCost
from stoker.perf.communication.fabric import Fabric, fabric_of
from stoker.perf.communication.step_on_cluster import Spread, refusal, spread
from stoker.perf.communication.times import PassTimes, layers_of

__all__ = ["ExchangeCost", "Fabric", "Group", "PassTimes", "Spread", "fabric_of", "layers_of", "refusal", "spread"]
