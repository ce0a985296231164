# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""The exchange of one replicated module, as a program asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from torch.nn.parallel import DistributedDataParallel

from stoker.core.errors import ExchangeError
from stoker.core.saying import say
from stoker.records.exchange import AgreedExchange, LayerMethod, MeasuredExchange
from stoker.train.exchanging.hook import exchange_hook
from stoker.train.exchanging.layout import OF_WEIGHTS
from stoker.train.exchanging.mixed_round import RingReducer
from stoker.train.exchanging.replica import ReplicaExchange
from stoker.train.exchanging.splits.plans import ExchangePlanner
from stoker.train.exchanging.splits.replica_splits import ReplicaSplits
from stoker.train.program.versions import unlike_versions

METHODS = ("all_reduce", "late", "rows", "ring", "islands", "half", "power")
"""What a program may name."""
_PLANNER = ("stoker.run.exchanging.serving", "planner")
"""What decides by prices. It lives in a layer above, where capabilities are joined, and so is found by name."""


def exchange(
    ddp: DistributedDataParallel,
    plan: Mapping[str, str] | None = None,
    *,
    ring: RingReducer | None = None,
) -> ReplicaExchange:
    """Exchanges a module's gradients as it pays best, or as a plan says; exact, and checked in each step.

    The first six exchanges are torch's own. From what they show, rank 0 makes the plan; it is tried against torch's
    exchange and kept where it gains. A plan that the program gives is followed without a trial.

    Args:
        ddp: a module that has no hook for communication, before its first backward pass; on all ranks alike.
        plan: for paths of modules one of ``late``, ``rows``, ``half``, ``power``, ``ring``, ``islands`` or
            ``all_reduce``, which is what others get; None to plan by measurements. ``half`` and ``power`` are inexact.
        ring: sums that ``ring`` and ``islands`` go by; without it ranks connect their sockets.

    Returns:
        The exchange: its ``record()`` has the plan and what came of it, its ``close()`` ends it.

    Raises:
        ExchangeError: the ranks have different versions of stoker; all of them raise it.
        TypeError: ``ddp`` is no ``DistributedDataParallel``.
        ValueError: the plan names a method that there is not.
        RuntimeError: the module has a hook already (torch's words).
    """
    if not isinstance(ddp, DistributedDataParallel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"`ddp` must be a DistributedDataParallel, got {type(ddp).__name__}")
    if plan is not None and (wrong := [method for method in plan.values() if method not in METHODS]):
        raise ValueError(f"`plan` must name methods among {', '.join(METHODS)}, got {wrong[0]!r}")
    if unlike := unlike_versions(cast("Any", ddp).process_group, ddp):
        raise ExchangeError(unlike)
    if plan is None:
        planner = cast("ExchangePlanner", getattr(import_module(_PLANNER[0]), _PLANNER[1])())
        return serve(ddp, planner, ring=ring, probes=True)
    return serve(ddp, GivenPlan(plan), tries=False, ring=ring)


def serve(
    ddp: DistributedDataParallel, planner: ExchangePlanner, *, name: str = "", tries: bool = True,
    ring: RingReducer | None = None, tell: Callable[[str], None] = lambda line: say(f"exchange of {line}"),
    probes: bool = False, splits: bool = False,
) -> ReplicaExchange:  # fmt: skip
    """Gives a module the hook; what it returns is the hook's state."""
    name = name or type(ddp.module).__name__
    replica = ReplicaExchange(ddp, planner, tell, name, tries=tries, ring=ring, probes=probes)
    try:
        ddp.register_comm_hook(replica, exchange_hook)
    except BaseException:
        replica.close()
        raise
    if splits:
        replica.splits = ReplicaSplits(
            ddp, replica, lambda made: made.register_comm_hook(replica, exchange_hook), replica.say
        )  # fmt: skip
    return replica


class GivenPlan:
    """Follows a program's own words, as far as the layers' gradients have the form.

    Args:
        plan: paths of modules and their methods.
    """

    def __init__(self, plan: Mapping[str, str]) -> None:
        self._plan = dict(plan)

    def __call__(self, measured: list[MeasuredExchange]) -> AgreedExchange:
        """The methods, with the rows that the ranks had."""
        methods: list[LayerMethod] = []
        left: list[str] = []
        for place, layer in enumerate(measured[0].layers):
            method = self._plan.get(layer.module, "all_reduce")
            every = [rank.layers[place] for rank in measured if place < len(rank.layers)]
            if method == "all_reduce":
                continue
            if method in OF_WEIGHTS:
                is_table = any(each.table_rows for each in every)
                if any(each.why_not for each in every) or is_table != (method == "rows"):
                    left.append(layer.module)
                    continue
            methods.append(
                LayerMethod(
                    module=layer.module, weight=layer.weight or layer.module, method=method,
                    rows=max(each.rows for each in every), factor_type=layer.factor_type,
                )
            )  # fmt: skip
        unknown = sorted(set(self._plan) - {layer.module for layer in measured[0].layers})
        note = ""
        if left:
            note = f"stay with all-reduce, since their gradients have another form: {', '.join(left)}"
        elif unknown:
            note = f"no layer is called {unknown[0]}"
        return AgreedExchange(methods=methods, note=note)
