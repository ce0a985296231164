# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# (the only module of the training that uses torch's private names)
"""Torch's private names that acting on a training program needs, each once.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._subclasses import fake_tensor as _fake
from torch.nn import utils
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils import _python_dispatch as _dispatch
from torch.utils import _pytree as _trees

SYMBOLS = (
    # dotted name, purpose, since
    ("torch._C.StorageBase._cdata", "tells one memory from another", "before 2.6"),
    ("torch._C._storage_Use_Count", "whether a thread of a process group holds a buffer", "before 2.6"),
    ("torch._subclasses.fake_tensor.FakeTensor", "a tensor of a trace has no values", "before 2.6"),
    ("torch.Tensor._indices", "indices of a sparse tensor", "before 2.6"),
    ("torch.Tensor._values", "values of a sparse tensor", "before 2.6"),
    ("torch.Tensor._version", "whether a program writes a tensor", "before 2.6"),
    ("torch.Tensor._base", "the memory behind outputs that are views", "before 2.6"),
    ("torch.nn.modules.dropout._DropoutNd", "modules that draw numbers", "before 2.6"),
    ("torch.nn.modules.batchnorm._NormBase", "norms that average over batches", "before 2.6"),
    ("torch.nn.Module._buffers", "put aside while a forward pass is repeated", "before 2.6"),
    (
        "torch.nn.parallel.DistributedDataParallel._check_comm_hook", "refuses a program's hook as torch does",
        "before 2.6",
    ),
    (
        "torch.nn.parallel.DistributedDataParallel._register_builtin_comm_hook",
        "a program's hook of torch's own C++: replaced", "before 2.6",
    ),
    ("torch._C.DisableTorchFunction", "what hooks do is no call of the program", "before 2.6"),
    (
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._pre_backward",
        "a unit's backward pass begins though its outputs were written into", "before 2.6",
    ),
    (
        "torch.distributed.fsdp.FSDPModule._get_fsdp_state", "what FSDP2 knows of a unit", "before 2.6",
    ),
    (
        "torch.utils._python_dispatch._disable_current_modes", "copies to host memory are out of a count's sight",
        "before 2.6",
    ),
    ("torch.utils._python_dispatch._get_current_dispatch_mode", "which mode a program entered last", "before 2.6"),
    ("torch.utils._python_dispatch.TorchDispatchMode", "counts bytes of a program", "before 2.6"),
    ("torch.utils._pytree.tree_flatten", "takes nested values apart", "before 2.6"),
    ("torch.utils._pytree.tree_leaves", "tensors in nested values", "before 2.6"),
    ("torch.utils._pytree.tree_unflatten", "puts nested values together", "before 2.6"),
    (
        "torch.nn.Module._parameters", "where what stood for all weights is taken out", "before 2.6",
    ),
    (
        "torch.Tensor._backward_hooks", "hooks of a program on a gradient", "before 2.6",
    ),
    (
        "torch.Tensor._post_accumulate_grad_hooks", "likewise", "before 2.6",
    ),
    (
        "torch.autograd._engine_run_backward", "begins a backward pass: counted where no optimizer steps", "before 2.6",
    ),
    (
        "torch._C._current_graph_task_id", "whether a backward pass is under way", "before 2.6",
    ),
    (
        "torch.optim.Optimizer._optimizer_step_post_hooks", "what comes first behind a step, before a program's hooks",
        "before 2.6",
    ),
    (
        "torch.amp.GradScaler._unscale_grads_", "a step that is left out is left out by all stages", "before 2.6",
    ),
    (
        "torch._ops.OpOverload._schema", "what an operation of a captured graph changes", "before 2.6",
    ),
    (
        "torch.nn.utils.clip_grad._get_total_norm", "the norm that clipping goes by: of whole gradients", "before 2.6",
    ),
)  # fmt: skip

RUN_BACKWARD = "_engine_run_backward"
TorchDispatchMode = _dispatch.TorchDispatchMode
tree_leaves, tree_flatten, tree_unflatten = _trees.tree_leaves, _trees.tree_flatten, _trees.tree_unflatten
FakeTensor = _fake.FakeTensor
Dropout = nn.modules.dropout._DropoutNd
top_mode: Callable[[], Any] = _dispatch._get_current_dispatch_mode
"""The mode that sees operations first; None without one."""
without_functions: Callable[[], Any] = torch._C.DisableTorchFunction
"""A context in which no mode or subclass sees functions, and operations are seen as always."""
without_modes: Callable[[], Any] = _dispatch._disable_current_modes
"""A context in which no mode sees operations."""
AveragingNorm = nn.modules.batchnorm._NormBase
identity_of: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""A number that identifies a storage as long as it lives."""


def holders_of(tensor: Tensor) -> int:
    """How many objects hold a tensor's memory."""
    return torch._C._storage_Use_Count(identity_of(tensor.untyped_storage()))


def version_of(tensor: Tensor) -> int:
    """How often a tensor's memory was written; -1 where torch does not count that."""
    return -1 if tensor.is_inference() else tensor._version


BUILTIN = "_register_builtin_comm_hook"
"""Name of the method that registers a hook by its kind."""


def check_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Raises what ``register_comm_hook`` raises for a hook of a wrong form."""
    ddp._check_comm_hook(hook)


def kind_of(builtin: Any) -> str:
    """Which of torch's own hooks a program asked for: ``ALLREDUCE`` or ``FP16_COMPRESS``."""
    return str(builtin).rpartition(".")[2]


_TOTAL_NORMS = ("_get_total_norm", "get_total_norm")
"""Its names over time; the second is public."""


