# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Layers of which each rank holds a part: of a linear layer's outputs or inputs, of a table's rows.

Names of weights stay, and state dicts have whole tensors, so that a checkpoint loads in plain torch and back. A pass
with gradients is collective. One without them uses whole weights, which are fetched, and needs no other rank.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.train.splitting.parts import SplitPart, SplitParts
from stoker.train.splitting.samples import averaged, moved, shares_of

SplitKind = Literal["column", "row", "table"]


@dataclass(slots=True)
class LayerPair:
    """What a column split tells the row split that follows it: between them, columns stay where they are."""

    rows: list[int] = field(default_factory=list[int])
    """Rows of each rank in the last forward pass."""
    lead: tuple[int, ...] = ()
    """Sizes of this rank's input in front of its last dimension."""


class SplitLayer(nn.Module):
    """What all split layers have in common: parts, and state dicts with whole tensors.

    Args:
        name: the layer's path, which all ranks have in common.
        parts: of the model.
    """

    def __init__(self, name: str, parts: SplitParts) -> None:
        super().__init__()
        self.name, self.parts, self.exchange = name, parts, parts.exchange
        self.own: dict[str, SplitPart] = {}
        """Parts of this layer by the parameter's name in it."""
        self.register_state_dict_post_hook(_make_whole)
        self.register_load_state_dict_pre_hook(_take_own)
        self.register_load_state_dict_post_hook(_loaded)

    def cut(self, name: str, dim: int) -> None:
        """Cuts one of the layer's parameters along a dimension."""
        parameter: nn.Parameter = getattr(self, name)
        widths = tuple(shares_of(parameter.shape[dim], self.exchange.ranks))
        self.own[name] = part = SplitPart(f"{self.name}.{name}", parameter, dim, widths)
        self.parts.add(part)

    def agree(self, own: Tensor, *values: int) -> list[list[int]]:
        """Begins a collective pass: the values of all ranks."""
        self.parts.begin_forward()
        # The backward pass is collective where inputs need a gradient.
        deep = "with" if own.requires_grad else "without"
        return self.exchange.agree(f"a pass through `{self.name}` {deep} a gradient of its input", *values)

    def whole(self, name: str) -> Tensor:
        """A whole parameter, for a pass without gradients."""
        return self.parts.seen_whole(self.own[name]) if name in self.own else getattr(self, name)

    def make_whole(self, found: dict[str, Any], prefix: str) -> None:
        """Replaces the parts in a state dict by whole tensors."""
        for name, part in self.own.items():
            if prefix + name in found:
                found[prefix + name] = self.parts.whole(part)

    def take_own(self, given: dict[str, Any], prefix: str) -> None:
        """Replaces whole tensors in a state dict that is loaded by this rank's parts."""
        for name, part in self.own.items():
            whole = given.get(prefix + name)
            # Other sizes are left to torch, which names them.
            if isinstance(whole, Tensor) and tuple(whole.shape) == part.whole_shape:
                given[prefix + name] = part.cut(whole, self.exchange.rank)

    def keep_parameters(self) -> None:
        """Undoes that a load with ``assign=True`` puts other parameters in the place of those that optimizers know."""
        for name, part in self.own.items():
            loaded = getattr(self, name)
            if loaded is not part.parameter:
                part.parameter.data = loaded.data
                setattr(self, name, part.parameter)

    def plain(self) -> nn.Module:
        """The layer of torch that this one stands for, with separate whole weights. Not collective."""
        raise NotImplementedError

    def taken(self, name: str) -> nn.Parameter:
        """A copy of a whole parameter."""
        parameter: nn.Parameter = getattr(self, name)
        whole = self.parts.whole(self.own[name]) if name in self.own else parameter.data.clone()
        return nn.Parameter(whole, requires_grad=parameter.requires_grad)

    # Copies are of what a program knows: other ranks hold no parts of them.

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        memo[id(self)] = made = self.plain()
        return made

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # The protocol for whose answer pickle does not ask for an object of this class.
        return self.plain().__reduce_ex__(1)


