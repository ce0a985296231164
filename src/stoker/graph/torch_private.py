# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (the one module of the cut that uses names which torch keeps to itself)
"""Torch's private names that the cut needs, each once.

``SYMBOLS`` is plain data: a test reads it where a torch lacks one of them and this module can't be imported. What is
asked at every call of the program is torch's own object under another name, so that it costs the same.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.utils.dlpack
from torch.utils import _device

SYMBOLS = (
    # dotted name, purpose, since
    ("torch._C.DisableTorchFunction", "looks at tensors unseen by modes and subclasses", "before 2.6"),
    ("torch._C.DisableTorchFunctionSubclass", "asks a stand-in itself, seen by modes", "before 2.6"),
    ("torch._C.StorageBase._cdata", "tells one memory from another", "before 2.6"),
    ("torch._C._functorch.peek_interpreter_stack", "whether a transform (vmap, grad) holds", "before 2.6"),
    ("torch._C._is_any_autocast_enabled", "whether autocast changes a call", "before 2.6"),
    ("torch._C._len_torch_dispatch_stack", "whether a mode of the program sees operations", "before 2.6"),
    ("torch._C._len_torch_function_stack", "whether a mode sees calls", "before 2.6"),
    ("torch._C._pop_torch_function_stack", "puts our mode below those of the program", "before 2.6"),
    ("torch._C._push_on_torch_function_stack", "the same", "before 2.6"),
    ("torch._C._to_dlpack", "hands out memory unseen by modes: replaced", "before 2.6"),
    ("torch._dynamo.eval_frame.OptimizedModule.__call__", "compiled modules announce themselves", "before 2.6"),
    ("torch._dynamo.eval_frame._TorchDynamoContext", "so does other compiled code", "before 2.6"),
    ("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack", "computes outside transforms", "before 2.6"),
    ("torch._ops.OpOverload._schema", "whether an operator says of itself that it writes", "before 2.6"),
    ("torch.Tensor._make_wrapper_subclass", "makes a stand-in for a tensor", "before 2.6"),
    ("torch.Tensor._use_count", "whether autograd holds a tensor too", "before 2.6"),
    ("torch.Tensor._version", "whether a tensor was written to", "before 2.6"),
    ("torch.nn.modules.module._global_forward_pre_hooks", "a module call is a safe point", "before 2.6"),
    ("torch.optim.optimizer._global_optimizer_pre_hooks", "so is the step of an optimizer", "before 2.6"),
    ("torch.utils._device.CURRENT_DEVICE", "the program's default device", "before 2.6"),
    ("torch.utils._device.DeviceContext", "the mode that torch insists on finding at the bottom", "before 2.6"),
    ("torch.utils.data._utils.pin_memory.pin_memory", "pins a batch of any shape", "before 2.6"),
)

unseen: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
"""A context in which neither modes nor subclasses see operations on tensors."""
unseen_by_subclasses: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunctionSubclass
"""A context in which modes do, and subclasses do not."""
is_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
pop_function_mode: Callable[[], Any] = torch._C._pop_torch_function_stack
push_function_mode: Callable[[Any], None] = torch._C._push_on_torch_function_stack
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
owners_of: Callable[[torch.Tensor], int] = torch.Tensor._use_count
"""Owners of a tensor in torch: Python is one, autograd's graphs are others."""
identity_of: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""A number by which a storage is known as long as it lives."""
devices = _device
"""The module, whose `CURRENT_DEVICE` is the program's default device at the moment."""
DeviceContext = _device.DeviceContext

_functorch: Any = importlib.import_module("torch._C._functorch")
inside_transform: Callable[[], object] = _functorch.peek_interpreter_stack
"""The innermost transform (vmap, grad) that holds; None where there is none."""

CAPSULE_PLACES = tuple(
    (owner, name) for owner in (torch._C, torch.utils.dlpack, torch) for name in ("_to_dlpack", "to_dlpack")
)
"""Where a program may find ``to_dlpack``."""
COMPILER = "torch._dynamo.eval_frame"
"""The module by which compiled code is entered; slow to import."""


def capsule_maker() -> Any:
    """The current function that makes capsules: torch's ``to_dlpack``, or its replacement."""
    return torch._C._to_dlpack


def without_transforms() -> AbstractContextManager[Any]:
    """A context in which no transform holds."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def pin_memory(part: Any) -> Any:
    """The same in page-locked memory, as torch pins batches."""
    from torch.utils.data._utils.pin_memory import pin_memory as pin

    return pin(part)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, as far as torch counts; tensors of inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def versions_of(tensors: list[torch.Tensor]) -> list[int]:
    """Versions of several tensors, as :func:`version_of` gives one."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # an inference tensor
        return [version_of(tensor) for tensor in tensors]


def schema_of(function: Callable[..., Any]) -> Any:
    """Torch's schema of an operator; None for other functions."""
    return getattr(function, "_schema", None)


def hooks_of_modules() -> dict[int, Any]:
    """Hooks that are called before every module."""
    return torch.nn.modules.module._global_forward_pre_hooks


def hooks_of_optimizers() -> dict[int, Any]:
    """Hooks that are called before every step of an optimizer."""
    return importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks


def context_of_compiled() -> Any:
    """The class by which compiled code is entered; None until torch's compiler is loaded."""
    return getattr(sys.modules.get(COMPILER), "_TorchDynamoContext", None)


def compiled_module() -> Any:
    """The class of compiled modules, once torch's compiler is loaded."""
    return sys.modules[COMPILER].OptimizedModule
