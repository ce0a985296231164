"""One arena for several models that are served in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.fx import GraphModule

import stoker.train.arena.torch_private as private
from stoker.train.arena.backend import compiled_in
from stoker.train.arena.memory import Arena

M = TypeVar("M", bound=nn.Module)


def share(models: Sequence[M]) -> list[M]:
    """The models compiled into one arena, which is as large as the largest needs.

    They are meant for inference, one after another. A call while another one runs, of another thread for example, or
    while activations wait for a backward pass, runs in ordinary memory.

    Args:
        models: modules that are not compiled yet.

    Raises:
        ValueError: there is no model, or one is compiled already.
    """
    if not models:
        raise ValueError("`models` must hold at least one module, got none")
    for place, model in enumerate(models):
        if private.is_compiled(model):
            raise ValueError(
                f"`models` must not be compiled yet, got a compiled one at {place}; pass the module itself"
            )
    memory = Arena()

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compiled_in(memory, module, inputs, stays=True)

    # One backend for all: modules of one class are told apart by their guards alone.
    return [cast("M", cast("Any", torch).compile(model, backend=backend)) for model in models]
