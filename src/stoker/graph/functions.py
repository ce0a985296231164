# (torch's functions are untyped)
"""Torch's functions: their names, by which another process finds them, and their side effects.

A call is judged by its function's name, as torch's conventions go: a trailing underscore writes, ``out=`` and
``inplace=True`` write. Other effects are found while recording (generator states, version counters) and by comparing
the first results of data workers bit by bit.
"""

from __future__ import annotations

import enum
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from stoker.graph.torch_private import schema_of

Function = Callable[..., Any]

_METADATA = frozenset(
    {
        "shape", "size", "dim", "ndim", "ndimension", "dtype", "device", "numel", "nelement", "stride", "layout",
        "__len__", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mps",
        "is_mkldnn", "is_xpu", "is_ipu", "is_maia", "is_vulkan", "is_mtia", "is_xla", "is_complex", "is_floating_point",
        "is_signed", "is_conj", "is_neg", "is_inference", "is_contiguous", "element_size", "itemsize", "nbytes",
        "storage_offset", "requires_grad", "is_leaf", "grad_fn", "_version", "get_device", "names", "has_names",
        "is_tensor", "is_same_size", "dense_dim", "sparse_dim", "_backward_hooks", "_is_view", "_base", "grad",
        "is_shared", "is_pinned", "output_nr", "__hash__", "_is_zerotensor", "is_distributed", "retains_grad",
        "result_type", "can_cast",
    }
)  # fmt: skip
"""Queries of a tensor that do not read its elements."""
_ESCAPES = frozenset(
    {
        "numpy", "data", "untyped_storage", "storage", "_typed_storage", "data_ptr", "__array__", "__dlpack__",
        "__cuda_array_interface__", "to_dlpack", "_to_dlpack", "as_subclass", "_make_subclass", "register_hook",
        "retain_grad", "__reduce_ex__", "apply_", "map_", "pin_memory", "module_load", "backward",
    }
)  # fmt: skip
"""Calls after which the tensor's memory may be read or written unseen, or that act on the tensor itself."""
_UNINITIALISED = ("empty", "new_empty", "_empty")
"""Results of functions with these prefixes are uninitialised memory."""
_DUNDER_WRITES = frozenset(
    {
        "__setitem__", "__delitem__", "__set__", "__setstate__", "__iadd__", "__isub__", "__imul__", "__imatmul__",
        "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__", "__ipow__", "__ilshift__", "__irshift__", "__iand__",
        "__ixor__", "__ior__",
    }
)  # fmt: skip
_DRAWS = frozenset({"poisson", "binomial", "multinomial", "bernoulli"})
_STATISTICS = frozenset({"batch_norm", "native_batch_norm", "_native_batch_norm_legit", "instance_norm"})


_RANDOM = _DRAWS | {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout", "rrelu",
    "gumbel_softmax",
}  # fmt: skip
"""Functions that draw from torch's generator."""


_GRAIN = 32768
"""Elements from which on torch divides a call among threads (``at::internal::GRAIN_SIZE``)."""
_PICKS = frozenset(
    {
        "amax", "amin", "max", "min", "aminmax", "median", "nanmedian", "quantile", "nanquantile", "kthvalue", "mode",
        "__getitem__", "select", "index_select", "narrow", "gather", "take",
    }
)  # fmt: skip
"""Functions that leave one element of many as it was; others add up the threads' parts."""
_EDGES = frozenset(
    {
        "sigmoid", "silu", "mish", "softplus", "celu", "elu", "selu", "logsigmoid", "logit", "sinh", "cosh", "asinh",
        "acosh", "atanh", "arcsinh", "arccosh", "arctanh", "exp2", "pow", "__pow__", "__rpow__", "float_power", "atan2",
        "arctan2", "logaddexp", "logaddexp2", "ldexp", "hypot", "xlogy", "igamma", "igammac", "gelu", "softshrink",
        "expit", "gammainc", "gammaincc", "rsqrt", "digamma", "psi", "i0e",
    }
)  # fmt: skip
"""Functions that round otherwise in the last few elements of a thread's part, which miss the vector unit."""
_COMPLEX_EDGES = frozenset(
    {
        "mul", "multiply", "__mul__", "__rmul__", "div", "divide", "true_divide", "__truediv__", "__rdiv__",
        "__rtruediv__", "reciprocal", "square", "pow", "__pow__", "angle", "sgn", "addcmul", "addcdiv", "lerp",
        "cumulative_trapezoid",
    }
)  # fmt: skip
"""Functions that do so with complex numbers."""
_EXACT_POWERS = (2, 3, 0.5, -1)


class Effect(enum.IntEnum):
    """The side effects of a call."""

    NONE = 0
    METADATA = 1
    """Only asks about shapes, types and the like."""
    WRITES = 2
    """Changes an argument."""
    ESCAPES = 3
    """Lets the memory of an argument be changed unseen."""
    UNINITIALISED = 4


def is_marked(function: Function) -> bool:
    """Whether it is one of the program's own, marked by ``@stoker.stateless``."""
    return getattr(function, "__stoker_stateless__", False) is True


def takes_leaves(function: Function) -> bool:
    """Whether it may take leaves that are no tensors: a marked function, or torch's that copies them."""
    return function is torch.tensor or is_marked(function)


