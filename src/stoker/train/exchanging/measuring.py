# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed and hooks of tensors are typed in part)
"""What is measured of a program before a plan: its layers' rows and times, the exchange of its buckets, its products.

All of it is seen from plain DDP's own steps, so that they stay what they are, bit for bit. Only the sums of small
tensors, which show a link's latency, and a few products are made on purpose, between two steps.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from stoker.core.host import memory_bytes
from stoker.records.exchange import MeasuredExchange, MeasuredLayer
from stoker.train.exchanging.checking import is_product
from stoker.train.exchanging.factors import FactoredLayer
from stoker.train.exchanging.rows import filled_rows

_SMALL_BYTES = (4_096, 65_536)
_LARGE_BYTES = (1 << 20, 16 << 20)
"""The links of GPUs carry them in milliseconds."""
_SMALL_TIMES = 3
"""With 8 ranks 0.4 MB are sent of each rank."""
_PRODUCT_S = 0.03
_COPIED = 1 << 22
_LARGEST_PRODUCTS = 3

_ELSEWHERE = "it is not called as a module, or its weights are used elsewhere"
_OTHER = "its gradient holds more than one product"
_NEITHER = "it is neither a product nor a table"


class BackwardClock:
    """When each weight's gradient arrives, pass by pass."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._arrived: dict[str, float] = {}
        self._events: dict[str, torch.cuda.Event] = {}
        self._between: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        """On a GPU gradients arrive when their kernels are through, and not when these are started."""
        self._found: dict[str, list[float]] = {}
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(self._stamp(name)) for name, parameter in parameters.items()
        ]

    def _stamp(self, name: str) -> Callable[[torch.Tensor], None]:
        def stamp(gradient: torch.Tensor) -> None:
            if gradient.is_cuda:
                self._events[name] = torch.cuda.Event(enable_timing=True)
                self._events[name].record()
            else:
                self._arrived[name] = time.perf_counter()

        return stamp

    def end_pass(self) -> None:
        """The gradients of a pass are exchanged."""
        before: float | None = None
        for name, at in sorted(self._arrived.items(), key=lambda item: item[1]):
            if before is not None:
                self._found.setdefault(name, []).append(at - before)
            before = at
        self._arrived.clear()
        events = list(self._events.items())
        self._between += [(name, last, event) for (_, last), (name, event) in itertools.pairwise(events)]
        self._events.clear()

    def seconds(self, name: str) -> float:
        """From the gradient before it to a weight's own, median of the passes; 0 where that is not known."""
        between, self._between = self._between, []
        for other, last, event in between:
            event.synchronize()
            self._found.setdefault(other, []).append(last.elapsed_time(event) / 1e3)
        found = self._found.get(name)
        return statistics.median(found) if found else 0.0

    def remove(self) -> None:
        """Measures no more."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


class BusyPeriods:
    """Bytes and seconds of sums, from how they overlap. Pure: time is an argument, on any clock.

    A backend carries several sums at once, which share the links. How long one of them took says little then: of two
    that begin and end together the second would seem to take no time. So a period counts as a whole, from its first
    sum's beginning until none is under way, with the bytes of all of them.
    """

    def __init__(self) -> None:
        self._running = 0
        self._bytes = 0
        self._begun_s = 0.0
        self._found: dict[int, float] = {}

    def begin(self, size: int, now_s: float) -> None:
        """A sum of so many bytes begins."""
        if not self._running:
            self._begun_s, self._bytes = now_s, 0
        self._running += 1
        self._bytes += size

    def end(self, now_s: float) -> None:
        """One of them ends."""
        self._running -= 1
        if not self._running:
            seconds = max(0.0, now_s - self._begun_s)
            self._found[self._bytes] = min(seconds, self._found.get(self._bytes, seconds))

    def sums(self) -> list[tuple[float, float]]:
        """Bytes of periods, and the shortest seconds of those that have as many."""
        return [(float(size), seconds) for size, seconds in sorted(self._found.items())]


class SumClock:
    """How long the backend takes for a program's own buckets, whose ends its threads tell."""

    def __init__(self) -> None:
        self._periods = BusyPeriods()
        self._lock = threading.Lock()
        self.ended_s = 0.0
        """When the last one so far has ended."""

    def started(self, size: int) -> Callable[[], None]:
        """A sum of so many bytes begins; what is returned is called at its end."""
        with self._lock:
            self._periods.begin(size, time.perf_counter())

        def ended() -> None:
            now_s = time.perf_counter()
            with self._lock:
                self._periods.end(now_s)
                self.ended_s = now_s

        return ended

    def sums(self) -> list[tuple[float, float]]:
        """Bytes, and the shortest seconds."""
        with self._lock:
            return self._periods.sums()


