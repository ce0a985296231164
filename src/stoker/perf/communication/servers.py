"""Parameter servers and partitioned embeddings, after the paths of the PAI study.

Source: arXiv 1910.05930; media of a path take their times one after another, each at 70 % of its rate, and nothing is
hidden (the paths and the 70 % are recalled: see :mod:`stoker.perf.equations`). No measurement has validated either.
"""

from __future__ import annotations

from stoker.perf.communication.collectives import Group
from stoker.perf.communication.cost import ExchangeCost
from stoker.perf.communication.links import NETWORK_SPREAD, network_of
from stoker.perf.communication.replicas import Exchange, Shard, exposed, pearl
from stoker.perf.equations import Architecture
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.traffic import traffic_bytes
from stoker.perf.strategy import Machines, Strategy

_PCIE_SHARE = 0.7


def served(shard: Shard, features: StepFeatures, machines: Machines, strategy: Strategy, group: Group) -> Exchange:
    """What workers exchange in a step, with servers or with the holders of embeddings.

    Workers push gradients and pull weights once a step; they request rows from the holders in each micro-batch.
    """
    if strategy.data == "pearl":
        return pearl(shard, group, features.weights.embedding_touched_bytes, strategy.accumulation)
    sent = traffic_bytes(features.weights, Architecture.PS_WORKER, machines.gpus)
    sharing = min(machines.gpus, machines.gpus_per_node)
    seconds = sent * sharing / network_of(machines.network).bandwidth + sent / (machines.gpu.pcie * _PCIE_SHARE)
    note = "weights and gradients over the network and PCIe, one after the other, at 70 % of their rates"
    return exposed(ExchangeCost(seconds, seconds / NETWORK_SPREAD, seconds * NETWORK_SPREAD, "specification", note))
