"""Memory that kernels of a GPU take while they run, besides what they read and write.

Read off an H100 with torch 2.11 and cuDNN 9, each kernel alone (``benchmarks/memory_device.py`` compares whole
programs). Libraries choose by size, so these are rules with exceptions: kernels of one pixel are often spared, and sums
that are split over the device take some megabytes more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_TENSOR_CORES = (torch.float32, torch.float16, torch.bfloat16)
"""Precisions of convolutions that run on tensor cores, fp32 as TF32."""
_PARTS_BYTES = 8 << 20
"""Most bytes of the parts of a weight's gradient, which were 4 to 15 weights: 2 to 19 MB in seven layers."""
_MOST_PARTS = 15
_PROCESSORS = 132
"""An H100 has so many; GPUs with fewer take somewhat less."""
_WARP, _MOST_THREADS, _PROCESSOR_THREADS, _LEAST_VALUES, _MOST_VALUES = 32, 512, 2048, 16, 256
_RNN_STATES, _RNN_WEIGHTS = 6, 0.8
"""Outputs and weights that cuDNN's recurrent layers take, in each pass; outputs of each direction. In a recorded run
an LSTM of two layers took 449,839,872 bytes, with outputs of 67,108,864 and weights of 58,785,792."""


def convolution(x: Tensor, weight: Tensor, out: Tensor, groups: int) -> tuple[float, ...]:
    """Bytes of a convolution that copies to channels last, as tensor cores have it: input, output and weight.

    Tensors that are channels last already, depthwise ones and kernels of one pixel need none.
    """
    if not _copies(x, groups) or _is_pixel(weight):
        return ()
    return (float(x.nbytes + weight.nbytes + out.nbytes),)


def convolution_backward(
    x: Tensor, weight: Tensor, grad: Tensor, groups: int, stride: Sequence[int], wanted: Sequence[bool]
) -> tuple[float, ...]:
    """The same of the gradients of input and weight, which are separate kernels.

    The gradient of a weight is summed in parts. Kernels of one pixel without a stride need none here either.
    """
    if not _copies(x, groups) or (_is_pixel(weight) and max(stride) == 1):
        return ()
    copies = float(x.nbytes + weight.nbytes + grad.nbytes)
    return (
        *((copies,) if wanted[0] else ()),
        *((copies + min(_MOST_PARTS * weight.nbytes, _PARTS_BYTES),) if wanted[1] else ()),
    )


def _copies(x: Tensor, groups: int) -> bool:
    is_depthwise = groups > 1 and groups == x.shape[1]
    return not is_depthwise and x.dim() == 4 and x.dtype in _TENSOR_CORES and x.is_contiguous()


def _is_pixel(weight: Tensor) -> bool:
    return math.prod(weight.shape[2:]) == 1


def softmax(tensors: Sequence[Tensor]) -> tuple[float, ...]:
    """Bytes of a softmax over a tensor whose elements do not lie in order: it is copied first."""
    copied = sum(each.nbytes for each in tensors if not each.is_contiguous())
    return (float(copied),) if copied else ()


def column_sum(x: Tensor, dims: Sequence[int], *, processors: int = _PROCESSORS) -> tuple[float, ...]:
    """Bytes of a sum over leading dimensions, such as a bias's gradient: parts of blocks that share a column.

    Args:
        x: what is summed.
        dims: over which.
        processors: of the GPU (streaming multiprocessors).

    Source: ``setReduceConfig`` and ``global_memory_size`` of aten/src/ATen/native/cuda/Reduce.cuh.
    """
    lead = len(dims)
    if not 0 < lead < x.dim() or sorted(d % x.dim() for d in dims) != list(range(lead)) or not x.is_contiguous():
        return ()
    rows, columns = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
    vector = next(width for width in (4, 2, 1) if columns % width == 0)
    threads = _MOST_THREADS // vector
    wide = min(_WARP, _power_below(columns // vector))
    high = min(threads // wide, _power_below(rows))
    values = -(-rows // high)
    grid = -(-columns // (vector * wide))
    blocks = processors * (_PROCESSOR_THREADS // (wide * high))
    if values < _MOST_VALUES or grid > blocks:
        return ()
    shared = max(min(-(-blocks // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    return (4.0 * columns * shared * wide * vector,) if shared > 1 else ()


def _power_below(count: int) -> int:
    """The largest power of two that is not above a count."""
    return 1 << max(0, count.bit_length() - 1)


def attention_backward(query: Tensor) -> tuple[float, ...]:
    """Bytes of fused attention's backward pass: the gradient of the query in fp32, and two numbers a row."""
    return (4.0 * (query.numel() + 2 * math.prod(query.shape[:-1])),)


def recurrent(outputs: float, weights: float) -> tuple[float, ...]:
    """Bytes of a recurrent layer's pass.

    Args:
        outputs: bytes of one layer's output states, all directions.
        weights: bytes of all weights.
    """
    return (_RNN_STATES * outputs + _RNN_WEIGHTS * weights,)


def recurrent_reserve(gates: int, layers: int, directions: int) -> int:
    """Numbers that the backward pass of a recurrent layer keeps, for each element of an output and direction.

    Gates and cell of each layer, and the input of each but the first: 5, 11, 17 for LSTMs of one to three layers; 6, 13
    for GRUs; 3 for a plain one of two.

    Args:
        gates: 4 of an LSTM, 3 of a GRU, 1 of a plain one.
        layers: with each direction counted.
        directions: 1 or 2.
    """
    kept = {4: 5, 3: 6, 1: 1}[gates]
    return kept * layers + layers - directions
