"""Late-multiply over links of 200 Mbit/s among 2 to 8 ranks, in network namespaces: bytes at the interface, seconds.

Ranks are at one switch, and share this machine's cores. So the gather is also timed alone, while nobody multiplies.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.nodes import Machine, NoNamespaces, switched
from benchmarks.support.ranks import on_ranks
from stoker.perf.communication.methods import late_bytes, ring_bytes
from stoker.run.exchanging.serving import planner
from stoker.train.exchanging.calling import exchange, serve
from stoker.train.exchanging.checking import is_product
from stoker.train.exchanging.factors import factored_layers

BAR = Bar(
    "comm_late",
    "2048 x 2048 weights, 32 rows, 2 to 8 ranks at 200 Mbit/s: bytes and seconds of the closed form, trials",
    headline=("bytes", "wire", "faster", "kept", "check"),
)
_WIDTH, _ROWS = 2048, 32
_MANY_ROWS = 128
_MEGABITS, _FAST_MEGABITS = 200.0, 10_000.0
_CARRIED = 0.95
"""Share of a link's rate that payload gets: the plan's own figure."""
_LIMIT_S = 240.0


@dataclass(frozen=True)
class Timed:
    """Steps of one rank.

    Attributes:
        step_s: median. sent: bytes that the interface sent in a step, without headers.
        wire_s: of the gather of factors by itself.
        gain: of the trial; None without one. predicted_s: of a step, by the plan. kept: whether the trial kept it.
        by_late: whether the plan named late-multiply.
    """

    step_s: float
    sent: float = 0.0
    wire_s: float = 0.0
    gain: float | None = None
    predicted_s: float = 0.0
    kept: bool = False
    by_late: bool = False


def _on(nodes: Sequence[Machine], work: Callable[[int, Any], Timed], ranks: int) -> Timed:
    """What rank 0 finds with the first ranks; the others wait."""

    def in_group(rank: int) -> Timed:
        group = dist.new_group(list(range(ranks)))
        found = work(rank, group) if rank < ranks else Timed(0.0)
        dist.barrier()
        return found

    return on_ranks(
        len(nodes), in_group, timeout_s=_LIMIT_S, enter=[node.enter for node in nodes],
        environ=[{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes],
    )[0]  # fmt: skip


def _module(group: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.ReLU())
    return DistributedDataParallel(model, bucket_cap_mb=100, process_group=group)


def _steps(ddp: DistributedDataParallel, count: int, rows: int = _ROWS) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        ddp(torch.randn(rows, _WIDTH)).square().mean().backward()
        ddp.zero_grad(set_to_none=False)
        times.append(time.perf_counter() - begun)
    return times


def _given(
    nodes: Sequence[Machine], plan: dict[str, str] | None, steps: int, rows: int = _ROWS
) -> Callable[[int, Any], Timed]:
    def work(rank: int, group: Any) -> Timed:
        ddp = _module(group)
        if plan is not None:
            exchange(ddp, plan)
        _steps(ddp, 7, rows)
        dist.barrier(group=group)
        before = nodes[rank].sent_payload
        times = _steps(ddp, steps, rows)
        dist.barrier(group=group)
        sent = (nodes[rank].sent_payload - before) / steps
        return Timed(statistics.median(times), sent, wire_s=_gathered_s(group, steps))

    return work


def _gathered_s(group: Any, times: int) -> float:
    """Seconds of the gather alone: no rank multiplies."""
    own = torch.ones(_ROWS * 2 * _WIDTH)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    found: list[float] = []
    for _ in range(times):
        dist.barrier(group=group)
        begun = time.perf_counter()
        dist.all_gather(parts, own, group=group)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def _tried(rows: int) -> Callable[[int, Any], Timed]:
    def work(_: int, group: Any) -> Timed:
        ddp = _module(group)
        replica = serve(ddp, planner())
        _steps(ddp, 72, rows)
        record = replica.record()
        assert record is not None
        report = record.agreed.report
        return Timed(
            record.planned_step_s, record.planned_bytes, gain=record.gain, kept=record.kept,
            predicted_s=report.after.step_s.likely if report else 0.0,
            by_late=any(each.method == "late" for each in record.agreed.methods),
        )  # fmt: skip

    return work


def _check_shares(times: int) -> list[float]:
    """Capture and check of the factors over the layer's backward pass, round by round: processor time of one thread."""
    torch.set_num_threads(1)
    module = nn.Linear(_WIDTH, _WIDTH, bias=False)
    ((_, layer),) = factored_layers(nn.Sequential(module))
    layer.enabled = True
    x, drawn = torch.randn(_ROWS, _WIDTH, requires_grad=True), torch.Generator().manual_seed(0)
    arrived = torch.randn(_ROWS, _WIDTH)
    found: list[float] = []
    for _ in range(times + 1):
        out = module(x)
        begun = time.process_time()
        out.backward(arrived)
        backward_s = time.process_time() - begun
        gradient = module.weight.grad
        assert gradient is not None
        begun = time.process_time()
        layer.note(x, arrived)
        taken = layer.take()
        assert taken is not None
        assert is_product(gradient, *taken, torch.randn(_WIDTH, generator=drawn))
        found.append((time.process_time() - begun) / backward_s)
        module.weight.grad = x.grad = None
    return found[1:]


