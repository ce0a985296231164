# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""The replicated modules of a program: seen when they are made, and given a hook.

Frameworks make their ``DistributedDataParallel`` themselves; all go through its constructor. A program's own hook takes
the place of ours whenever it is registered: torch allows one hook for a module, and the program's is the one it gets.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.core.patching import Patches
from stoker.core.saying import say
from stoker.train import torch_private
from stoker.train.program import reducers


class HookOwner(Protocol):
    """What holds the one hook of a replicated module."""

    def give_way(self, hook: Callable[..., Any], state: Any) -> None:
        """The program's own hook is to be called from now on."""
        ...

    def divide_by_active(self, ddp: DistributedDataParallel) -> None:
        """Ranks that have joined do not count, until all have."""
        ...

    def join_begins(self) -> None:
        """From now on ranks may end before others, and answer the collectives of the module's own exchange alone."""
        ...

    def joined(self, *, is_over: bool) -> None:
        """This rank has ended before others, and answers for a step of theirs; or all have ended."""
        ...

    def close(self) -> None:
        """Takes back changes of the module."""
        ...


Serve = Callable[[DistributedDataParallel], HookOwner | None]
"""Called with each new module; what it returns holds its hook."""
FirstCopy = Callable[[Any, Any, bool], bool]
"""Called with a module that is to be wrapped, its process group or None, and whether its buffers are copied as well;
returns whether all ranks have what the first one has. A collective."""
_SYNC = "init_sync"
"""The constructor's argument for DDP's own copy, asked for by name."""
_COPIED_OTHERWISE = ("device_mesh", "delay_all_reduce_named_params")
"""Arguments that change which tensors are copied."""


class ReplicaWatch:
    """Sees a program's replicated modules from :meth:`install` to :meth:`remove`.

    Args:
        serve: called with each new one that has no hook yet.
        copy: called before, with modules whose parameters DDP would copy from the first rank; without it DDP does.
    """

    def __init__(self, serve: Serve, copy: FirstCopy | None = None) -> None:
        self._serve, self._copy = serve, copy
        self._patches = Patches("the exchange of replicated modules")
        self._owners: weakref.WeakKeyDictionary[DistributedDataParallel, HookOwner] = weakref.WeakKeyDictionary()
        self._hooked: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        """Modules that have got a hook of the program's."""
        self.made = 0
        """Modules that were seen."""

    def install(self) -> None:
        """Begins."""
        kind = DistributedDataParallel
        self._patches.set(kind, "__init__", self._constructor(kind.__init__))
        self._patches.set(kind, "register_comm_hook", self._registering(kind.register_comm_hook))
        self._patches.set(kind, "join_hook", self._joining(kind.join_hook))
        builtin = getattr(kind, torch_private.BUILTIN, None)
        if builtin is not None:
            self._patches.set(kind, torch_private.BUILTIN, self._registering_builtin(builtin))

    def remove(self) -> None:
        """Ends it: modules that are there exchange by all-reduce, new ones are torch's own."""
        self._patches.restore()
        for owner in list(self._owners.values()):
            owner.close()

    def adopt(self, ddp: DistributedDataParallel, owner: HookOwner) -> None:
        """Holds the hook of a module that was made before."""
        self._owners[ddp] = owner

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def construct(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            if reducers.is_remaking():
                original(ddp, *args, **kwargs)
                return
            args, kwargs = self._copied(signature, ddp, args, kwargs)
            original(ddp, *args, **kwargs)
            try:
                self.made += 1
                reducers.note_arguments(ddp, signature.bind(ddp, *args, **kwargs).arguments)
                owner = None if ddp in self._hooked else self._serve(ddp)
                if owner is not None:
                    self._owners[ddp] = owner
            except Exception as error:
                reraise_from_handler(error)
                say(line_of("exchange", error, "gradients are exchanged as torch does it"))

        return construct

    def _copied(
        self, signature: inspect.Signature, ddp: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a constructor, without DDP's own copy where it is done already."""
        if self._copy is None or _SYNC not in signature.parameters:
            return args, kwargs
        try:
            bound = signature.bind(ddp, *args, **kwargs)
        except TypeError:  # torch has its own words
            return args, kwargs
        given = bound.arguments
        if not given.get(_SYNC, True) or any(given.get(name) is not None for name in _COPIED_OTHERWISE):
            return args, kwargs
        # As torch reads them: a newer argument for later copies leaves the first one as it is.
        wanted = given.get("broadcast_buffers")
        buffers = given.get("forward_sync_buffers") is not None or wanted is None or bool(wanted)
        try:
            if not self._copy(given["module"], given.get("process_group"), buffers):
                return args, kwargs
        except Exception as error:
            reraise_from_handler(error)
            say(line_of("exchange", error, "parameters are copied as torch does it"))
            return args, kwargs
        given[_SYNC] = False
        return bound.args[1:], bound.kwargs

    def _registering(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def register(ddp: DistributedDataParallel, state: Any, hook: Callable[..., Any]) -> None:
            owner = self._owners.pop(ddp, None)
            if owner is None:
                original(ddp, state, hook)
                self._hooked.add(ddp)
                return
            try:
                torch_private.check_hook(ddp, hook)
            except Exception:
                self._owners[ddp] = owner
                raise
            self._hooked.add(ddp)
            owner.give_way(hook, state)

        return register

    def _registering_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def register(ddp: DistributedDataParallel, comm_hook_type: Any) -> None:
            owner = self._owners.pop(ddp, None)
            if owner is None:
                original(ddp, comm_hook_type)
                self._hooked.add(ddp)
                return
            halved = torch_private.kind_of(comm_hook_type) == "FP16_COMPRESS"
            hook = default_hooks.fp16_compress_hook if halved else default_hooks.allreduce_hook
            self._hooked.add(ddp)
            owner.give_way(hook, ddp.process_group)

        return register

    def _joining(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def join_hook(ddp: DistributedDataParallel, **kwargs: Any) -> Any:
            owner = self._owners.get(ddp)
            if owner is not None:
                owner.join_begins()
                if not kwargs.get("divide_by_initial_world_size", True):
                    owner.divide_by_active(ddp)
            found = original(ddp, **kwargs)
            if owner is not None:
                found.main_hook = _telling(found.main_hook, owner, is_over=False)
                found.post_hook = _telling(found.post_hook, owner, is_over=True)
            return found

        return join_hook


def _telling(original: Callable[..., None], owner: HookOwner, *, is_over: bool) -> Callable[..., None]:
    def hook(*args: Any, **kwargs: Any) -> None:
        owner.joined(is_over=is_over)
        original(*args, **kwargs)

    return hook
