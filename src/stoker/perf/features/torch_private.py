# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false, reportPrivateUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the only module of the features that uses torch's private names)
"""Torch's private names by which programs are traced for their features, each once.

``SYMBOLS`` is plain data: a test reads it if a torch lacks one of them and this module can't be imported. It lacks what
torch sets on objects by name: the attributes of a compiled function, and of a module in sharded data parallelism.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor as _fake
from torch.nn.modules import module as _modules
from torch.utils import _python_dispatch as _dispatch
from torch.utils import _pytree as _trees
from torch.utils.data import dataloader as _loading

SYMBOLS = (
    # dotted name, purpose, since; what methods set on objects is listed under their class
    ("torch._C.StorageBase._cdata", "tells one memory from another", "before 2.6"),
    ("torch._C._storage_Use_Count", "whether a gradient's memory is one tensor's alone", "before 2.6"),
    ("torch._C._VariableFunctions._pack_padded_sequence", "packs sequences: redirected", "before 2.6"),
    ("torch._C._VariableFunctions._pad_packed_sequence", "its inverse: redirected", "before 2.6"),
    ("torch._C._VariableFunctions._scaled_dot_product_attention_math", "what attention computes", "before 2.6"),
    ("torch._C._VariableFunctions.gru_cell", "a step of a GRU: redirected", "before 2.6"),
    ("torch._C._VariableFunctions.lstm_cell", "a step of an LSTM: redirected", "before 2.6"),
    ("torch._C._autograd._get_sequence_nr", "tells which call a backward node belongs to", "before 2.6"),
    ("torch._C._current_autograd_node", "the backward node that runs", "before 2.6"),
    ("torch._C._nn.scaled_dot_product_attention", "attention under its second name: redirected", "before 2.6"),
    ("torch._dynamo.eval_frame.OptimizedModule._orig_mod", "what a compiled module was made of", "before 2.6"),
    ("torch._ops.OpOverload._schema", "what torch says of an operation", "before 2.6"),
    ("torch._subclasses.fake_tensor.DataDependentOutputException", "a call needs values", "before 2.6"),
    ("torch._subclasses.fake_tensor.DynamicOutputShapeException", "a shape depends on values", "before 2.6"),
    ("torch._subclasses.fake_tensor.FakeTensor", "a tensor without values", "before 2.6"),
    ("torch._subclasses.fake_tensor.FakeTensorMode", "computes shapes alone", "before 2.6"),
    ("torch._subclasses.fake_tensor.UnsupportedOperatorException", "there is no way to compute a shape", "before 2.6"),
    ("torch._subclasses.fake_tensor.in_kernel_invocation_manager", "calls a kernel for shapes", "before 2.6"),
    ("torch.Tensor._indices", "indices of a sparse tensor", "before 2.6"),
    ("torch.Tensor._nnz", "elements that a sparse tensor has", "before 2.6"),
    ("torch.Tensor._values", "values of a sparse tensor", "before 2.6"),
    ("torch.autograd._engine_run_backward", "begins a backward pass: replaced", "before 2.6"),
    ("torch._C._functions.AccumulateGrad._sequence_nr", "tells which call a backward node belongs to", "before 2.6"),
    ("torch.nn.Module._apply", "moves a module: replaced", "before 2.6"),
    ("torch.nn.Module._buffers", "read where a module is moved", "before 2.6"),
    ("torch.nn.Module._compiled_call_impl", "whether a module was compiled in place", "before 2.6"),
    ("torch.nn.Module._modules", "modules inside of a module", "before 2.6"),
    ("torch.nn.Module._parameters", "read where a module is moved", "before 2.6"),
    (
        "torch.nn.modules.module._global_forward_hooks_with_kwargs",
        "a hook that is gone leaves its number",
        "before 2.6",
    ),
    ("torch.nn.modules.batchnorm._BatchNorm.forward", "stands in for a norm over all ranks", "before 2.6"),
    ("torch.nn.parallel.DistributedDataParallel._set_static_graph", "does nothing where traced", "before 2.6"),
    ("torch.testing._internal.distributed.fake_pg.FakeStore", "a process group that meets nobody", "before 2.6"),
    ("torch.utils._python_dispatch.TorchDispatchMode", "sees every operation", "before 2.6"),
    ("torch.utils._python_dispatch._disable_current_modes", "computes for real inside of a trace", "before 2.6"),
    ("torch.utils._pytree.tree_leaves", "tensors in nested values", "before 2.6"),
    ("torch.utils._pytree.tree_map_only", "replaces tensors in nested values", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter", "loads a batch: replaced", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", "draws its samples: replaced", "before 2.6"),
)

FakeTensor, FakeTensorMode = _fake.FakeTensor, _fake.FakeTensorMode
DataDependentOutputException = _fake.DataDependentOutputException
DynamicOutputShapeException = _fake.DynamicOutputShapeException
UnsupportedOperatorException = _fake.UnsupportedOperatorException
in_kernel_invocation_manager = _fake.in_kernel_invocation_manager
TorchDispatchMode = _dispatch.TorchDispatchMode
without_modes: Callable[[], Any] = _dispatch._disable_current_modes
"""A context in which no mode sees operations."""
tree_leaves, tree_map_only = _trees.tree_leaves, _trees.tree_map_only
BaseIterator = _loading._BaseDataLoaderIter
BatchNorm = nn.modules.batchnorm._BatchNorm

FUNCTIONS: Any = torch._C._VariableFunctions
"""Torch's functions, as those written in Python call them."""
NEURAL: Any = torch._C._nn
"""The same for those of ``torch.nn.functional``."""
attention_math: Callable[..., Any] = FUNCTIONS._scaled_dot_product_attention_math
pack_padded: Callable[..., Any] = FUNCTIONS._pack_padded_sequence
pad_packed: Callable[..., Any] = FUNCTIONS._pad_packed_sequence
next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The sequence number that autograd gives the next call."""
running_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node whose backward runs in this thread; None outside of a backward pass."""
sequence_of: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
"""The sequence number that autograd gave the call of a node."""
schema_of: Callable[[Any], Any] = operator.attrgetter("_schema")
"""Torch's schema of an operation: arguments, results, writes."""
identity_of: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""A number that identifies a storage as long as it lives."""
children_of: Callable[[nn.Module], dict[str, nn.Module | None]] = operator.attrgetter("_modules")
"""Modules inside of a module, by name."""

APPLY, RUN_BACKWARD, STATIC_GRAPH = "_apply", "_engine_run_backward", "_set_static_graph"
NEXT_INDEX = "_next_index"
"""Replaced names."""
INNER_OF_FSDP = "_fsdp_wrapped_module"
"""Where sharded data parallelism keeps its module; ours does while programs are traced."""


def import_compiler() -> None:
    """Imports what the first mode of fake tensors would, in one or two seconds."""
    importlib.import_module("torch._dynamo")


def storage_uses(storage: torch.UntypedStorage) -> int:
    """References to a storage, that of its Python object among them."""
    count: Callable[[int], int] = torch._C._storage_Use_Count
    return count(storage._cdata)


def fake_group() -> Any:
    """The module of a process group without peers; slow to import."""
    return importlib.import_module("torch.testing._internal.distributed.fake_pg")


def run_backward() -> Any:
    """The function that currently starts a backward pass."""
    return torch.autograd._engine_run_backward


def apply_to(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Applies a function to all tensors of a module."""
    module._apply(function)


def values_of(tensor: Tensor) -> Tensor:
    """Values of a sparse tensor, coalesced or not."""
    return tensor._values()


def indices_of(tensor: Tensor) -> Tensor:
    """Indices of a sparse tensor, coalesced or not."""
    return tensor._indices()


def num_stored(tensor: Tensor) -> int:
    """Elements that a sparse tensor has."""
    return tensor._nnz()


def before_compiling(found: Any) -> Any:
    """What a compiled module or function was made from; None for others."""
    return getattr(found, "_orig_mod", None) or getattr(found, "_torchdynamo_orig_callable", None)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    return module._compiled_call_impl is not None


def undo_compiling_in_place(module: nn.Module) -> None:
    """Undoes compilation in place."""
    module._compiled_call_impl = None


def remove_hook(handle: Any) -> None:
    """Ends a hook of all modules; torch keeps the number of one with named arguments, and `torch.compile` warns."""
    handle.remove()
    _modules._global_forward_hooks_with_kwargs.pop(handle.id, None)
