# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
"""Probes of memory-bound operations: elementwise work, norms, softmax, sums, copies, lookups, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from stoker.perf.machine.operands import Operands, Probe, halton
from stoker.perf.machine.rates import Work

aten: Any = torch.ops.aten
Run = Callable[..., object]

MANY = (1, 900, 7_000, 28_000, 70_000, 260_000, 1_000_000, 3_500_000)
FEW = (900, 28_000, 70_000, 300_000, 2_000_000)
_TINY = 1e-9
"""Factor of in-place additions, so that numbers stay in range."""

ELEMENTWISE: dict[str, tuple[int, Run]] = {
    "add": (2, torch.add), "mul": (2, torch.mul), "sub": (2, torch.sub), "div": (1, lambda x: x / 3.0),
    "relu": (1, torch.relu), "gelu": (1, torch.nn.functional.gelu), "silu": (1, torch.nn.functional.silu),
    "sigmoid": (1, torch.sigmoid), "tanh": (1, torch.tanh), "exp": (1, torch.exp), "sqrt": (1, torch.sqrt),
    "pow": (1, lambda x: x**2), "neg": (1, torch.neg), "hardtanh": (1, torch.nn.functional.relu6),
    "hardswish": (1, torch.nn.functional.hardswish), "clone": (1, torch.clone), "fill": (0, lambda x: x.fill_(0.0)),
    "zeros": (0, lambda x: torch.zeros(x.numel())), "rsqrt": (1, torch.rsqrt), "log": (1, torch.log),
    "leaky_relu": (1, torch.nn.functional.leaky_relu), "elu": (1, torch.nn.functional.elu),
    "threshold_backward": (2, lambda g, x: aten.threshold_backward(g, x, 0.0)),
    "gelu_backward": (2, lambda g, x: aten.gelu_backward(g, x)),
    "silu_backward": (2, lambda g, x: aten.silu_backward(g, x)),
    "sigmoid_backward": (2, lambda g, x: aten.sigmoid_backward(g, x)),
    "tanh_backward": (2, lambda g, x: aten.tanh_backward(g, x)),
    "hardtanh_backward": (2, lambda g, x: aten.hardtanh_backward(g, x, 0.0, 6.0)),
    "hardswish_backward": (2, lambda g, x: aten.hardswish_backward(g, x)),
}  # fmt: skip
"""How many tensors are read, and the function of them."""

OPTIMIZER: dict[str, tuple[int, Run]] = {
    "add.optimizer": (2, lambda x, y: x.add_(y, alpha=_TINY)),
    "mul.optimizer": (1, lambda x: x.mul_(1.0)),
    "lerp.optimizer": (2, lambda x, y: x.lerp_(y, _TINY)),
    "addcmul.optimizer": (3, lambda x, y, z: x.addcmul_(y, z, value=_TINY)),
    "addcdiv.optimizer": (3, lambda x, y, z: x.addcdiv_(y, z, value=_TINY)),
    "sqrt.optimizer": (1, torch.sqrt),
    "div.optimizer": (1, lambda x: x / 3.0),
}
"""In place like torch.optim, which writes only what it reads."""


def memory_probes() -> Iterator[Probe]:
    """All probes of this module."""
    for name, (reads, run) in ELEMENTWISE.items():
        for size in MANY if name in ("add", "relu", "threshold_backward", "clone", "fill") else FEW:
            yield _flat(name, size, reads, run)
    for name, (reads, run) in OPTIMIZER.items():
        for size in MANY:
            yield _flat(name, size, reads, run)
    for size in MANY:
        yield _flat("add.optimizer", size, 1, lambda x: x.add_(_TINY))
    yield from _norms()
    yield from _softmaxes()
    yield from _sums()
    yield from _copies()
    yield from _pools()
    yield from _lookups()


def _probe(name: str, dims: tuple[float, ...], tensors: float, make: Callable[[Operands], Run]) -> Probe:
    """A probe that reads and writes ``tensors`` times the first size, in elements of four bytes."""
    size = 4.0 * dims[0] * tensors
    return Probe(Work(curve=name, dims=dims, flops=0.0, bytes=size), make, size)


def _flat(name: str, size: int, reads: int, run: Run) -> Probe:
    tensors = reads + 1.0

    def make(o: Operands) -> Run:
        given = [(o if n else o.own)(size) for n in range(max(1, reads))]
        return lambda: run(*given)

    return _probe(name, (size, tensors), tensors, make)


def _norms() -> Iterator[Probe]:
    for rows, width in halton(9, (4, 6000), (48, 1000)):
        size = rows * width

        def layer(o: Operands, rows: int = rows, width: int = width) -> Run:
            x, weight, bias = o(rows, width), o(width), o(width)
            return lambda: torch.native_layer_norm(x, [width], weight, bias, 1e-5)

        def layer_backward(o: Operands, rows: int = rows, width: int = width) -> Run:
            x, grad, weight, bias = o(rows, width), o(rows, width), o(width), o(width)
            _, mean, spread = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
            run = aten.native_layer_norm_backward
            return lambda: run(grad, x, [width], mean, spread, weight, bias, [True, True, True])

        yield _probe("native_layer_norm", (size, 2), 2, layer)
        yield _probe("native_layer_norm_backward", (size, 5), 5, layer_backward)
    for batch, channels, side in halton(20, (3, 40), (12, 320), (4, 56)):
        batch = max(1, min(batch, 3_500_000 // (channels * side * side)))
        shape = (batch, channels, side, side)
        size = batch * channels * side * side

        def normal(o: Operands, shape: tuple[int, ...] = shape) -> Run:
            x, rest = o(*shape), [o(shape[1]) for _ in range(4)]
            return lambda: torch.native_batch_norm(x, rest[0], rest[1], rest[2], rest[3], True, 0.1, 1e-5)

        def normal_backward(o: Operands, shape: tuple[int, ...] = shape) -> Run:
            x, grad, rest = o(*shape), o(*shape), [o(shape[1]) for _ in range(5)]
            run = aten.native_batch_norm_backward
            return lambda: run(grad, x, rest[0], rest[1], rest[2], rest[3], rest[4], True, 1e-5, [True, True, True])

        yield _probe("native_batch_norm", (size, 3), 3, normal)
        yield _probe("native_batch_norm_backward", (size, 5), 5, normal_backward)


def _softmaxes() -> Iterator[Probe]:
    for rows, width in halton(9, (12, 3000), (8, 3000)):
        while rows * width > 4_000_000:
            rows //= 2
        for name in ("_softmax", "_log_softmax"):
            forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward_data")

            def make(o: Operands, run: Any = forward, rows: int = rows, width: int = width) -> Run:
                x = o(rows, width)
                return lambda: run(x, 1, False)

            def make_backward(o: Operands, run: Any = backward, rows: int = rows, width: int = width) -> Run:
                grad, out = o(rows, width), o(rows, width)
                return lambda: run(grad, out, 1, torch.float32)

            yield _probe(name, (rows * width, 2), 2, make)
            yield _probe(f"{name}_backward_data", (rows * width, 3), 3, make_backward)


def _sums() -> Iterator[Probe]:
    """Sums over rows (gradients of biases), over positions (pooling by a mean), and of everything."""
    for rows, width in halton(12, (16, 3000), (8, 2400)):
        while rows * width > 4_000_000:
            rows //= 2

        def over_rows(o: Operands, rows: int = rows, width: int = width) -> Run:
            x = o(rows, width)
            return lambda: x.sum(0, keepdim=True)

        size = rows * width
        yield _probe("sum", (size, width), 1 + 1 / rows, over_rows)
    for batch, channels, side in halton(5, (4, 40), (16, 320), (4, 24)):

        def over_positions(o: Operands, shape: tuple[int, ...] = (batch, channels, side, side)) -> Run:
            x = o(*shape)
            return lambda: x.mean((2, 3))

        size = batch * channels * side * side
        yield _probe("mean", (size, batch * channels), 1 + 1 / side**2, over_positions)
    for size in FEW:

        def everything(o: Operands, size: int = size) -> Run:
            x = o(size)
            return lambda: x.sum()

        yield _probe("sum", (size, 1), 1 + 1 / size, everything)


def _copies() -> Iterator[Probe]:
    for size in FEW:

        def cat(o: Operands, size: int = size) -> Run:
            parts = [o(max(1, size // 60), 20) for _ in range(3)]
            return lambda: torch.cat(parts, 1)

        def turn(o: Operands, size: int = size) -> Run:
            x = o(max(1, size // 320), 8, 40).transpose(0, 1)
            return lambda: x.clone(memory_format=torch.contiguous_format)

        def spread(o: Operands, size: int = size) -> Run:
            grad = o(max(1, size // 3))
            return lambda: aten.select_backward(grad, [3, grad.numel()], 0, 1)

        def scores(o: Operands, size: int = size) -> Run:
            rows, width = max(1, size // 100), 100
            grad, x, target = torch.tensor(1.0), o(rows, width), o.below(width, rows)
            total = torch.tensor(float(rows))
            return lambda: aten.nll_loss_backward(grad, x, target, None, 1, -100, total)

        yield _probe("cat", (size, 2), 2, cat)
        yield _probe("clone", (size, 2), 2, turn)
        yield _probe("select_backward", (size, 4 / 3), 4 / 3, spread)
        yield _probe("nll_loss_backward", (size, 1), 1, scores)


def _pools() -> Iterator[Probe]:
    for batch, channels, side in halton(6, (4, 40), (12, 200), (8, 56)):
        batch = max(1, min(batch, 3_500_000 // (channels * side * side)))
        shape = (batch, channels, side, side)
        half = (batch, channels, side // 2, side // 2)
        size = batch * channels * side * side

        def largest(o: Operands, shape: tuple[int, ...] = shape) -> Run:
            x = o(*shape)
            return lambda: aten.max_pool2d_with_indices(x, [2, 2], [2, 2])

        def largest_backward(o: Operands, shape: tuple[int, ...] = shape, half: tuple[int, ...] = half) -> Run:
            x, grad = o(*shape), o(*half)
            _, places = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            run = aten.max_pool2d_with_indices_backward
            return lambda: run(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

        # Indices have eight bytes.
        yield _probe("max_pool2d_with_indices", (size, 1.75), 1.75, largest)
        yield _probe("max_pool2d_with_indices_backward", (size, 2.75), 2.75, largest_backward)


def _lookups() -> Iterator[Probe]:
    for count, width, rows in halton(28, (100, 12_000), (8, 260), (300, 90_000)):
        while rows * width > 3_000_000:
            rows = rows * 2 // 3
        while count * width > 1_000_000:
            count //= 2
        yield from _embedding(count, width, rows)
        yield from _bags(count, width, rows, 4 + count % 13)


def _embedding(count: int, width: int, rows: int) -> Iterator[Probe]:
    def forward(o: Operands) -> Run:
        table, found = o(rows, width), o.below(rows, count)
        return lambda: torch.embedding(table, found)

    def backward(o: Operands) -> Run:
        grad, found = o(count, width), o.below(rows, count)
        return lambda: aten.embedding_dense_backward(grad, found, rows, -1, False)

    def update(o: Operands) -> Run:
        table, found = o.own(rows, width), o.below(rows, 1, count)
        grad = torch.sparse_coo_tensor(found, o(count, width), (rows, width), check_invariants=False)
        return lambda: table.add_(grad, alpha=_TINY)

    dims, moved, table = (count, width, rows), 4.0 * count * width, 4.0 * rows * width
    yield Probe(
        Work(curve="embedding", dims=dims, flops=0.0, rows=count, bytes=2 * moved + 8 * count), forward, moved + table
    )
    # What an optimizer does with a sparse gradient: numbers of rows have eight bytes, and are moved three times.
    ratio = 3 + 6 / width
    work = Work(curve="add.sparse", dims=(count * width, ratio), flops=0.0, bytes=4.0 * count * width * ratio)
    yield Probe(work, update, 2 * moved + table)
    size = 3 * moved + table + 8 * count
    work = Work(curve="embedding_dense_backward", dims=dims, flops=0.0, rows=count, bytes=size)
    yield Probe(work, backward, moved + table)


def _bags(count: int, width: int, rows: int, bag: int) -> Iterator[Probe]:
    """Sums over bags of equal size."""
    bags = max(1, count // bag)
    count = bags * bag

    def forward_of(o: Operands, sparse: bool) -> tuple[Tensor, Tensor, Run]:
        table, found = o(rows, width), o.below(rows, count)
        starts = torch.arange(0, count, bag)
        return found, starts, lambda: aten._embedding_bag(table, found, starts, False, 0, sparse)

    def backward(o: Operands, sparse: bool) -> Run:
        found, starts, forward = forward_of(o, sparse)
        result: Any = forward()
        _, offset2bag, bag_size, maximum = result
        grad = o(bags, width)
        run = aten._embedding_bag_backward
        return lambda: run(
            grad, found, starts, offset2bag, bag_size, maximum, rows, False, 0, sparse, None, -1
        )  # fmt: skip

    dims, moved, table = (count, width, rows), 4.0 * count * width, 4.0 * rows * width
    size = moved + 8 * count + 8 * bags + 4.0 * bags * width
    work = Work(curve="_embedding_bag", dims=dims, flops=0.0, rows=count, bytes=size)
    yield Probe(work, lambda o: forward_of(o, False)[2], moved + table)
    work = Work(
        curve="_embedding_bag_backward.dense", dims=dims, flops=0.0, rows=count, bytes=3 * moved + table + 8 * count
    )
    yield Probe(work, lambda o: backward(o, False), moved + table)
    work = Work(curve="_embedding_bag_backward.sparse", dims=dims, flops=0.0, rows=count, bytes=2 * moved + 16 * count)
    yield Probe(work, lambda o: backward(o, True), moved)
