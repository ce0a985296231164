# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the only module of the arena that uses torch's private names)
"""Torch's private names that the arena needs, each once.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext
from torch.fx import GraphModule

SYMBOLS = (
    # dotted name, purpose, since
    ("torch._dynamo.backends.common.aot_autograd", "the graphs of forward and backward pass", "before 2.6"),
    ("torch._dynamo.backends.debugging.boxed_nop", "a graph as aot_eager runs it", "before 2.6"),
    ("torch._functorch.partitioners.min_cut_rematerialization_partition", "its cut into two passes", "before 2.6"),
    ("torch._C._storage_Use_Count", "whether something besides the arena holds its memory", "before 2.6"),
    (
        "torch._C._autograd._get_current_graph_task_keep_graph", "whether saved activations are needed again",
        "before 2.6",
    ),
    ("torch._dynamo.eval_frame.OptimizedModule._orig_mod", "whether a module is compiled", "before 2.6"),
    ("torch._C._len_torch_dispatch_stack", "whether a mode sees or replaces calls", "before 2.6"),
    ("torch._C._dispatch_has_kernel_for_dispatch_key", "whether an out variant is a kernel", "before 2.6"),
    ("torch.UntypedStorage._cdata", "what the use count is asked by", "before 2.6"),
    ("torch._ops.OpOverload", "operators of a graph", "before 2.6"),
    ("torch._ops.OpOverload._schema", "arguments and aliases of an operator", "before 2.6"),
    ("torch._ops.OpOverload._overloadpacket", "the variants of an operator", "before 2.6"),
    ("torch._ops.OpOverload._op", "an operator without a frame of Python", "before 2.6"),
    (
        "torch._guards.CompileContext.current_compile_id", "which code is compiled: its forms run in turn",
        "before 2.6",
    ),
)  # fmt: skip

Operator: TypeAlias = "torch._ops.OpOverload[..., Any]"
Partition = Callable[..., tuple[GraphModule, GraphModule]]
Compiled = Callable[[list[Any]], Sequence[Any]]
"""A graph that takes its arguments as a list, which it empties."""


def compiled(
    module: GraphModule,
    inputs: Sequence[Any],
    forward: Callable[[GraphModule, Sequence[Any]], Compiled],
    backward: Callable[[GraphModule, Sequence[Any]], Compiled],
    inference: Callable[[GraphModule, Sequence[Any]], Compiled],
    partition: Partition,
) -> Callable[..., Any]:
    """The function that calls compiled graphs of a traced module, which is treated as `aot_eager` does."""
    return aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference, partition_fn=partition,
        keep_inference_input_mutations=True,
    )(module, inputs)  # fmt: skip


def partitioned(joint: GraphModule, inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """Forward and backward graph of a joint one, cut as `aot_eager` does."""
    return min_cut_rematerialization_partition(joint, inputs, **options)


def plain(module: GraphModule, inputs: Sequence[Any]) -> Compiled:
    """A graph as `aot_eager` runs it."""
    return cast("Compiled", boxed_nop(module, list(inputs)))


def code_number() -> int | None:
    """Number of the code that is being compiled: the same for another shape, or for evaluation; None: not known."""
    found = CompileContext.current_compile_id()
    return None if found is None else found.frame_id


def is_operator(target: object) -> TypeGuard[Operator]:
    """Whether a graph's call is one of an operator, of which there is a schema."""
    return isinstance(target, torch._ops.OpOverload)


def is_compiled(module: object) -> bool:
    """Whether `torch.compile` made a module."""
    return hasattr(module, "_orig_mod")


def boxed(run: Compiled) -> Compiled:
    """A function that says of itself that it takes its arguments as a list."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def holders_of(storage: torch.UntypedStorage) -> int:
    """How many tensors and storages refer to a piece of memory, the argument included."""
    return torch._C._storage_Use_Count(storage._cdata)


def keeps_graph() -> bool:
    """Whether the running backward pass may run again on what was saved."""
    return bool(cast("Any", torch._C)._autograd._get_current_graph_task_keep_graph())


def is_looked_at() -> bool:
    """Whether a mode sees or replaces the calls of operators."""
    return torch._C._len_torch_dispatch_stack() > 0


def has_kernel(operator: Operator, key: str) -> bool:
    """Whether an operator has a kernel for a dispatch key, such as ``CPU``."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def variants_of(operator: Operator) -> list[Operator]:
    """All overloads of an operator's packet."""
    packet = operator._overloadpacket
    return [getattr(packet, name) for name in packet.overloads()]


def arguments_of(operator: Operator) -> list[Any]:
    """Its arguments by the schema."""
    return list(operator._schema.arguments)


def returns_of(operator: Operator) -> list[Any]:
    """Its results by the schema."""
    return list(operator._schema.returns)


def direct(operator: Operator) -> Callable[..., Any]:
    """The same operator, called without a frame of Python."""
    return operator._op
