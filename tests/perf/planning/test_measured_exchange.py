"""A plan from what ranks measured of their own steps."""

from __future__ import annotations

import pytest

from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.exchange import MeasuredExchange, MeasuredLayer

RATE = 25e6
"""Bytes/s of the link: 200 Mbit/s."""
HEAD = MeasuredLayer(
    module="head", weight="head.weight", bytes=16.8e6, product_bytes=16.8e6, width_in=2048, width_out=2048, rows=16,
    backward_s=0.002,
)  # fmt: skip
TRUNK = MeasuredLayer(module="trunk", weight="", bytes=8e6, backward_s=0.004, why_not="it is no product")


def measured(layers: list[MeasuredLayer], device: str = "cpu", ranks: int = 2) -> list[MeasuredExchange]:
    """What ranks say of a program on a slow link."""
    sums = [(float(size), 2e-4 + 2 * (ranks - 1) / ranks * size / RATE) for size in (4_096, 65_536, 1 << 20, 16 << 20)]
    return [
        MeasuredExchange(
            name="toy", rank=rank, ranks=ranks, backend="gloo", device=device, step_s=1.0, layers=layers, sums=sums,
            products=[(2048, 2048, 16 * ranks, 0.01)], byte_s=1e-10, memory_bytes=1e9,
        )
        for rank in range(ranks)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "has_ring", "methods"),
    [
        ("cpu", True, {"head": "late", "trunk": "ring"}),
        ("cpu", False, {"head": "late"}),
        ("cuda", True, {"head": "late"}),
    ],
)
def test_a_ring_is_named_where_there_are_sockets_for_its_tensors(
    device: str, has_ring: bool, methods: dict[str, str]
) -> None:
    agreed = planned_exchange(measured([TRUNK, HEAD], device), has_ring=has_ring)
    assert {each.module: each.method for each in agreed.methods} == methods


def test_splits_and_islands_are_never_named_in_a_run() -> None:
    agreed = planned_exchange(measured([TRUNK, HEAD]), allowed=frozenset({"split", "compress"}), has_ring=True)
    assert {each.method for each in agreed.methods} <= {"late", "ring", "half"}


def test_ranks_with_other_layers_change_nothing() -> None:
    first, second = measured([TRUNK])[0], measured([HEAD])[1]
    agreed = planned_exchange([first, second], has_ring=True)
    assert (agreed.methods, agreed.note) == ([], "ranks do not have the same layers")
