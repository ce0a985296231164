"""Which job gets which CPUs of a cluster, and which waiting job its GPUs: pure, time is an argument."""

from stoker.scale.cluster.allocator import GrantPlan, PlannedGrant, plan
from stoker.scale.cluster.curves import CurveEstimate, RateCurve
from stoker.scale.cluster.division import DivisionConfig
from stoker.scale.cluster.gangs import Gang, GangConfig, GangQueue
from stoker.scale.cluster.rooms import Need, Rooms
from stoker.scale.cluster.state import ClusterJob, ClusterNode, ClusterState, CpuGrant

__all__ = [
    "ClusterJob",
    "ClusterNode",
    "ClusterState",
    "CpuGrant",
    "CurveEstimate",
    "DivisionConfig",
    "Gang",
    "GangConfig",
    "GangQueue",
    "GrantPlan",
    "Need",
    "PlannedGrant",
    "RateCurve",
    "Rooms",
    "plan",
]
