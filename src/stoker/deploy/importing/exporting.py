# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Captures a module by ``torch.export`` with a batch of any size."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from stoker.core.errors import ModelImportError
from stoker.deploy.importing.composing import composed

_TORCH = Path(torch.__file__).parent
_PYTHON, _PACKAGES = (sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib"))
_STOKER = Path(__file__).parents[2]
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WORDS = 600
_TALKING = ("torch.fx.experimental.symbolic_shapes", "torch.export._trace")
_PRECISION = "wrap_with_autocast"
_CONTEXTS = ("wrap_with_set_grad_enabled", _PRECISION)
_NARROW = (torch.bfloat16, torch.float16)
_METADATA: Any = torch.ops.aten._assert_tensor_metadata.default
_CONVERSION: Any = torch.ops.aten.to.dtype
_TYPES = re.compile(r"dtype|scalar type|Input type")


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured module.

    Attributes:
        graph_module: its graph, not decomposed; placeholders are parameters, buffers, constants and inputs.
        tensors: parameters, buffers and constants by placeholder.
        inputs: placeholders of the module's arguments, in their order.
        outputs: nodes of its results.
        names: of its results: the keys of a dict, ``output_0`` and so on of a tuple or list, otherwise ``output``.
    """

    graph_module: fx.GraphModule
    tensors: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: tuple[str, ...]

    def arguments(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph is called with, for a call of the module."""
        given = dict(zip(self.inputs, inputs, strict=True))
        return [
            given[node.name] if node.name in given else self.tensors[node.name]
            for node in self.graph_module.graph.nodes
            if node.op == "placeholder"
        ]

    def unwritten(self) -> Captured:
        """The same to be run once: its tensors are the module's own memory, and copies if the graph writes to one."""
        changed: set[str] = set()
        for node in self.graph_module.graph.nodes:
            first: Any = node if is_in_place(node) else None
            while isinstance(first, fx.Node):  # what returns its first argument's memory isn't always told by a schema
                changed.add(first.name)
                first = first.args[0] if first.args else None
        # Together, since tensors may be parts of one another.
        return self if changed.isdisjoint(self.tensors) else replace(self, tensors=copy.deepcopy(self.tensors))


def capture(module: torch.nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str] = ()) -> Captured:
    """The module's graph in evaluation mode, its first axis of any size, some operations written as others.

    Args:
        module: of float weights, on the CPU; its mode is as before afterwards. Of other floats than float32 a copy is
            converted and captured.
        inputs: an example call; each with a batch as first axis, of at least 2 samples.
        names: of the arguments that these are; by place where there are none.

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
    if not set(names) <= set(inspect.signature(module.forward).parameters):
        raise ModelImportError(
            f"`{type(module).__name__}` must have arguments of the names that the loader's dict has, "
            f"{', '.join(names)}; return the module that it wraps",
            where="",
        )
    placed, named = ((), dict(zip(names, inputs, strict=True))) if names else (tuple(inputs), {})
    training = {name for name, each in module.named_modules() if each.training}
    try:
        _evaluating(module)
        with _hushed():
            shapes = _dynamic(module, placed, named, batch)
            exported = torch.export.export(module, placed, named, dynamic_shapes=shapes)
            _put_inside(exported.graph_module)
            _settle(exported)
        program = composed(exported)
    except Exception as error:  # whatever a user's forward and torch's tracer raise
        raise _refusal(module, inputs, error) from error
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
        _names(program.call_spec.out_spec, len(signature.user_outputs)),
    )


def _put_inside(whole: fx.GraphModule) -> None:
    """Puts what ran under a context of gradients or precision, as rotary positions do, among the other nodes."""
    for node in list(whole.graph.nodes):
        if str(node.target) not in _CONTEXTS:
            continue
        at = next(place for place, each in enumerate(node.args) if getattr(each, "op", "") == "get_attr")
        part = getattr(whole, str(node.args[at].target))
        _put_inside(part)
        if str(node.target) == _PRECISION and node.args[2] is True:
            _widen(part.graph)
        starts = [each for each in part.graph.nodes if each.op == "placeholder"]
        known: dict[fx.Node, Any] = dict(zip(starts, node.args[at + 1 :], strict=True))
        with whole.graph.inserting_before(node):
            results: Any = whole.graph.graph_copy(part.graph, known)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            whole.graph.erase_node(user)
        held: Any = node.args[at]
        whole.graph.erase_node(node)
        if not held.users:
            whole.graph.erase_node(held)
    whole.recompile()


def _widen(graph: fx.Graph) -> None:
    """Makes single numbers of what is converted to those of autocast, as by `y.to(x.dtype)`: it runs without it."""
    for node in graph.nodes:
        node.args = tuple(torch.float32 if each in _NARROW else each for each in node.args)
        node.kwargs = {name: torch.float32 if each in _NARROW else each for name, each in node.kwargs.items()}


def _settle(exported: torch.export.ExportedProgram) -> None:
    """Names results as the nodes that they are now, and leaves out what the precision of a context was checked by."""
    graph = exported.graph_module.graph
    (results,) = graph.output_node().args
    assert isinstance(results, (tuple, list))
    for spec, node in zip(exported.graph_signature.output_specs, results, strict=True):
        if isinstance(node, fx.Node):
            spec.arg.name = node.name
    for node in list(graph.nodes):
        if node.target == _METADATA and not node.users:
            graph.erase_node(node)
        elif node.target == _CONVERSION:
            before, after = (each.meta["val"].dtype for each in (node.args[0], node))
            if before != after and (before in _NARROW or after in _NARROW):
                node.args = (*node.args[:2], False, True)  # without autocast it would be the same memory
    exported.graph_module.recompile()


def _names(spec: Any, count: int) -> tuple[str, ...]:
    """Names of results, as a service of the module itself calls them; keys that are no plain names are left out."""
    result = spec.unflatten(list(range(count)))
    if isinstance(result, Mapping):
        keys = [key for key in result if isinstance(key, str) and key.isidentifier()]
        if [result[key] for key in keys] == list(range(count)):
            return tuple(keys)
    several = count > 1 or isinstance(result, (tuple, list))  # a tuple of one as well
    return tuple(f"output_{at}" for at in range(count)) if several else ("output",)


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


@contextlib.contextmanager
def _hushed() -> Generator[None]:
    """Inside, torch keeps to itself what it logs about an export that fails, and the graph so far, which it prints."""
    loggers = [logging.getLogger(name) for name in _TALKING]
    levels = [each.level for each in loggers]
    printed, graph = io.StringIO(), ""
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        sys.stderr.write(printed.getvalue().replace(f"{graph}\n", "") if graph else printed.getvalue())


def _refusal(module: torch.nn.Module, inputs: Sequence[torch.Tensor], error: Exception) -> ModelImportError:
    """What torch says, without its own concerns, at the user's line."""
    name, place, said = type(module).__name__, _place(error), str(error).strip()
    if "data-dependent" in said:
        text = (
            f"`{name}` must do the same for all samples, and chooses or takes a size by their numbers; "
            "write it with `torch.where`, or leave it out of the module"
        )
    else:
        text = f"`{name}` must be exportable with a batch of any size, and torch.export says: {in_words(said, inputs)}"
    return ModelImportError(f"{place}: {text}" if place else text, where=place)