def norms() -> list[tuple[Any, str]]:
    """Where torch has the norm of gradients: what ``clip_grad_norm_`` calls, and what programs do.

    Raises:
        RuntimeError: this torch has it elsewhere.
    """
    called = [(clip_grad, name) for name in _TOTAL_NORMS if hasattr(clip_grad, name)]
    if not called:
        raise RuntimeError(
            "`torch.nn.utils.clip_grad` must compute norms by `_get_total_norm` or `get_total_norm`, and this torch's "
            "has neither; stoker doctor lists what is missing"
        )
    return [*called, *((utils, name) for name in _TOTAL_NORMS if hasattr(utils, name))]


buffers_of: Callable[[nn.Module], dict[str, Tensor | None]] = operator.attrgetter("_buffers")
"""Buffers that a module itself holds, by name."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module, ours: Collection[int] = ()) -> bool:
    """Whether a program has registered hooks on a module, which another one in its place would not have.

    Args:
        module: of the program.
        ours: numbers of hooks that are not the program's.
    """
    return any(set(vars(module).get(name) or ()) - set(ours) for name in _HOOKS)


_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def is_hooked(parameter: nn.Parameter, ours: Collection[int] = ()) -> bool:
    """Whether a program has registered hooks on a parameter's gradient; see :func:`has_hooks`."""
    return any(set(getattr(parameter, name, None) or ()) - set(ours) for name in _TENSOR_HOOKS)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled, in place or as a wrapper of another one."""
    return vars(module).get("_compiled_call_impl") is not None or "_orig_mod" in dict(module.named_children())


def first_after_step(optimizer: Optimizer, hook: Callable[..., None]) -> Any:
    """Calls a hook behind an optimizer's steps, before all others that it has; returns its handle."""
    handle = optimizer.register_step_post_hook(hook)
    hooks: OrderedDict[int, Any] = cast("Any", optimizer)._optimizer_step_post_hooks
    hooks.move_to_end(next(reversed(hooks)), last=False)
    return handle


HookNumbers = tuple[frozenset[int], frozenset[int]]
"""Numbers of hooks before and behind forward passes."""


def hooks_of(module: nn.Module) -> HookNumbers:
    """The hooks that a module has at its forward passes."""
    return frozenset(vars(module)["_forward_pre_hooks"]), frozenset(vars(module)["_forward_hooks"])


def new_hooks(module: nn.Module, before: HookNumbers) -> HookNumbers:
    """Those that have come since."""
    now = hooks_of(module)
    return now[0] - before[0], now[1] - before[1]


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_hooks(module: nn.Module, numbers: HookNumbers, before: Wrap, behind: Wrap) -> None:
    """Puts what functions make of hooks before and behind forward passes in their places."""
    tables: tuple[dict[int, Any], ...] = vars(module)["_forward_pre_hooks"], vars(module)["_forward_hooks"]
    for table, chosen, wrap in zip(tables, numbers, (before, behind), strict=True):
        for number in chosen:
            table[number] = wrap(table[number])


def parameters_of(module: nn.Module) -> Any:
    """The table of a module's own parameters."""
    return vars(module).get("_parameters")


def take_parameter(module: nn.Module, name: str) -> None:
    """Takes a parameter out of a module."""
    del module._parameters[name]


def refuse_copies(module: nn.Module, copy: Callable[..., Any], pickle: Callable[..., Any]) -> None:
    """Lets ``copy.deepcopy`` and pickle call functions that refuse, for this module alone."""
    vars(module).update({"__deepcopy__": copy, "__reduce_ex__": pickle})


def is_in_backward() -> bool:
    """Whether the engine of gradients runs in this thread, as it does when a pass is computed again."""
    return cast("Any", torch._C)._current_graph_task_id() != -1


def original_class(module: nn.Module) -> type:
    """The class of a module before FSDP2 made its own of it."""
    return next(each for each in type(module).__mro__ if not each.__name__.startswith("FSDP"))


def values_of(tensor: Tensor) -> Tensor:
    """Values of a sparse tensor, coalesced or not."""
    return tensor._values()


def indices_of(tensor: Tensor) -> Tensor:
    """Indices of a sparse tensor, coalesced or not."""
    return tensor._indices()


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors with memory that a wrapper has, as one in shares does; none for others."""
    if type(tensor) in (Tensor, nn.Parameter):
        return []
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)  # of wrappers, which torch takes apart by it
    parts = [] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    return [each for each in parts if isinstance(each, Tensor)]


def begin_at_bases(module: nn.Module, given: Any, outputs: Any) -> None:
    """Has FSDP2 begin a unit's backward pass when the memory behind one of its outputs gets a gradient as well.

    A write to a view takes its place in the graph, and with it the hook that FSDP2 has there. Memory from before the
    pass is left out: its gradient comes when the unit's backward pass is over.
    """
    before = {id(each if each._base is None else each._base) for each in _tensors(given)}
    for base in {id(each._base): each._base for each in _tensors(outputs)}.values():
        if base is not None and base.requires_grad and not base.is_leaf and id(base) not in before:
            base.register_hook(cast("Any", module)._get_fsdp_state()._pre_backward)


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def arguments_of(node: fx.Node) -> list[tuple[Any, Any]]:
    """The arguments of an operation as its schema names them, and what each is in a graph; empty without a schema."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return []
    return [
        (argument, node.args[place] if place < len(node.args) else node.kwargs.get(argument.name))
        for place, argument in enumerate(schema.arguments)
    ]


UNSCALE = "_unscale_grads_"
"""Name of the method of a GradScaler that looks for gradients that are not finite."""