class SplitLinear(SplitLayer):
    """A linear layer of which this rank holds a part; it stands for a ``Linear`` with the whole of its weights.

    Inputs and outputs have the shapes of the whole layer's, for this rank's samples, unless it is one of a pair. All
    ranks must call it equally often, each with its samples, of which the numbers may differ.

    Args:
        linear: the layer, whose parameters are kept and cut.
        kind: what is split: outputs (``column``) or inputs (``row``).
        name: its path, which all ranks have in common.
        parts: of the model.
        pair: shared with the other layer of a pair; None for a layer by itself.
    """

    def __init__(
        self, linear: nn.Linear, kind: SplitKind, name: str, parts: SplitParts, pair: LayerPair | None
    ) -> None:
        super().__init__(name, parts)
        self.kind, self.pair = kind, pair
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = cast("nn.Parameter | None", linear.bias)
        self.cut("weight", 0 if kind == "column" else 1)
        self.widths = list(self.own["weight"].widths)
        """Columns of the outputs or of the inputs on each rank."""
        if kind == "column" and self.bias is not None:
            self.cut("bias", 0)
        self.train(linear.training)

    def extra_repr(self) -> str:
        """What is shown in a printed model."""
        part = self.widths[self.exchange.rank]
        return f"{self.in_features}, {self.out_features}, {self.kind} split, {part} of {sum(self.widths)}"

    def plain(self) -> nn.Linear:
        """The whole layer."""
        made = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        made.weight = self.taken("weight")
        if self.bias is not None:
            made.bias = self.taken("bias")
        return made.train(self.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of this rank's samples; between a pair, this rank's columns of the outputs of all samples."""
        if not torch.is_grad_enabled():
            return functional.linear(inputs, self.whole("weight"), None if self.bias is None else self.whole("bias"))
        return self._by_columns(inputs) if self.kind == "column" else self._by_rows(inputs)

    def _by_columns(self, inputs: Tensor) -> Tensor:
        exchange, lead = self.exchange, tuple(inputs.shape[:-1])
        rows = self._rows(inputs)
        gather = functools.partial(exchange.gather_rows, rows=rows)
        add = functools.partial(exchange.add_rows, rows=rows)
        every = moved(inputs.reshape(-1, self.in_features), gather, add)
        bias = None if self.bias is None else averaged(self.bias, exchange.ranks)
        outputs = functional.linear(every, averaged(self.weight, exchange.ranks), bias)
        if self.pair is not None:
            self.pair.rows, self.pair.lead = rows, lead
            return outputs
        to_rows = functools.partial(exchange.to_rows, rows=rows, widths=self.widths)
        to_columns = functools.partial(exchange.to_columns, rows=rows, widths=self.widths)
        return moved(outputs, to_rows, to_columns).view(*lead, self.out_features)

    def _by_rows(self, inputs: Tensor) -> Tensor:
        exchange, pair = self.exchange, self.pair
        if pair is not None:
            rows, lead, own = pair.rows, pair.lead, inputs
        else:
            rows, lead = self._rows(inputs), tuple(inputs.shape[:-1])
            to_rows = functools.partial(exchange.to_rows, rows=rows, widths=self.widths)
            to_columns = functools.partial(exchange.to_columns, rows=rows, widths=self.widths)
            own = moved(inputs.reshape(-1, self.in_features), to_columns, to_rows)
        parts = functional.linear(own, averaged(self.weight, exchange.ranks))
        gather = functools.partial(exchange.gather_rows, rows=rows)
        add = functools.partial(exchange.add_rows, rows=rows)
        outputs = moved(parts, add, gather)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(*lead, self.out_features)

    def _rows(self, inputs: Tensor) -> list[int]:
        """Rows of each rank."""
        if inputs.shape[-1] != self.in_features:
            raise ValueError(f"`{self.name}` must get {self.in_features} columns, got {inputs.shape[-1]}")
        return [values[0] for values in self.agree(inputs, inputs.numel() // max(1, self.in_features))]


class SplitEmbedding(SplitLayer):
    """A table of which this rank holds some rows; it stands for an ``Embedding`` with all of them.

    Numbers of rows go to the ranks that hold them, the rows come back, and their gradients go there.

    Args:
        table: the layer, whose weights are kept and cut.
        name: its path, which all ranks have in common.
        parts: of the model.
    """

    def __init__(self, table: nn.Embedding, name: str, parts: SplitParts) -> None:
        super().__init__(name, parts)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.padding_idx = table.padding_idx
        self.weight = table.weight
        self.cut("weight", 0)
        self.widths = list(self.own["weight"].widths)
        """Rows of the table on each rank."""
        ends = torch.tensor(self.widths).cumsum(0)
        self._ends: list[int] = ends.tolist()
        self.train(table.training)

    def extra_repr(self) -> str:
        """What is shown in a printed model."""
        part = self.widths[self.exchange.rank]
        return f"{self.num_embeddings}, {self.embedding_dim}, table split, {part} of {sum(self.widths)} rows"

    def plain(self) -> nn.Embedding:
        """The whole table."""
        made = nn.Embedding(self.num_embeddings, self.embedding_dim, padding_idx=self.padding_idx, device="meta")
        made.weight = self.taken("weight")
        return made.train(self.training)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of the table: ids of any shape to (*ids.shape, embedding_dim)."""
        if not torch.is_grad_enabled():
            return functional.embedding(ids, self.whole("weight"), self.padding_idx)
        exchange, flat = self.exchange, ids.reshape(-1).long()
        if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < self.num_embeddings:
            raise IndexError("index out of range in self")  # torch's words
        owners = torch.bucketize(flat, torch.tensor(self._ends, device=flat.device), right=True)
        order = owners.argsort(stable=True)
        sent: list[int] = owners.bincount(minlength=exchange.ranks).tolist()
        asked = [values[exchange.rank] for values in self.agree(self.weight, *sent)]
        start = self._ends[exchange.rank] - self.widths[exchange.rank]
        own = exchange.ask_rows(flat[order], sent, asked) - start
        padding = None if self.padding_idx is None else self.padding_idx - start
        if padding is not None and not 0 <= padding < self.widths[exchange.rank]:
            padding = None
        found = functional.embedding(own, averaged(self.weight, exchange.ranks), padding)
        there = functools.partial(exchange.swap_rows, sent=asked, received=sent)
        back = functools.partial(exchange.swap_rows, sent=sent, received=asked)
        rows = moved(found, there, back)
        return rows[order.argsort()].view(*ids.shape, self.embedding_dim)


def _make_whole(module: nn.Module, found: dict[str, Any], prefix: str, _metadata: Any) -> None:
    if isinstance(module, SplitLayer):
        module.make_whole(found, prefix)


def _take_own(module: nn.Module, given: dict[str, Any], prefix: str, *_: Any) -> None:
    if isinstance(module, SplitLayer):
        module.take_own(given, prefix)


def _loaded(module: nn.Module, _keys: Any) -> None:
    if isinstance(module, SplitLayer):
        module.keep_parameters()
        module.parts.change_weights()
