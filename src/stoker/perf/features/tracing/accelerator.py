# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
"""What ``torch.cuda`` answers to a program that is traced without an accelerator."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import torch

from stoker.core.patching import Patches

_NOTHING = frozenset(
    (
        "synchronize", "set_device", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "manual_seed", "manual_seed_all", "ipc_collect", "set_per_process_memory_fraction", "init", "set_stream",
    )
)  # fmt: skip
_ZERO = frozenset(
    (
        "current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "utilization",
    )
)  # fmt: skip
_MEMORY = 80 * 10**9


class _Quiet:
    """An event or a stream that is always ready."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 1.0 if name == "elapsed_time" else True

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def answering(note: Callable[[str], None]) -> Generator[None]:
    """Runs the block with a pretended accelerator for the program; torch itself must not look for one.

    Args:
        note: called with each assumption.
    """
    cuda: Any = torch.cuda

    def described(*_: Any) -> SimpleNamespace:
        note("the GPU that the program asks about was described as one of 80 GB that computes in bfloat16")
        return SimpleNamespace(
            name="GPU", major=8, minor=0, total_memory=_MEMORY, multi_processor_count=108, warp_size=32
        )

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_initialized": lambda: True,
        "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "get_device_properties": described,
        "get_device_name": lambda *_: described().name,
        "get_device_capability": lambda *_: (described().major, described().minor),
        "mem_get_info": lambda *_: (described().total_memory, described().total_memory),
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "current_stream": _Quiet,
        "default_stream": _Quiet,
        "stream": lambda *_: contextlib.nullcontext(),
        "device": lambda *_: contextlib.nullcontext(),
        **dict.fromkeys(_NOTHING, lambda *_, **__: None),
        **dict.fromkeys(_ZERO, lambda *_, **__: 0),
    }
    with Patches("a program is traced: torch.cuda") as patches:
        for name, answer in answers.items():
            if hasattr(cuda, name):
                patches.set(cuda, name, _asked(getattr(cuda, name), answer))
        for name in ("Event", "Stream"):
            patches.set(cuda, name, _Quiet)
        for name in ("range_push", "range_pop", "mark"):
            patches.set(cuda.nvtx, name, lambda *_: None)
        yield


def _asked(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer for a program, the original for torch."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        mine = caller == "torch" or caller.startswith("torch.")
        return original(*args, **kwargs) if mine and original.__name__ in _TRUTHS else answer(*args, **kwargs)

    return asked


_TRUTHS = frozenset(("is_available", "is_initialized", "device_count", "current_device", "init", "is_bf16_supported"))
"""Functions by which torch decides what it does itself."""
