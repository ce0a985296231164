"""Counted bytes: of memory as it is at the time, and of what a tensor without memory of its own consists of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stoker.train.fitting.live_bytes import LiveBytes


def test_memory_that_is_taken_away_and_given_back_counts_as_it_is() -> None:
    with LiveBytes() as live:
        found = torch.zeros(1000)
        assert live.now == 4000
        found.untyped_storage().resize_(0)
        assert live.now == 0
        live.begin()
        found.untyped_storage().resize_(2000)
        assert (live.now, live.peak) == (2000, 2000)
        del found
        assert live.now == 0
    assert "resize_" not in vars(torch.UntypedStorage)


class Rows(Tensor):
    """A tensor that says the size of a whole and has two rows of it."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Rows:
        make: Any = Tensor._make_wrapper_subclass
        found = make(cls, (100, *inner.shape[1:]), dtype=inner.dtype)
        found.inner = inner
        return found

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Rows(func(args[0].inner))


def test_a_tensor_in_shares_counts_as_its_rows() -> None:
    rows = Rows(torch.zeros(2, 10))
    with LiveBytes() as live:
        other = rows.neg()
        assert live.now == 2 * 2 * 10 * 4, "those that were there, and the new ones"
        assert other.shape == (100, 10)
