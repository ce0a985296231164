# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""What one rank cannot share, no rank does: a refusal that all ranks hear of before anything is changed."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from stoker.train.ring.groups import group_of
from stoker.train.ring.meeting import GATHERED_BYTES
from stoker.train.ring.torch_private import ignored_names
from stoker.train.ring.transport import GroupAssembly
from stoker.train.sharding.gathering import is_dense


def refuse_together(trouble: str, group: dist.ProcessGroup | None) -> None:
    """Goes on if no rank has trouble. Collective.

    Args:
        trouble: why this rank can't; empty if it can.
        group: of the ranks; None for all.

    Raises:
        ValueError: a rank can't; on all ranks.
    """
    told = GroupAssembly(group_of(group)).gather(trouble.encode()[:GATHERED_BYTES])
    if trouble:
        raise ValueError(trouble)
    for rank, each in enumerate(told):
        if each:
            raise ValueError(f"{each.decode(errors='replace')} (on rank {rank})")


def weights_of(module: nn.Module) -> dict[nn.Parameter, str]:
    """The weights that DDP exchanges gradients of, and their names."""
    ignored = ignored_names(module)
    return {
        parameter: name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def check_states(module: nn.Module) -> None:
    """Raises ``ValueError`` for weights whose optimizer states can't be shared."""
    names = weights_of(module)
    for parameter, name in names.items():
        if not is_dense(parameter):
            raise ValueError(
                f"`{name}` must fill its memory for its state to be shared, got strides {tuple(parameter.stride())} "
                f"for sizes {tuple(parameter.shape)}; make it contiguous before DistributedDataParallel"
            )
    devices = {str(parameter.device) for parameter in names}
    if len(devices) > 1:
        raise ValueError(
            f"`weights` must be on one device for their states to be shared, got {', '.join(sorted(devices))}"
        )
