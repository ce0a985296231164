"""Which job gets which CPUs of a cluster, which waiting job its GPUs, and what sizes a job has: pure."""

from stoker.scale.cluster.allocator import GrantPlan, PlannedGrant, plan
from stoker.scale.cluster.curves import CurveEstimate, RateCurve
from stoker.scale.cluster.division import DivisionConfig
from stoker.scale.cluster.gangs import Gang, GangConfig, GangQueue
from stoker.scale.cluster.ledger import GrantLedger, GrantOrder, JobReport, LedgerConfig, QueueWindow
from stoker.scale.cluster.rooms import Need, Rooms
from stoker.scale.cluster.sizes import SizeChange, SizeConfig, SizeDecision, SizeModel, Sizes, SizeSearch, SizeWindow
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
    "GrantLedger",
    "GrantOrder",
    "GrantPlan",
    "JobReport",
    "LedgerConfig",
    "Need",
    "PlannedGrant",
    "QueueWindow",
    "RateCurve",
    "Rooms",
    "SizeChange",
    "SizeConfig",
    "SizeDecision",
    "SizeModel",
    "SizeSearch",
    "SizeWindow",
    "Sizes",
    "plan",
]