class FormProof:
    """Whether layers' gradients are what their form says, in steps that are exchanged as ever."""

    def __init__(
        self, factored: Mapping[str, FactoredLayer], tables: Mapping[str, nn.Parameter],
        draw: Callable[[int, torch.device], torch.Tensor],
    ) -> None:  # fmt: skip
        self._factored, self._tables, self._draw = factored, tables, draw
        self.rows: dict[str, int] = {}
        """Most rows of each layer in a step."""
        self.types: dict[str, torch.dtype] = {}
        self.why_not: dict[str, str] = {}
        self._seen: set[str] = set()

    def look(self, name: str, gradient: torch.Tensor) -> None:
        """Looks at one layer's own gradient, before it is exchanged.

        Args:
            name: of the weight.
            gradient: M x N.
        """
        if name in self._tables:
            rows = int(filled_rows(gradient).shape[0])
            self._note(name, rows, gradient.dtype)
        elif name in self._factored:
            taken = self._factored[name].take()
            if taken is None:
                if bool(gradient.any()):
                    self.why_not[name] = self._factored[name].why_not or _ELSEWHERE
                return
            left, right = taken
            self._note(name, left.shape[0], left.dtype)
            if not is_product(gradient, left, right, self._draw(gradient.shape[1], gradient.device)):
                self.why_not[name] = _OTHER

    def _note(self, name: str, rows: int, kind: torch.dtype) -> None:
        self.rows[name] = max(rows, self.rows.get(name, 0))
        self.types[name] = torch.promote_types(kind, self.types.get(name, kind))


def tables_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights of a model that are looked up and have dense gradients, by name; none that several modules use."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return {
        f"{path}.weight" if path else "weight": cast("nn.Parameter", module.weight)
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and not module.sparse and uses[id(module.weight)] == 1
    }


def measured_layers(
    model: nn.Module, exchanged: Mapping[str, nn.Parameter], factored: Mapping[str, FactoredLayer],
    tables: Mapping[str, nn.Parameter], proof: FormProof, clock: BackwardClock,
) -> list[MeasuredLayer]:  # fmt: skip
    """The layers of a model in its order, as far as they exchange something."""
    found: list[MeasuredLayer] = []
    taken: set[str] = set()
    names = {id(parameter): name for name, parameter in exchanged.items()}
    for path, module in model.named_modules():
        own = [names[id(each)] for each in module.parameters(recurse=False) if id(each) in names]
        own = [name for name in own if name not in taken]
        taken.update(own)
        if not own:
            continue
        special = next((name for name in own if name in factored or name in tables), "")
        rows = proof.rows.get(special, 0)
        why_not = proof.why_not.get(special, "" if rows else _ELSEWHERE) if special else _NEITHER
        size = float(sum(exchanged[name].nbytes for name in own))
        layer = MeasuredLayer(
            module=path, weight="" if why_not else special, bytes=size, why_not=why_not, rows=rows,
            backward_s=sum(clock.seconds(name) for name in own),
            factor_type=str(proof.types.get(special, torch.float32)).removeprefix("torch."),
        )  # fmt: skip
        if not why_not:
            layer = _formed(layer, exchanged[special], factored.get(special))
        found.append(layer)
    return found


