# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.utils.checkpoint is typed in part)
"""Modules whose forward pass is repeated in the backward pass, so that its activations are not kept in between.

The class of the module object is changed, not its ``forward``: a copy of the object would compute with the original's
weights. The new class is not to be seen in files: the object is pickled, and copied, as one of its own class.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stoker.core.patching import Patches, set_class
from stoker.records.fitting import Keeps
from stoker.train.fitting.remembering import Given, holds_objects
from stoker.train.torch_private import buffers_of, has_hooks

PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
})  # fmt: skip
"""Operations whose results a unit keeps that keeps products: those that take longest for what they leave."""
_COPIED_BY = ("__reduce_ex__", "__reduce__", "__deepcopy__", "__copy__")
_classes: weakref.WeakKeyDictionary[type[nn.Module], dict[Keeps, type[nn.Module]]] = weakref.WeakKeyDictionary()


def why_not(module: nn.Module) -> str:
    """Why a module's forward pass cannot be repeated unseen, as a part of a sentence; empty if it can."""
    if reason := why_not_changed(module):
        return reason
    if any(has_hooks(part) for part in module.modules() if part is not module):
        return "modules inside it have hooks, which would be called twice"
    return ""


def why_not_changed(module: nn.Module) -> str:
    """Why the class of a module cannot be changed unseen, as a part of a sentence; empty if it can."""
    kind = type(module)
    if "forward" in vars(module):
        return "its `forward` is replaced on the object"
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a TorchScript module"
    # Copies of one whose weights are sharded are refused by the object itself.
    own_way = any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _COPIED_BY)
    if own_way and "__deepcopy__" not in vars(module):
        return "it has its own way to be copied"
    return ""


def recompute(module: nn.Module, keeps: Keeps, patches: Patches) -> None:
    """Repeats the forward pass of a module in its backward pass from now on, until the patches are restored.

    Raises:
        ValueError: it cannot be repeated unseen.
        TypeError: python cannot change the object's class.
    """
    if reason := why_not(module):
        raise ValueError(f"`module` must have a forward pass that can be repeated, and {reason}")
    patches.set_class(module, _class_of(type(module), keeps))


def _class_of(original: type[nn.Module], keeps: Keeps) -> type[nn.Module]:
    """A class like the original, whose objects repeat their forward pass."""
    made = _classes.setdefault(original, {})
    if keeps not in made:

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            run: Callable[..., Any] = functools.partial(original.forward, self)
            if not torch.is_grad_enabled():
                return run(*args, **kwargs)

            if holds_objects(args, kwargs):
                # A separate function: what this one holds would live until the backward pass.
                again, args = _remembering(run, args, kwargs)
            else:

                def again(*given: Any) -> Any:  # named arguments may have names of those of `checkpoint`
                    return run(*given, **kwargs)

            return checkpoint(again, *args, use_reentrant=False, context_fn=_contexts(self, keeps))

        made[keeps] = derived(original, forward)
    return made[keeps]


def _remembering(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    """A forward pass that is given objects again as they were before it, and its tensors, which it is called with."""
    given = Given(args, kwargs)
    tensors = tuple(arg if isinstance(arg, Tensor) else None for arg in args)

    def again(*ours: Tensor | None) -> Any:
        with given.handed() as (others, named):
            return run(*(other if one is None else one for one, other in zip(ours, others, strict=True)), **named)

    return again, tensors


def derived(
    original: type[nn.Module], forward: Callable[..., Any], first: type[nn.Module] | None = None
) -> type[nn.Module]:
    """A class that calls another ``forward``, and whose objects are copied and saved as those of the original one.

    They say that they are of the original class: pickle asks them before it writes them as python writes any object,
    which ``torch.load`` reads without trust in functions. Who derives from what they say, as FSDP2 and parametrizations
    do, and gives them the new class, gets one that calls this ``forward`` too; who gives them back the class that they
    said they have, changes nothing.

    Args:
        original: the class.
        forward: calls the original's.
        first: what was derived first, of a class that was given to an object of it.
    """
    plain = _plain.get(original, original)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        function, (_, *given), *rest = object.__reduce_ex__(self, protocol)
        return (function, (plain, *given), *rest)

    def become(self: nn.Module, kind: type[Any]) -> None:
        begun = first or made
        if kind is _plain[begun]:
            kind = begun
        elif issubclass(kind, plain) and kind.forward is plain.forward:
            kind = derived(kind, forward, begun)
        set_class(self, kind)

    names = {
        "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
        "forward": functools.wraps(original.forward)(forward), "__reduce_ex__": reduce,
        "__class__": property(lambda _: plain, become),
    }  # fmt: skip
    make: Any = type(original)
    made: type[nn.Module] = make(original.__name__, (original,), names)
    _plain[made] = plain
    return made


_plain: weakref.WeakKeyDictionary[type[nn.Module], type[nn.Module]] = weakref.WeakKeyDictionary()
"""The program's class by that which is derived from it."""

Contexts = tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]


def _contexts(module: nn.Module, keeps: Keeps) -> Callable[[], Contexts]:
    """What surrounds the forward pass, and its repetition."""

    def contexts() -> Contexts:
        restoring = spared(module)
        if keeps == "nothing":
            return contextlib.nullcontext(), restoring
        caching, cached = create_selective_checkpoint_contexts(_policy)
        return caching, _both(restoring, cached)  # copies are none of the operations that are cached

    return contexts


def _policy(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.name().partition("::")[2].partition(".")[0]
    return CheckpointPolicy.MUST_SAVE if name in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


@contextlib.contextmanager
def _both(first: Any, second: Any) -> Generator[None]:
    with first, second:
        yield


@contextlib.contextmanager
def spared(module: nn.Module) -> Generator[None]:
    """Runs the block on copies of the module's buffers: a forward pass that updates averages has done so already."""
    copies: dict[int, Tensor] = {}
    with Patches("buffers of a repeated forward pass") as patches:
        for part in module.modules():
            table = buffers_of(part)
            for name, buffer in list(table.items()):
                if buffer is not None:
                    made = copies.get(id(buffer))
                    if made is None:
                        with torch.no_grad():
                            made = copies[id(buffer)] = buffer.detach().clone()
                    patches.set_item(table, name, made, f"buffers of a {type(part).__qualname__}")
        yield
