# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
"""Probes of compute-bound operations: products, convolutions, attention, recurrent layers, forward and backward.

Sizes are spread over what training steps on CPUs have; none is taken from a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from stoker.perf.machine.curves import blocked
from stoker.perf.machine.operands import Operands, Probe, bytes_of, halton
from stoker.perf.machine.rates import Work

_MOST_FLOPS = 1.2e9
"""Most FLOPs of a probe: a longer one would show little more."""
_MOST_NUMBERS = 4_000_000
"""Most numbers in an image's tensor."""
aten: Any = torch.ops.aten


def matrix_probes() -> Iterator[Probe]:
    """All probes of this module."""
    yield from _products()
    yield from _batched()
    yield from _convolutions()
    yield from _attentions()
    yield from _recurrent()


def _products() -> Iterator[Probe]:
    """Products of a linear layer: forward with transposed weights; backward plain, then with transposed gradients."""
    shapes = halton(70, (12, 2000), (16, 1800), (16, 1800))
    shapes += [
        (96, 448, 1),
        (480, 136, 1),
        (72, 320, 10),
        (800, 88, 12),
        (304, 6, 88),
        (1200, 12, 200),
        (8, 1000, 1000),
    ]
    for tokens, inputs, outputs in shapes:
        if 2.0 * tokens * inputs * outputs > _MOST_FLOPS:
            tokens = max(8, int(_MOST_FLOPS / (2.0 * inputs * outputs)) // 8 * 8)
        yield _product("forward", tokens, outputs, inputs, _linear)
        yield _product("backward", tokens, inputs, outputs, _plain)
        yield _product("backward", outputs, inputs, tokens, _transposed)


def _product(phase: str, m: int, n: int, k: int, make: Callable[[Operands, int, int, int], Any]) -> Probe:
    size = bytes_of((m, k), (k, n), (m, n)) + (bytes_of((n,)) if phase == "forward" else 0.0)
    work = Work(curve=f"matmul.{phase}", dims=(m, n, k), flops=2.0 * m * n * k, bytes=size)
    return Probe(work, lambda o: make(o, m, n, k), size)


def _linear(o: Operands, m: int, n: int, k: int) -> Callable[[], object]:
    bias, x, weight = o(n), o(m, k), o(n, k).t()
    return lambda: torch.addmm(bias, x, weight)


def _plain(o: Operands, m: int, n: int, k: int) -> Callable[[], object]:
    grad, weight = o(m, k), o(k, n)
    return lambda: torch.mm(grad, weight)


def _transposed(o: Operands, m: int, n: int, k: int) -> Callable[[], object]:
    grad, x = o(k, m).t(), o(k, n)
    return lambda: torch.mm(grad, x)


def _batched() -> Iterator[Probe]:
    for batch, m, n, k in halton(20, (4, 200), (16, 400), (16, 400), (16, 200)):
        while 2.0 * batch * m * n * k > _MOST_FLOPS / 4:
            batch = max(2, batch // 2)
            m = max(8, m // 2)
        size = bytes_of((batch, m, k), (batch, k, n), (batch, m, n))
        work = Work(curve="matmul.batched", dims=(batch, m, n, k), flops=2.0 * batch * m * n * k, bytes=size)

        def make(o: Operands, batch: int = batch, m: int = m, n: int = n, k: int = k) -> Callable[[], object]:
            a, b = o(batch, m, k), o(batch, k, n)
            return lambda: torch.bmm(a, b)

        yield Probe(work, make, size)


def _convolutions() -> Iterator[Probe]:
    kernels, strides = (3, 1, 3, 1, 3, 5, 1), (1, 1, 2, 1, 1)
    for n, (batch, channels, wider, side) in enumerate(halton(84, (3, 40), (8, 300), (1 / 7, 7), (6, 56))):
        out = max(8, round(channels * wider / 4) * 4)
        yield from _convolution(batch, channels, out, 1, kernels[n % 7], side, strides[n % 5])
    for n, (batch, out, side) in enumerate(halton(10, (4, 40), (8, 100), (16, 56))):
        yield from _convolution(batch, 3 if n % 4 else 1, out, 1, 7 if n % 3 == 2 else 3, side, strides[n % 5])
    for n, (batch, channels, side) in enumerate(halton(36, (3, 40), (16, 480), (6, 56))):
        yield from _convolution(batch, channels, channels, channels, 5 if n % 6 == 3 else 3, side, strides[n % 5])
    for n, (batch, channels, side) in enumerate(halton(6, (4, 32), (64, 256), (8, 32))):
        channels = channels // 16 * 16
        yield from _convolution(batch, channels, channels, 2 << n % 4, 3, side, 1)


def _convolution(
    batch: int, channels: int, out: int, groups: int, kernel: int, side: int, stride: int
) -> Iterator[Probe]:
    padding = kernel // 2
    to = (side + 2 * padding - kernel) // stride + 1
    inside = channels // groups
    once = 2.0 * to * to * out * inside * kernel * kernel
    most = min(_MOST_FLOPS / 2 / once, _MOST_NUMBERS / (max(channels, out) * side * side))
    batch = max(1, min(batch, int(most)))
    x, weight, y = (batch, channels, side, side), (out, inside, kernel, kernel), (batch, out, to, to)
    dims = (batch, inside, out // groups, groups, kernel * kernel, to * to, side * side / (to * to))
    flops = batch * once * blocked(dims)
    kind = ".depthwise" if groups > 1 and groups == channels else ""

    def forward(o: Operands) -> Callable[[], object]:
        image, filters = o(*x), o(*weight)
        return lambda: torch.conv2d(image, filters, None, stride, padding, 1, groups)

    def backward(o: Operands, both: bool) -> Callable[[], object]:
        grad, image, filters = o(*y), o(*x), o(*weight)
        sizes = [stride, stride], [padding, padding], [1, 1], False, [0, 0], groups, [both, True, False]
        return lambda: aten.convolution_backward(grad, image, filters, None, *sizes)

    size = bytes_of(x, weight, y)
    yield Probe(Work(curve=f"conv.forward{kind}", dims=dims, flops=flops, bytes=size), forward, size)
    if inside <= 3 and groups == 1:
        yield Probe(
            Work(curve=f"conv.weight{kind}", dims=dims, flops=flops, bytes=size), lambda o: backward(o, False), size
        )
    else:
        work = Work(curve=f"conv.backward{kind}", dims=dims, flops=2 * flops, bytes=2 * size)
        yield Probe(work, lambda o: backward(o, True), 2 * size)


def _attentions() -> Iterator[Probe]:
    for batch, heads, length, width in halton(16, (2, 16), (2, 12), (24, 400), (16, 96)):
        while batch * heads * length * length * width > 6e7:
            batch = max(1, batch - 1) if batch > 1 else 1
            length = max(24, length * 3 // 4 // 8 * 8)
        for causal in (False, True):
            yield from _attention(batch, heads, length, width, causal)


def _attention(batch: int, heads: int, length: int, width: int, causal: bool) -> Iterator[Probe]:
    pairs = batch * heads * (length * (length + 1) / 2 if causal else length * length)
    dims = (batch * heads, length, length, width)
    kind = ".causal" if causal else ""
    one, sums = bytes_of((batch, heads, length, width)), bytes_of((batch, heads, length))

    def operands(o: Operands) -> list[Any]:
        return [o(batch, length, heads, width).transpose(1, 2) for _ in range(3)]

    def forward(o: Operands) -> Callable[[], object]:
        q, k, v = operands(o)
        return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)

    def backward(o: Operands) -> Callable[[], object]:
        q, k, v = operands(o)
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        grad = o(batch, length, heads, width).transpose(1, 2)
        run = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return lambda: run(grad, q, k, v, out, logsumexp, 0.0, causal)

    work = Work(curve=f"attention.forward{kind}", dims=dims, flops=4.0 * pairs * width, bytes=4 * one + sums)
    yield Probe(work, forward, work.bytes)
    work = Work(curve=f"attention.backward{kind}", dims=dims, flops=10.0 * pairs * width, bytes=8 * one + sums)
    yield Probe(work, backward, work.bytes)


def _recurrent() -> Iterator[Probe]:
    """One layer of an LSTM, which oneDNN computes as a whole; in other layers each product is a separate operation."""
    for batch, steps, inputs, hidden in halton(20, (4, 64), (6, 80), (32, 400), (40, 400)):
        once = 8.0 * batch * hidden * (inputs + hidden)
        steps = max(4, min(steps, int(_MOST_FLOPS / 2 / once)))
        yield from _recurrence(batch, steps, inputs, hidden)


def _recurrence(batch: int, steps: int, inputs: int, hidden: int) -> Iterator[Probe]:
    tokens = batch * steps
    flops = tokens * (8.0 * hidden * (inputs + hidden) + 10.0 * hidden)
    size = bytes_of((tokens, inputs), (tokens, hidden), (4 * hidden, inputs + hidden))

    def output(o: Operands) -> tuple[Any, Callable[[], Any]]:
        shapes = ((4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
        # Small weights keep the results of many repetitions in range.
        weights = [o(*shape).mul(0.01).requires_grad_() for shape in shapes]
        x = o(steps, batch, inputs).clone().requires_grad_()
        zeros = torch.zeros(1, batch, hidden)

        def forward() -> Any:
            with torch.enable_grad():
                return torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, True, False, False)[0]

        return [x, *weights], forward

    def backward(o: Operands) -> Callable[[], object]:
        wanted, forward = output(o)
        found = forward()
        grad = o(*found.shape)
        return lambda: torch.autograd.grad(found, wanted, grad, retain_graph=True)

    dims = (batch, steps, inputs, hidden)
    yield Probe(Work(curve="mkldnn_rnn_layer", dims=dims, flops=flops, bytes=0.0), lambda o: output(o)[1], size)
    work = Work(curve="mkldnn_rnn_layer_backward", dims=dims, flops=2 * flops, bytes=0.0)
    yield Probe(work, backward, 2 * size)