def in_words(said: str, inputs: Sequence[torch.Tensor]) -> str:
    """What torch says of a call, and the way out if the call's whole numbers may be the reason."""
    whole = [str(each.dtype).removeprefix("torch.") for each in inputs if not each.dtype.is_floating_point]
    if not (whole and _TYPES.search(said)):
        return _first_sentence(said)
    return (
        f"{_first_sentence(said)}; the loader gives {whole[0]}: where the model wants real numbers, convert them in "
        "the loader, such as by `x.float() / 255`, as for training"
    )


def _first_sentence(said: str) -> str:
    """The first sentence; all of those on sizes, whose first has no reason."""
    if said.startswith("Constraints violated"):
        lines = [each.strip() for each in said.splitlines() if "TORCH_LOGS" not in each]
        return " ".join(["Constraints violated:", *lines])[:_WORDS].strip()
    return re.split(r"(?<=[\w)\]'\"`])[.!]\s|\n", said, maxsplit=1)[0].strip()[:_WORDS]


def _place(error: Exception) -> str:
    """The innermost file and line outside of torch, python and stoker that raised."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(_PACKAGES) or not frame.filename.startswith((_PYTHON, "<"))
        if not frame.filename.startswith((f"{_TORCH}{os.sep}", f"{_STOKER}{os.sep}"))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _dynamic(
    module: torch.nn.Module, placed: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor], batch: Any
) -> dict[str, Any]:
    """The batch as first axis of each argument, by name; of several under one star, each."""
    bound = inspect.signature(module.forward).bind(*placed, **named).arguments
    return {
        name: tuple({0: batch} for _ in each) if isinstance(each, tuple) else {0: batch} for name, each in bound.items()
    }


def is_in_place(node: fx.Node) -> bool:
    """Whether a node changes what it reads."""
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


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
