# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Captures a module by ``torch.export`` with a batch of any size."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from stoker.core.errors import ModelImportError
from stoker.deploy.importing.composing import composed

_TORCH = Path(torch.__file__).parent
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WORDS = 600


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured module.

    Attributes:
        graph_module: its graph, not decomposed; placeholders are parameters, buffers, constants and inputs.
        tensors: parameters, buffers and constants by placeholder.
        inputs: placeholders of the module's arguments, in their order.
        outputs: nodes of its results.
    """

    graph_module: fx.GraphModule
    tensors: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def arguments(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph is called with, for a call of the module."""
        given = dict(zip(self.inputs, inputs, strict=True))
        return [
            given[node.name] if node.name in given else self.tensors[node.name]
            for node in self.graph_module.graph.nodes
            if node.op == "placeholder"
        ]


def capture(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Captured:
    """The module's graph in evaluation mode, its first axis of any size, some operations written as others.

    Args:
        module: of float weights, on the CPU; its mode is as before afterwards. Of other floats than float32 a copy is
            converted and captured.
        inputs: an example call; each with a batch as first axis, of at least 2 samples.

    Raises:
        ModelImportError: torch can't export it, or not for every batch; fields: where.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelImportError(
            f"`{type(module).__name__}` must be a module of Python, and is one of TorchScript; "
            "return the module that was traced or scripted",
            where="",
        )
    module = _in_single(module)
    batch = torch.export.Dim("batch", min=1)
    training = {name for name, each in module.named_modules() if each.training}
    try:
        _evaluating(module)
        program = composed(torch.export.export(module, tuple(inputs), dynamic_shapes=_dynamic(module, inputs, batch)))
    except Exception as error:  # whatever a user's forward and torch's tracer raise
        raise ModelImportError(
            f"`{type(module).__name__}` must be exportable with a batch of any size, and torch.export says: "
            f"{str(error).strip()[:_WORDS]}",
            where="",
        ) from error
    finally:
        for name, each in module.named_modules():
            each.training = name in training
    signature = program.graph_signature
    held: dict[str, Any] = {**program.constants, **program.state_dict}
    named = (signature.inputs_to_parameters, signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants)
    tensors: dict[str, torch.Tensor] = {
        placeholder: held[name].detach() for names in named for placeholder, name in names.items()
    }
    users = [str(name) for name in signature.user_inputs if isinstance(name, str)]
    return Captured(
        program.graph_module,
        tensors,
        tuple(users),
        tuple(str(name) for name in signature.user_outputs),
    )


def precision_of(module: torch.nn.Module) -> str:
    """The first type of float among weights and buffers that is not float32; empty if there is none."""
    tensors = (*module.parameters(), *module.buffers())
    others = (each.dtype for each in tensors if each.dtype.is_floating_point and each.dtype != torch.float32)
    return str(next(others, "")).removeprefix("torch.")


def _in_single(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, or a copy in float32: what it computes is compared with inputs of float32."""
    found = precision_of(module)
    if not found:
        return module
    try:
        return copy.deepcopy(module).float()
    except Exception as error:  # whatever a user's class raises when it is copied
        raise ModelImportError(
            f"`{type(module).__name__}` must have float32 weights, has {found}, and can't be copied to convert them "
            f"({type(error).__name__}: {str(error).strip()[:_WORDS]}); return `model.float()`",
            where="",
        ) from error


def _evaluating(module: torch.nn.Module) -> None:
    try:
        module.eval()
    except NotImplementedError:  # of a module that was exported itself: its graph has one mode
        for each in module.modules():
            each.training = False


def _dynamic(module: torch.nn.Module, inputs: Sequence[torch.Tensor], batch: Any) -> dict[str, Any]:
    """The batch as first axis of each argument, by name; of several under one star, each."""
    bound = inspect.signature(module.forward).bind(*inputs).arguments
    return {
        name: tuple({0: batch} for _ in each) if isinstance(each, tuple) else {0: batch} for name, each in bound.items()
    }


def where(node: fx.Node) -> str:
    """File and line of the user's program that a node comes from: the innermost frame outside torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in frames if not Path(file).is_relative_to(_TORCH)]
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def layer(node: fx.Node) -> str:
    """Path in the model of the module that a node belongs to."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    paths = [str(each[0] if isinstance(each, tuple) else each) for each in stack.values()]
    return re.sub(r"^L\['self'\]\.?", "", paths[-1]) if paths else ""
