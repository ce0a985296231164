# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Distributed programs in one process: a process group that sends nothing, and transparent wrappers.

Features are those of one GPU with the whole model; the cost of spreading it is computed from them. So the wrappers of
data parallelism only compute in the configured precision.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.perf.features.torch_private import (
    APPLY,
    INNER_OF_FSDP,
    STATIC_GRAPH,
    BatchNorm,
    children_of,
    fake_group,
    tree_map_only,
)

Note = Callable[[str], None]
Change = tuple[Any, str, Any]
_INNER = ("module", INNER_OF_FSDP)


def wrapped(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper of data parallelism; None for other modules."""
    if type(module).__name__ not in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
        return None
    return next((children_of(module)[name] for name in _INNER if name in children_of(module)), None)


def paths(root: nn.Module) -> Generator[tuple[str, nn.Module]]:
    """Each module with the path that it has without wrappers."""
    seen: set[int] = set()

    def walk(module: nn.Module, path: str) -> Generator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield path, module
        inner = wrapped(module)
        for name, child in children_of(module).items():
            if child is not None:
                yield from walk(child, path if child is inner else f"{path}.{name}" if path else name)

    yield from walk(root, "")


@contextlib.contextmanager
def alone(note: Note) -> Generator[None]:
    """Runs the block as rank 0 (or the rank of the environment) of a group whose other members do not exist.

    Args:
        note: called with each assumption, as a sentence.
    """
    if not torch.distributed.is_available():
        yield
        return
    distributed, parallel = torch.distributed, nn.parallel.DistributedDataParallel
    environ = type(os.environ)
    changes: list[Change] = [
        (environ, "__getitem__", _placed(environ.__getitem__)),
        (distributed, "init_process_group", _joined_by(note)),
        (distributed.distributed_c10d, "init_process_group", _joined_by(note)),
        (distributed, "barrier", lambda *_, **__: None),
        (distributed, "init_device_mesh", _mesh_of(distributed.init_device_mesh)),
        (parallel, "__init__", _replica_of("DistributedDataParallel", note)),
        (parallel, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs)),
        (parallel, "train", nn.Module.train),
        (parallel, "register_comm_hook", lambda *_: None),
        (parallel, STATIC_GRAPH, lambda *_: None),
        (parallel, "no_sync", lambda _: contextlib.nullcontext()),
        (parallel, "join", lambda *_, **__: contextlib.nullcontext()),
        (nn.DataParallel, "__init__", _replica_of("DataParallel", note)),
        (nn.DataParallel, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs)),
        (nn.SyncBatchNorm, "forward", BatchNorm.forward),
        *_fsdp(importlib.import_module("torch.distributed.fsdp"), note),
    ]
    try:
        with Patches("a program is traced: other ranks") as patches:
            for owner, name, value in changes:
                patches.set(owner, name, value)
            yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _placed(original: Any) -> Callable[..., str]:
    """``os.environ[name]`` that knows a rank where a program without a launcher would end.

    What only asks, by ``get`` or ``in``, finds what is there: libraries choose by it whether they wrap a model.
    """

    def getitem(self: Any, key: Any) -> str:
        try:
            return original(self, key)
        except KeyError:
            asks = sys._getframe(1).f_globals.get("__name__") in _MAPPINGS  # pyright: ignore[reportPrivateUsage]
            if asks or key not in _PLACE:
                raise
            return _PLACE[key]

    return getitem


_PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
_MAPPINGS = ("collections.abc", "_collections_abc")
"""Modules whose ``get`` and ``in`` read an item."""


def _joined_by(note: Note) -> Callable[..., None]:
    """``init_process_group`` without peers."""
    original: Any = torch.distributed.init_process_group

    @functools.wraps(original)
    def joined(*_: Any, world_size: int = -1, rank: int = -1, **__: Any) -> None:
        fake = fake_group()
        size = world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])
        at = rank if rank >= 0 else int(os.environ["RANK"])
        original("fake", store=fake.FakeStore(), world_size=size, rank=at)
        note(f"rank {at} of {size} was run alone: what it exchanges with others is counted, and not sent")

    return joined


def _mesh_of(original: Any) -> Callable[..., Any]:
    """Device meshes on the CPU."""
    return lambda _, *args, **kwargs: original("cpu", *args, **kwargs)


def _replica_of(name: str, note: Note) -> Callable[..., None]:
    def init(self: Any, module: nn.Module, *_: Any, **__: Any) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.device_ids, self.require_backward_grad_sync = None, True
        note(f"{name} was taken as the module in it: features are those of one GPU")

    return init


def _fsdp(loaded: Any, note: Note) -> list[Change]:
    """Both generations of fully sharded data parallelism."""
    first = loaded.FullyShardedDataParallel
    sentence = "was taken as the whole module, on one GPU"

    def init(self: Any, module: nn.Module, *_: Any, mixed_precision: Any = None, **__: Any) -> None:
        nn.Module.__init__(self)
        self._fsdp_wrapped_module = module
        _compute_in(module, getattr(mixed_precision, "param_dtype", None))
        note(f"FullyShardedDataParallel {sentence}")

    def shard(module: Any, *_: Any, mp_policy: Any = None, **__: Any) -> Any:
        for each in module if isinstance(module, (list, tuple)) else (module,):
            _compute_in(each, getattr(mp_policy, "param_dtype", None))
            for name in (name for name in vars(loaded.FSDPModule) if not name.startswith("_")):
                setattr(each, name, lambda *_, **__: None)
        note(f"fully_shard {sentence}")
        return module

    def clip(self: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    changes: list[Change] = [
        (first, "__init__", init),
        (first, "forward", lambda self, *args, **kwargs: self._fsdp_wrapped_module(*args, **kwargs)),
        (first, "clip_grad_norm_", clip),
        (first, "no_sync", lambda _: contextlib.nullcontext()),
        (first, "check_is_root", lambda _: True),
        (loaded, "fully_shard", shard),
    ]
    plain = ("apply", APPLY, "named_parameters", "named_buffers")
    return [*changes, *((first, name, getattr(nn.Module, name)) for name in plain)]


def _compute_in(module: nn.Module, dtype: torch.dtype | None) -> None:
    """The module's forward with weights and inputs of a precision; the optimizer's weights keep theirs."""
    if dtype is None:
        return
    original, running = module.forward, False

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running:
            return original(*args, **kwargs)
        running = True
        try:
            weights = {name: cast(parameter) for name, parameter in module.named_parameters()}
            given: Any = tree_map_only(Tensor, cast, (args, kwargs))
            return torch.func.functional_call(module, weights, *given)
        finally:
            running = False

    module.forward = forward
