"""Memory of kernels, against what an H100 took for each alone (torch 2.11, cuDNN 9, November 2026)."""

from __future__ import annotations

import pytest
import torch

from stoker.perf.features.operators import scratch


def images(channels: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(32, channels, size, size, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("channels", "outs", "size", "kernel", "stride", "groups", "dtype", "forward", "backward"),
    [
        (64, 64, 112, 3, 1, 1, torch.float32, 205_668_499, 207_733_415),
        (64, 64, 112, 3, 1, 1, torch.bfloat16, 102_834_323, 104_751_783),
        (256, 512, 28, 3, 2, 1, torch.bfloat16, 21_626_896, 24_904_055),
        (3, 64, 224, 7, 2, 1, torch.float32, 122_065_680, 134_522_000),
        (256, 512, 28, 1, 1, 1, torch.bfloat16, 0, 0),
        (128, 128, 56, 3, 1, 128, torch.float32, 0, 0),
        (128, 128, 56, 3, 1, 32, torch.float32, 102_779_027, 103_074_111),
        (256, 128, 56, 1, 2, 1, torch.float32, 0, 115_474_579),
    ],
)
def test_convolutions(
    channels: int, outs: int, size: int, kernel: int, stride: int, groups: int, dtype: torch.dtype,
    forward: int, backward: int,
) -> None:  # fmt: skip
    x = images(channels, size, dtype)
    out = images(outs, -(-size // stride), dtype)
    weight = torch.empty(outs, channels // groups, kernel, kernel, dtype=dtype, device="meta")
    found = scratch.convolution(x, weight, out, groups)
    assert sum(found) == pytest.approx(forward, rel=1e-3)
    back = scratch.convolution_backward(x, weight, out, groups, [stride], [True, True, False])
    # The parts of a weight's gradient are a rule of thumb.
    assert max(back, default=0) == pytest.approx(backward, rel=0.25)


def test_tensors_that_are_channels_last_are_not_copied() -> None:
    x = images(64, 56).contiguous(memory_format=torch.channels_last)
    weight = torch.empty(64, 64, 3, 3, device="meta")
    assert scratch.convolution(x, weight, x, 1) == ()
    assert scratch.convolution_backward(x, weight, x, 1, [1], [True, True, False]) == ()


@pytest.mark.parametrize(
    ("rows", "columns", "taken"),
    [
        (4096, 16_000, 139_264_000), (4096, 3072, 100_663_296), (4096, 2304, 75_497_472), (4096, 768, 25_165_824),
        (2048, 4096, 67_108_864), (2048, 1000, 16_384_000), (512, 4096, 0),
    ],
)  # fmt: skip
def test_a_sum_over_rows_takes_parts_of_its_blocks_to_the_byte(rows: int, columns: int, taken: int) -> None:
    x = torch.empty(rows, columns, device="meta")
    assert sum(scratch.column_sum(x, [0])) == taken
    assert scratch.column_sum(x, [1]) == ()


@pytest.mark.parametrize(
    ("gates", "layers", "directions", "kept"),
    [(4, 1, 1, 5), (4, 2, 1, 11), (4, 3, 1, 17), (4, 2, 2, 10), (4, 4, 2, 22), (3, 1, 1, 6), (3, 2, 1, 13),
     (3, 4, 2, 26), (3, 3, 1, 20), (1, 2, 1, 3)],
)  # fmt: skip
def test_what_recurrent_layers_keep(gates: int, layers: int, directions: int, kept: int) -> None:
    assert scratch.recurrent_reserve(gates, layers, directions) == kept


def test_a_softmax_copies_what_does_not_lie_in_order() -> None:
    x = torch.empty(16, 256, 16_000, device="meta")
    assert scratch.softmax([x]) == ()
    assert scratch.softmax([x.transpose(1, 2)]) == (262_144_000.0,)
