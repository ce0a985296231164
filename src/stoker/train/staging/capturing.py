# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The graph of a module's call, captured by ``torch.export``; refused where it is not what the module would compute."""

from __future__ import annotations

import random
import sys
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, fx, nn

from stoker.core.errors import WireError
from stoker.core.patching import Patches
from stoker.train import torch_private

DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
"""By what torch writes of them."""


class TensorForm(msgspec.Struct, frozen=True, array_like=True):
    """What a graph depends on of a tensor that a module is called with.

    Attributes:
        shape: of it.
        dtype: as torch writes it.
        needs: whether it wants a gradient.
    """

    shape: tuple[int, ...]
    dtype: str
    needs: bool = False

    def example(self, device: torch.device) -> Tensor:
        """A tensor of this form."""
        return torch.zeros(self.shape, dtype=DTYPES[self.dtype], device=device, requires_grad=self.needs)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a module is called: a graph is captured for each.

    Attributes:
        tensors: what it is given, in the order of the call.
        rest: numbers all else that the graph depends on, which is to be alike on all ranks: names and constants of the
            call, what trains, autocast.
    """

    tensors: tuple[TensorForm, ...]
    rest: int

    @property
    def number(self) -> int:
        """Tells forms apart."""
        return zlib.crc32(self.packed()) | self.rest << 32

    def packed(self) -> bytes:
        """The tensors' forms as bytes, for other ranks."""
        return msgspec.msgpack.encode(self.tensors)

    def with_tensors(self, data: bytes) -> CallForm:
        """The form of a call of another rank, which differs in its tensors alone.

        Raises:
            WireError: the bytes are no forms.
        """
        try:
            found = msgspec.msgpack.decode(data, type=tuple[TensorForm, ...])
        except (msgspec.MsgspecError, ValueError) as error:
            raise WireError(f"`TensorForm` of {len(data)} bytes is malformed: {error}") from None
        if any(each.dtype not in DTYPES or min(each.shape, default=0) < 0 for each in found):
            raise WireError(f"`TensorForm` of {len(data)} bytes is malformed: no such tensors")
        return CallForm(found, self.rest)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call, taken apart.

    Attributes:
        leaves: tensors and constants.
        spec: puts them together.
        form: of the call.
    """

    leaves: list[Any]
    spec: Any
    form: CallForm

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among them."""
        return [each for each in self.leaves if isinstance(each, Tensor)]

    def examples(self, form: CallForm, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of another rank's form."""
        tensors = iter(form.tensors)
        leaves = [next(tensors).example(device) if isinstance(each, Tensor) else each for each in self.leaves]
        return torch_private.tree_unflatten(leaves, self.spec)


def arguments_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> CallArguments:
    """The arguments of a call of a module, and its form.

    Raises:
        ValueError: one of them is neither a dense tensor nor a number or text.
    """
    leaves, spec = torch_private.tree_flatten((args, dict(kwargs)))
    tensors: list[TensorForm] = []
    words = [str(spec)]
    for each in leaves:
        if isinstance(each, Tensor):
            if each.layout is not torch.strided:
                raise ValueError(
                    f"`{type(module).__name__}` must be called with dense tensors for its layers to be in stages, got "
                    f"{each.layout}"
                )
            tensors.append(TensorForm(tuple(each.shape), str(each.dtype), each.requires_grad))
        elif each is None or isinstance(each, (int, float, bool, str)):
            words.append(repr(each))
        else:
            raise ValueError(
                f"`{type(module).__name__}` must be called with tensors, numbers and text for its layers to be in "
                f"stages, got {type(each).__name__}"
            )
    words.append("".join("ft"[each.training] for each in module.modules()))
    words.append("".join("ft"[each.requires_grad] for each in module.parameters()))
    if torch.is_autocast_enabled(device):
        words.append(str(torch.get_autocast_dtype(device)))
    return CallArguments(leaves, spec, CallForm(tuple(tensors), zlib.crc32("\0".join(words).encode()) >> 1))


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """The operations of one call of a module.

    Attributes:
        module: runs them; weights and buffers have their names in the module.
        spec: puts what the module returns together from its leaves.
    """

    module: fx.GraphModule
    spec: Any


def captured(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedCall:
    """The operations of one call of a module.

    Raises:
        ValueError: the call is not capturable, or a graph would leave out what it does besides.
    """
    name = type(module).__name__
    drawn, numbers = _drawn(), torch.get_rng_state()
    functions: list[str] = []
    written: list[str] = []
    patches = Patches("what a graph would leave out, looked for in a capture")
    try:
        _watch_functions(patches, functions)
        _watch_attributes(patches, module, written)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, strict=False)
            found = CapturedCall(_module_of(program), program.call_spec.out_spec)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"`{name}` must be one graph that torch.export captures for its layers to be in stages, and is not: "
            f"{lines[0][:200]}"
        ) from error
    finally:
        patches.restore()
        torch.set_rng_state(numbers)
    if written:
        raise ValueError(
            f"`{written[0]}` must not be changed by a forward pass for layers to be in stages: a graph has its "
            "operations on tensors alone"
        )
    if _drawn() != drawn:
        raise ValueError(
            f"`{name}` must draw by torch alone for its layers to be in stages: numbers of python's or NumPy's "
            "generators are constants in a graph"
        )
    if functions:
        raise ValueError(
            f"`{functions[0]}` must not be used in a model whose layers are in stages, as functions that state their "
            "gradients and checkpoints do: a graph has the operations of the forward pass alone"
        )
    return found


def _module_of(program: Any) -> fx.GraphModule:
    try:
        return program.module(check_guards=False)
    except TypeError:  # before torch 2.9
        return program.module()


def _watch_functions(patches: Patches, found: list[str]) -> None:
    """Notes autograd functions and what packs saved tensors, as checkpoints do: a capture goes through both."""
    original = torch.autograd.Function.__dict__["apply"]
    plain = original.__func__

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        # Torch has more of them, which a capture knows; checkpoints of the older kind compute without gradients in it.
        if not cls.__module__.startswith("torch.") or cls.__module__ == "torch.utils.checkpoint":
            found.append(cls.__name__)
        return plain(cls, *args, **kwargs)

    patches.set(torch.autograd.Function, "apply", classmethod(apply))
    hooks = torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__

    def entering(self: Any) -> None:
        found.append("saved_tensors_hooks")
        enter(self)

    patches.set(hooks, "__enter__", entering)


def _watch_attributes(patches: Patches, module: nn.Module, found: list[str]) -> None:
    """Notes attributes that a forward pass changes: torch.export takes that back."""
    original = nn.Module.__setattr__
    paths = {id(each): path for path, each in module.named_modules()}

    def assign(self: nn.Module, name: str, value: Any) -> None:
        old = vars(self).get(name)
        if id(self) in paths and not isinstance(value, (Tensor, nn.Module)) and old is not value and old != value:
            found.append(f"{paths[id(self)]}.{name}".lstrip("."))
        original(self, name, value)

    patches.set(nn.Module, "__setattr__", assign)


def _drawn() -> tuple[int, int]:
    """Where python's and NumPy's generators are."""
    numpy = cast("Any", sys.modules.get("numpy"))
    state = numpy.random.get_state() if numpy is not None else ()
    return hash(random.getstate()), hash((state[1].tobytes(), state[2]) if state else ())