def _formed(layer: MeasuredLayer, weight: nn.Parameter, factors: FactoredLayer | None) -> MeasuredLayer:
    from msgspec.structs import replace

    if factors is None:
        return replace(layer, table_rows=weight.shape[0], width_out=weight.shape[1], product_bytes=0.0)
    inner, outer = factors.widths
    return replace(layer, width_in=inner, width_out=outer, product_bytes=float(weight.nbytes))


def nothing(name: str, rank: int, ranks: int, device: torch.device) -> MeasuredExchange:
    """What a rank says that could not measure."""
    return MeasuredExchange(
        name=name, rank=rank, ranks=ranks, backend="", device=device.type, step_s=0.0, layers=[], sums=[], products=[],
        byte_s=0.0, memory_bytes=0.0,
    )  # fmt: skip


def tells_ends(group: Any) -> bool:
    """Whether a future of the group's backend is done when the sum is: gloo's is, NCCL's is done once it has begun."""
    return "gloo" in str(dist.get_backend(group))


def timed_sums(group: Any, device: torch.device) -> list[tuple[float, float]]:
    """Bytes and seconds of small all-reduces, and of large ones where the program's own cannot be timed; collective."""
    found: list[tuple[float, float]] = []
    sizes = _SMALL_BYTES if tells_ends(group) else _SMALL_BYTES + _LARGE_BYTES
    for size in sizes:
        data = torch.zeros(size // 4, device=device)
        for _ in range(_SMALL_TIMES):
            dist.barrier(group=group)
            begun = time.perf_counter()
            dist.all_reduce(data, group=group)
            _settled(device)
            found.append((float(size), time.perf_counter() - begun))
    return [(size, min(s for other, s in found if other == size)) for size in map(float, sizes)]


def timed_products(
    layers: Sequence[MeasuredLayer], ranks: int, device: torch.device
) -> list[tuple[int, int, int, float]]:
    """Seconds of the largest joint products that a plan could ask for: sizes m, n, k.

    All ranks multiply at the same time, as they will: ranks of one host share its cores.
    """
    products = sorted(
        {(each.width_in, each.width_out, ranks * each.rows) for each in layers if each.product_bytes and each.weight},
        key=lambda sizes: -sizes[0] * sizes[1] * sizes[2],
    )[:_LARGEST_PRODUCTS]
    found: list[tuple[int, int, int, float]] = []
    for inner, outer, rows in products:
        # Fewer rows than the product has, if it is long: its seconds grow with them.
        tried = max(1, min(rows, int(5e8 / (inner * outer)) or 1))
        left, right = torch.ones(tried, outer, device=device), torch.ones(tried, inner, device=device)
        # In place, as the hook multiplies: fresh memory would take a good part of the time.
        target = torch.empty(outer, inner, device=device)
        torch.mm(left.t(), right, out=target)
        times: list[float] = []
        until = time.perf_counter() + _PRODUCT_S
        while len(times) < 2 or (time.perf_counter() < until and len(times) < 5):
            _settled(device)
            begun = time.perf_counter()
            torch.mm(left.t(), right, out=target)
            _settled(device)
            times.append(time.perf_counter() - begun)
        found.append((inner, outer, rows, statistics.median(times) * rows / tried))
    return found


def copied_byte_s(device: torch.device) -> float:
    """Seconds to read or write a byte."""
    source = torch.zeros(_COPIED // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times: list[float] = []
    for _ in range(3):
        _settled(device)
        begun = time.perf_counter()
        target.copy_(source)
        _settled(device)
        times.append(time.perf_counter() - begun)
    return min(times) / (2 * _COPIED)


def free_bytes(device: torch.device) -> float:
    """Memory that is free where gradients are; 1 GB where that is not known."""
    try:
        return float(memory_bytes()[0]) if device.type == "cpu" else float(torch.cuda.mem_get_info(device)[0])
    except (RuntimeError, OSError, ValueError):
        return 1e9


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
