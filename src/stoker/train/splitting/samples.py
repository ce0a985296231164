# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Moves activations between ranks that hold parts of a layer: rows of all ranks to each, columns to their owners.

All of it goes by one collective, ``all_to_all_single``, which takes another number of rows on each rank, and which gloo
and NCCL have. Each move is the backward pass of another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.train.state.agreeing import agreed

Move = Callable[[Tensor], Tensor]


def shares_of(width: int, ranks: int) -> list[int]:
    """Columns of each rank: as equal as they can be, in the order of ranks."""
    return [width * (rank + 1) // ranks - width * rank // ranks for rank in range(ranks)]


class SampleExchange:
    """The exchanges of one rank with the others that hold parts of the same layers.

    Args:
        group: of these ranks alone; not DDP's, so that nothing of DDP comes in between.
        version: how often this rank's weights have changed, which is to be alike on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, version: Callable[[], int] = lambda: 0) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.version = version
        self.sent_bytes = 0
        """Bytes of activations, their gradients and numbers of rows, so far."""

    def agree(self, subject: str, *values: int) -> list[list[int]]:
        """The values of all ranks, after a check that all are about to do the same. Collective.

        Args:
            subject: what this rank is about to do, the same words on all ranks.
            values: one for each rank at most; missing ones are 0.

        Raises:
            ExchangeError: ranks are about to do different things, or have changed their weights more or less often; on
                all of them.
        """
        padded = [*values, *[0] * (self.ranks - len(values))]
        then = "call the model alike on all ranks, or under torch.no_grad()"
        return agreed(self.group, subject, self.version(), padded, where="where layers are split", then=then)

    def ask_rows(self, ids: Tensor, sent: Sequence[int], asked: Sequence[int]) -> Tensor:
        """Numbers of rows that other ranks ask this one for.

        Args:
            ids: that this rank asks for, those of one owner after those of another.
            sent: how many of each owner.
            asked: how many each rank asks of this one.
        """
        return torch.cat(self._swap(ids.split(list(sent)), [(count,) for count in asked]))

    def swap_rows(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows for each rank against those of each rank, by how many there are."""
        width = rows.shape[1]
        return torch.cat(self._swap(rows.split(list(sent)), [(count, width) for count in received]))

    def gather_pieces(self, own: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """What each rank has, of shapes that all know."""
        return self._swap([own] * self.ranks, shapes)

    def gather_rows(self, own: Tensor, rows: Sequence[int]) -> Tensor:
        """The rows of all ranks, one rank's after the other's."""
        width = own.shape[1]
        return torch.cat(self._swap([own] * self.ranks, [(each, width) for each in rows]))

    def add_rows(self, parts: Tensor, rows: Sequence[int]) -> Tensor:
        """The sum over ranks of what each has for this rank's rows, added in the order of ranks."""
        shape = (rows[self.rank], parts.shape[1])
        first, *others = self._swap(parts.split(list(rows)), [shape] * self.ranks)
        for each in others:
            first = first + each
        return first

    def to_columns(self, own: Tensor, rows: Sequence[int], widths: Sequence[int]) -> Tensor:
        """This rank's columns of the rows of all ranks."""
        shapes = [(each, widths[self.rank]) for each in rows]
        return torch.cat(self._swap(own.split(list(widths), dim=1), shapes))

    def to_rows(self, own: Tensor, rows: Sequence[int], widths: Sequence[int]) -> Tensor:
        """All columns of this rank's rows."""
        shapes = [(rows[self.rank], each) for each in widths]
        return torch.cat(self._swap(own.split(list(rows)), shapes), dim=1)

    def _swap(self, pieces: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Sends a piece to each rank and gets one of each, of known shapes. Bytes, since backends lack some dtypes."""
        leaving = torch.cat([piece.reshape(-1) for piece in pieces])
        size = leaving.element_size()
        sizes = [math.prod(shape) * size for shape in shapes]
        sent = [piece.numel() * size for piece in pieces]
        arrived = leaving.new_empty(sum(sizes) // size)
        dist.all_to_all_single(arrived.view(torch.uint8), leaving.view(torch.uint8), sizes, sent, group=self.group)
        self.sent_bytes += sum(sent) - sent[self.rank]
        parts = arrived.split([each // size for each in sizes])
        return [each.view(shape) for each, shape in zip(parts, shapes, strict=True)]


class _Moved(torch.autograd.Function):
    """A move, with the move of its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, there: Move, back: Move) -> Tensor:
        ctx.back = back
        return there(tensor.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0].contiguous()), None, None


class _Averaged(torch.autograd.Function):
    """The tensor itself; its gradient, a sum over ranks, becomes their mean, which is what DDP makes of others."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * (1.0 / ctx.ranks), None


def moved(tensor: Tensor, there: Move, back: Move) -> Tensor:
    """A tensor after a move, whose gradient goes back by another one."""
    return _Moved.apply(tensor, there, back)


def averaged(tensor: Tensor, ranks: int) -> Tensor:
    """A part of a weight, whose gradient is the sum over the rows of all ranks and is to be their mean."""
    return _Averaged.apply(tensor, ranks)