def simple_name(function: Function) -> str:
    """The last part of a function's name; for a property of tensors its name, or ``__set__``."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return _property_name(function) or name
    if type(function).__name__ == "OpOverload":  # torch.ops.aten.mul_.Tensor
        return name.partition(".")[0]
    return name or str(function)


@functools.lru_cache(maxsize=4096)
def effect(function: Function) -> Effect:
    """The side effects of a function by its name; :func:`writes_by_keyword` checks keywords."""
    if is_marked(function):
        return Effect.NONE
    name = simple_name(function)
    if name in _METADATA:
        return Effect.METADATA
    if name in _ESCAPES:
        return Effect.ESCAPES
    if name in _DUNDER_WRITES:
        return Effect.WRITES
    if (name.endswith("_") and not name.endswith("__")) or _is_mutable(function):
        return Effect.WRITES
    if name.startswith(_UNINITIALISED) or name == "new":
        return Effect.UNINITIALISED
    return Effect.NONE


def _is_mutable(function: Function) -> bool:
    """Whether an operator says of itself that it writes."""
    return getattr(schema_of(function), "is_mutable", False) is True


@functools.lru_cache(maxsize=4096)
def may_draw(function: Function) -> bool:
    """Whether calls draw random numbers or none, as their arguments' elements say: recorded ones prove nothing."""
    return simple_name(function) in _DRAWS


@functools.lru_cache(maxsize=4096)
def keeps_statistics(function: Function) -> bool:
    """Whether calls may write running statistics, which torch's counters of writes do not show."""
    return simple_name(function) in _STATISTICS


@functools.lru_cache(maxsize=4096)
def is_random(function: Function) -> bool:
    """Whether calls draw from torch's generator, and from nothing else that is not an argument."""
    return simple_name(function) in _RANDOM


def rounds_by_threads(
    function: Function, args: tuple[Any, ...], tensors: list[torch.Tensor], results: list[torch.Tensor]
) -> bool:
    """Whether a call may round differently with other threads, in so few elements that three batches may miss it.

    The list is from comparing torch's functions on one thread and two; if many elements differ, the first batches show
    it.

    Args:
        function: what is called.
        args: its arguments.
        tensors: those among the arguments.
        results: what it returned.
    """
    if torch.get_num_threads() == 1:
        return False
    exact = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in results)
    if exact or max(tensor.numel() for tensor in (*tensors, *results)) < _GRAIN:
        return False
    name = simple_name(function).removeprefix("special_")
    if all(tensor.numel() == 1 for tensor in results):
        return name not in _PICKS
    if name in _COMPLEX_EDGES and any(tensor.is_complex() for tensor in tensors):
        return True
    if name in ("pow", "__pow__") and len(args) == 2 and isinstance(args[1], int | float):
        return args[1] not in _EXACT_POWERS
    return name in _EDGES


def writes_by_keyword(keywords: dict[str, Any]) -> bool:
    """Whether the keywords of a call have it write."""
    return keywords.get("out") is not None or keywords.get("inplace") is True


@functools.lru_cache(maxsize=4096)
def path_of(function: Function) -> str:
    """Where a function is found by :func:`find`; empty when it is not found there, or is not torch's."""
    for path in _candidates(function):
        if path.startswith("torch.") or is_marked(function):
            try:
                if find(path) == function:
                    return path
            except (ImportError, AttributeError):
                continue
    return ""


def _property_name(accessor: Function) -> str:
    """The name of the property whose ``__get__`` or ``__set__`` this is: one of C's, or one of Python's."""
    owner: Any = accessor.__self__  # pyright: ignore[reportFunctionMemberAccess]
    return getattr(owner, "__name__", "") or getattr(getattr(owner, "fget", None), "__name__", "")


def _candidates(function: Function) -> list[str]:
    name: str = getattr(function, "__name__", "")
    owner = getattr(function, "__objclass__", None)
    if name in ("__get__", "__set__"):
        return [f"torch.Tensor.{_property_name(function)}.{name}"]
    if owner is not None and issubclass(torch.Tensor, owner):
        return [f"torch.Tensor.{name}"]
    if type(function).__name__ in ("OpOverloadPacket", "OpOverload"):
        return [f"torch.ops.{function}"]
    module: str = getattr(function, "__module__", None) or "torch"
    qualified: str = getattr(function, "__qualname__", name)
    return [f"{module}.{qualified}", f"{module}.{name}", f"torch.{name}", f"torch.Tensor.{name}"]


@functools.lru_cache(maxsize=4096)
def find(path: str) -> Function:
    """The function at a path; looked up once, as a failing import costs some 40 us each time (``torch.Tensor``).

    Raises:
        ImportError, AttributeError: there is none.
    """
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module in sys.modules or _imports(module):
            found: Any = sys.modules[module]
            for part in parts[length:]:
                found = getattr(found, part)
            return found
    raise ImportError(f"no module holds {path}")


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def is_plain(tensor: Any) -> TypeGuard[torch.Tensor]:
    """Whether an object is a dense tensor of torch's own class in this machine's memory, whose writes torch counts."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    odd = tensor.is_inference() or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg()
    return not odd


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if it has none (sparse ones, those in transforms)."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