def measure(options: Options) -> Report:
    """Bytes and seconds with and without; what the trial made of it."""
    report = Report()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    steps = options.pick(12, 6, 1)
    shares = _check_shares(options.pick(41, 21, 3))
    if options.size == "tiny":
        report.figure("check", statistics.median(shares))
    else:
        report.at_most("check", "capture and check of factors / the layer's backward pass", shares, 0.15)
    counts = options.pick((2, 4, 8), (2, 4), (2,))
    rows: list[list[str]] = []
    bytes_, wires, faster = [], [], []
    try:
        with switched([_MEGABITS] * max(counts)) as nodes:
            for ranks in counts:
                plain = _on(nodes, _given(nodes, None, steps), ranks)
                late = _on(nodes, _given(nodes, {"0": "late"}, steps), ranks)
                closed = late_bytes(ranks, _ROWS, 2 * _WIDTH)
                bytes_.append(late.sent / closed)
                wires.append(late.wire_s / (closed / (_MEGABITS * 1e6 / 8 * _CARRIED)))
                faster.append(plain.step_s / late.step_s)
                rows.append([
                    f"{ranks} ranks", f"{plain.sent / 1e6:.2f} MB", f"{1e3 * plain.step_s:.0f} ms",
                    f"{late.sent / 1e6:.3f} MB", f"{1e3 * late.step_s:.0f} ms", f"{1e3 * late.wire_s:.1f} ms",
                ])  # fmt: skip
                report.figure(f"plain_bytes_{ranks}", plain.sent / ring_bytes(ranks, 4.0 * _WIDTH * _WIDTH))
            report.at_most("bytes", "bytes of late-multiply / closed form, the worst", [max(bytes_)], 1.01, 4)
            if options.size != "tiny":
                apart = max(abs(each - 1.0) for each in wires)
                report.at_most("wire", "its gather: apart from the closed form's seconds, the worst", [apart], 0.10)
            report.at_least("faster", "step of plain DDP / with late-multiply, 2 ranks", [faster[0]], 4.0)
            if options.size != "tiny":
                tried = _on(nodes, _tried(_ROWS), 2)
                report.at_least("kept", "the trial of the run's own plan keeps it", [float(tried.kept)], 1.0)
                report.figure("gain", tried.gain or 0.0)
                apart = abs(tried.predicted_s / tried.step_s - 1.0) if tried.step_s else 1.0
                report.at_most("predicted", "predicted step: apart from the measured one", [apart], 0.15)
        if options.size != "tiny":
            # 128 rows of 4 ranks: a quarter of the bytes, at a rate where the joint product takes longer than these.
            with switched([_FAST_MEGABITS] * 4) as nodes:
                plain, late = (_on(nodes, _given(nodes, plan, steps, _MANY_ROWS), 4) for plan in (None, {"0": "late"}))
                lost = _on(nodes, _tried(_MANY_ROWS), 4)
                apart = late.step_s / plain.step_s
                label = f"kept where 4x fewer bytes give {apart:.2f}x plain's step"
                report.at_most("lost", label, [float(lost.by_late and lost.kept and apart > 1)], 0.0)
    except NoNamespaces as error:
        report.skip(str(error))
        return report
    report.table(["", "plain", "step", "late-multiply", "step", "its gather"], rows)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
