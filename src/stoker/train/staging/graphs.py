# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A captured graph in stages: what each computes, and which values go from one to another."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from stoker.train import torch_private
from stoker.train.staging.capturing import CapturedCall

INPUT = -1
"""The producer of what a module is called with."""


@dataclass(frozen=True, slots=True)
class StageValue:
    """A tensor that goes from one stage to others, into the pipeline or out of it.

    Attributes:
        number: tells values of a graph apart.
        name: in the graph.
        producer: the stage that computes it; :data:`INPUT` for an input.
        consumers: stages that use it, first one first.
        is_output: whether the module returns it.
        shape, dtype: of it.
        needs: whether it may want a gradient.
    """

    number: int
    name: str
    producer: int
    consumers: tuple[int, ...]
    is_output: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    needs: bool

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StageArgument:
    """What a stage's function is called with.

    Attributes:
        kind: a value, or a tensor of the module by its name.
        number: of the value.
        name: of a weight or buffer.
        constant: a tensor of the graph alone.
    """

    kind: Literal["value", "state", "constant"]
    number: int = 0
    name: str = ""
    constant: Any = None


@dataclass(frozen=True, slots=True)
class StageFunction:
    """A function of one stage.

    Attributes:
        function: of its arguments, which returns its values in their order.
        arguments: of it.
        results: numbers of the values that it computes for others.
    """

    function: fx.GraphModule
    arguments: tuple[StageArgument, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagedGraph:
    """A graph in stages, as one rank keeps it.

    Attributes:
        values: that go between stages.
        stage: of this rank.
        inputs: the value of each leaf of a call; None for one that no stage uses.
        outputs: what the module returns, taken apart: numbers of values, or constants.
        spec: puts that together.
        weights: names of the weights of each stage.
        written: names of the buffers that each stage changes.
        draws: whether it draws random numbers.
    """

    values: tuple[StageValue, ...]
    stage: StageFunction
    inputs: tuple[int | None, ...]
    outputs: tuple[tuple[bool, Any], ...]
    spec: Any
    weights: tuple[frozenset[str], ...]
    written: tuple[frozenset[str], ...]
    draws: bool


@dataclass(slots=True)
class _Cut:
    """A graph's nodes and the stage of each."""

    module: nn.Module
    graph: fx.GraphModule
    stages: dict[fx.Node, int]
    count: int
    values: dict[fx.Node, StageValue] = field(default_factory=dict["fx.Node", "StageValue"])


def staged(module: nn.Module, graph: CapturedCall, cuts: Sequence[str], own: int) -> StagedGraph:
    """A captured graph, cut before modules.

    Args:
        module: of which it is.
        graph: captured.
        cuts: paths of the modules with which the second and further stages begin.
        own: the stage that this rank keeps.

    Raises:
        ValueError: the modules are not called in that order, or something else than tensors would go between stages.
    """
    cut = _Cut(module, graph.module, _stages_of(graph.module, cuts), len(cuts) + 1)
    leaves = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    end = next(node for node in graph.module.graph.nodes if node.op == "output")
    returned = torch_private.tree_leaves(end.args[0])
    _add_values(cut, leaves, {each for each in returned if isinstance(each, fx.Node)})
    _check_writes(cut)
    outputs = tuple(
        (True, cut.values[each].number) if isinstance(each, fx.Node) else (False, each) for each in returned
    )
    weights, written = _states_of(cut)
    return StagedGraph(
        values=tuple(cut.values.values()), stage=_function_of(cut, own),
        inputs=tuple(cut.values[each].number if each in cut.values else None for each in leaves), outputs=outputs,
        spec=graph.spec, weights=weights, written=written, draws=_draws(graph.module),
    )  # fmt: skip


def _stages_of(graph: fx.GraphModule, cuts: Sequence[str]) -> dict[fx.Node, int]:
    """The stage of each node: nodes keep their order, and a stage begins with the first node of its module."""
    found: dict[fx.Node, int] = {}
    stage = 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output") or _is_state(graph, node):
            continue
        path = _path_of(node)
        for later in range(stage, len(cuts)):
            if path == cuts[later] or path.startswith(f"{cuts[later]}."):
                if later > stage:
                    raise ValueError(
                        f"`{cuts[stage]}` must be called before `{cuts[later]}` to be cut there, and is not; name cuts "
                        "in the order of the forward pass"
                    )
                stage += 1
                break
        # A part of what one operation returns belongs to it.
        source = node.args[0] if node.target is operator.getitem else None
        found[node] = found[source] if isinstance(source, fx.Node) and source in found else stage
    if stage < len(cuts):
        raise ValueError(f"`{cuts[stage]}` must be called in a forward pass to be cut there, and is not")
    for number in range(len(cuts) + 1):
        if number not in found.values():
            raise ValueError(f"`cuts` must leave operations for each stage, got none for stage {number}")
    return found


def _path_of(node: fx.Node) -> str:
    """The module whose forward pass an operation belongs to; empty for the outermost."""
    stack: Any = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    return path.partition("@")[0]  # behind it is the number of the module's call


def _is_state(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a tensor that the graph has from its module, or holds itself."""
    return node.op == "get_attr" and isinstance(_attribute(graph, str(node.target)), Tensor)


def _attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _add_values(cut: _Cut, leaves: Sequence[fx.Node], returned: set[fx.Node]) -> None:
    needs = _needs(cut)
    for node in cut.graph.graph.nodes:
        producer = INPUT if node.op == "placeholder" else cut.stages.get(node)
        if producer is None:
            if node in returned:
                raise ValueError(f"`{node.target}` must not be returned as it is by a model whose layers are in stages")
            continue
        consumers = tuple(sorted({cut.stages[user] for user in node.users if user in cut.stages} - {producer}))
        if not consumers and (node not in returned):
            continue
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            if node.op == "placeholder" and not consumers:
                continue
            raise ValueError(
                f"`{node.name}` must be a tensor to go from one stage to another, got {type(value).__name__}; cut "
                "elsewhere"
            )
        cut.values[node] = StageValue(
            len(cut.values), node.name, producer, consumers, node in returned, tuple(map(int, value.shape)),
            value.dtype, needs[node],
        )  # fmt: skip


def _needs(cut: _Cut) -> dict[fx.Node, bool]:
    """Which values may want a gradient: those that depend on a trained weight or on such an input."""
    found: dict[fx.Node, bool] = {}
    for node in cut.graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            found[node] = isinstance(value, Tensor) and value.requires_grad
        elif node.op == "get_attr":
            tensor = _attribute(cut.module, str(node.target))
            found[node] = isinstance(tensor, Tensor) and tensor.requires_grad
        else:
            differs = node.target not in (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
            is_real = not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex()
            found[node] = differs and is_real and any(found.get(each, False) for each in node.all_input_nodes)
    return found


def _written_by(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that an operation changes."""
    for argument, given in torch_private.arguments_of(node):
        # Norms of batches change their running means, of which their schema says nothing.
        is_mean = argument.name in ("running_mean", "running_var") and _is_training(node)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(given, fx.Node) and (is_written or is_mean):
            yield given


def _is_training(node: fx.Node) -> bool:
    """Whether a norm goes by its batch."""
    given = {argument.name: value for argument, value in torch_private.arguments_of(node)}
    return any(given.get(name) is True for name in ("training", "train", "use_input_stats"))


def _check_writes(cut: _Cut) -> None:
    for node in cut.graph.graph.nodes:
        for given in _written_by(node):
            value = cut.values.get(given)
            if value is not None and (value.producer != cut.stages[node]):
                what = "its inputs" if value.producer == INPUT else f"what stage {value.producer} gives"
                raise ValueError(
                    f"`{_path_of(node) or node.name}` must not change {what} in place, in stage "
                    f"{cut.stages[node]}: the tensor is a copy there; cut elsewhere"
                )
            if given.op == "get_attr" and isinstance(_attribute(cut.module, str(given.target)), nn.Parameter):
                raise ValueError(f"`{given.target}` must not be changed by a forward pass for layers to be in stages")


def _states_of(cut: _Cut) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """Names of the weights that each stage uses, and of the buffers that each changes."""
    weights: list[set[str]] = [set() for _ in range(cut.count)]
    written: list[set[str]] = [set() for _ in range(cut.count)]
    users: dict[str, set[int]] = {}
    for node in cut.graph.graph.nodes:
        if node.op != "get_attr" or not isinstance(tensor := _attribute(cut.module, str(node.target)), Tensor):
            continue
        name = str(node.target)
        stages = {cut.stages[user] for user in node.users if user in cut.stages}
        users.setdefault(name, set()).update(stages)
        if isinstance(tensor, nn.Parameter):
            for stage in stages:
                weights[stage].add(name)
    for node in cut.graph.graph.nodes:
        for given in _written_by(node):
            if given.op == "get_attr" and isinstance(_attribute(cut.module, str(given.target)), Tensor):
                written[cut.stages[node]].add(str(given.target))
    for stage, names in enumerate(written):
        for name in names:
            if len(users[name]) > 1:
                raise ValueError(f"`{name}` must not be changed in stage {stage} and used in others; cut elsewhere")
    return tuple(map(frozenset, weights)), tuple(map(frozenset, written))


def _function_of(cut: _Cut, own: int) -> StageFunction:
    """The function of one stage: its nodes, with placeholders for what they use from outside."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    arguments: list[StageArgument] = []
    mine = [node for node, stage in cut.stages.items() if stage == own]
    for node in dict.fromkeys(each for user in mine for each in user.all_input_nodes):
        if cut.stages.get(node) == own:
            continue
        copies[node] = made.placeholder(node.name)
        if node in cut.values:
            arguments.append(StageArgument("value", number=cut.values[node].number))
            continue
        name = str(node.target)
        if isinstance(_attribute(cut.module, name), Tensor):
            arguments.append(StageArgument("state", name=name))
        else:
            arguments.append(StageArgument("constant", constant=_attribute(cut.graph, name)))
    for node in mine:
        copies[node] = made.node_copy(node, copies.__getitem__)
    results = [node for node in mine if node in cut.values]
    made.output(tuple(copies[node] for node in results))
    return StageFunction(
        fx.GraphModule(cut.graph, made), tuple(arguments), tuple(cut.values[node].number for node in results)
    )


def _draws(graph: fx.GraphModule) -> bool:
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for each in graph.modules()
        if isinstance(each, fx.GraphModule)
        for node in each.graph.nodes
    )
