"""The backend of `torch.compile` that is called `stoker.arena`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

import stoker.train.arena.torch_private as private
from stoker.train.arena.memory import Arena
from stoker.train.arena.running import Graphs


def arena(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compiles a traced module: the graphs of `aot_eager`, activations and temporaries in one planned piece of memory.

    Torch finds it by its name: `torch.compile(model, backend="stoker.arena")`.
    """
    return compiled_in(_arena_of_code(), module, inputs, stays=False)


def compiled_in(memory: Arena, module: GraphModule, inputs: Sequence[Any], *, stays: bool) -> Callable[..., Any]:
    """The same in an arena that is given."""
    graphs = Graphs(memory, stays=stays)

    def partition(joint: GraphModule, joint_inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
        graphs.partitioned(options["num_fwd_outputs"])
        return private.partitioned(joint, joint_inputs, **options)

    return private.compiled(
        module, inputs, graphs.compile_forward, graphs.compile_backward, graphs.compile_forward, partition
    )


_arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()


def _arena_of_code() -> Arena:
    """One arena for all forms of a model (training, evaluation, shapes). A form that meets another one moves out."""
    number = private.code_number()
    if number is None:
        return Arena()
    found = _arenas.get(number)
    if found is None:
        found = _arenas[number] = Arena()
    return found
