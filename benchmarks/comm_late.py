"""Late-multiply over a link of 200 Mbit/s between two ranks, in network namespaces: bytes at the interface, seconds.

The first rank is on this side of the link, the second beyond it. Both share this machine's cores.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.nodes import Machine, NoNamespaces, machines
from benchmarks.support.ranks import on_ranks
from stoker.perf.communication.methods import late_bytes, ring_bytes
from stoker.run.exchanging.serving import planner
from stoker.train.exchanging.calling import exchange, serve
from stoker.train.exchanging.checking import is_product

BAR = Bar(
    "comm_late",
    "2048 x 2048 weights, 32 rows, 2 ranks at 200 Mbit/s: bytes of the closed form, a trial that keeps what pays",
    headline=("bytes", "faster", "kept"),
)
_WIDTH, _ROWS = 2048, 32
_NEW_NETWORK = 0x40000000
_PORT = 29_417


@dataclass(frozen=True)
class Timed:
    """Steps of one rank.

    Attributes:
        step_s: median. sent: bytes that the interface sent in a step. gain: of the trial; None without one.
    """

    step_s: float
    sent: float
    gain: float | None = None
    predicted_s: float = 0.0
    kept: bool = False


def _entering(machine: Machine) -> Callable[[], None]:
    def enter() -> None:
        with Path(f"/var/run/netns/{machine.name}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"setns of {machine.name}")

    return enter


def _both(machine: Machine, work: Callable[[int], Timed]) -> Timed:
    other = machine.device[:-1] + "b"
    host = machine.address.rpartition(".")[0] + ".1"
    found = on_ranks(
        2, work, enter=(lambda: None, _entering(machine)), init_method=f"tcp://{host}:{_PORT}",
        environ=({"GLOO_SOCKET_IFNAME": machine.device}, {"GLOO_SOCKET_IFNAME": other}), timeout_s=240,
    )  # fmt: skip
    return found[0]


def _module() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.ReLU()), bucket_cap_mb=100)


def _steps(ddp: DistributedDataParallel, count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        ddp(torch.randn(_ROWS, _WIDTH)).square().mean().backward()
        ddp.zero_grad(set_to_none=False)
        times.append(time.perf_counter() - begun)
    return times


def _sent(device: str) -> int:
    path = Path(f"/sys/class/net/{device}/statistics/tx_bytes")
    return int(path.read_text()) if path.exists() else 0


def _given(machine: Machine, plan: dict[str, str] | None, steps: int) -> Callable[[int], Timed]:
    def work(rank: int) -> Timed:
        ddp = _module()
        if plan is not None:
            exchange(ddp, plan)
        _steps(ddp, 7)
        before = _sent(machine.device) if rank == 0 else 0
        times = _steps(ddp, steps)
        sent = (_sent(machine.device) - before) / steps if rank == 0 else 0.0
        return Timed(statistics.median(times), sent)

    return work


def _tried(rank: int) -> Timed:
    ddp = _module()
    replica = serve(ddp, planner())
    _steps(ddp, 72)
    record = replica.record()
    assert record is not None
    report = record.agreed.report
    return Timed(
        record.planned_step_s, record.planned_bytes, record.gain, report.after.step_s.likely if report else 0.0,
        record.kept,
    )  # fmt: skip


def _check_share() -> float:
    """Capture and check of the factors over the layer's backward pass, on one thread."""
    torch.set_num_threads(1)
    layer, x = nn.Linear(_WIDTH, _WIDTH, bias=False), torch.randn(_ROWS, _WIDTH, requires_grad=True)
    arrived, vector = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH)
    passes: list[float] = []
    checks: list[float] = []
    for _ in range(9):
        out = layer(x)
        begun = time.perf_counter()
        out.backward(arrived)
        passes.append(time.perf_counter() - begun)
        assert layer.weight.grad is not None
        begun = time.perf_counter()
        assert is_product(layer.weight.grad, arrived, x.detach(), vector)
        checks.append(time.perf_counter() - begun)
        layer.weight.grad = None
    return statistics.median(checks) / statistics.median(passes)


def measure(options: Options) -> Report:
    """Bytes and seconds with and without; what the trial made of it."""
    report = Report()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    steps = options.pick(12, 6, 1)
    report.figure("check", _check_share())
    try:
        with machines([200.0]) as (machine,):
            plain = _both(machine, _given(machine, None, steps))
            late = _both(machine, _given(machine, {"0": "late"}, steps))
            closed = late_bytes(2, _ROWS, 2 * _WIDTH)
            report.note(f"plain: {plain.sent / 1e6:.2f} MB and {1e3 * plain.step_s:.0f} ms a step")
            report.note(f"late-multiply: {late.sent / 1e6:.3f} MB and {1e3 * late.step_s:.0f} ms a step")
            report.figure("plain_bytes", plain.sent / ring_bytes(2, 4.0 * _WIDTH * _WIDTH))
            report.at_most("bytes", "bytes of late-multiply / closed form", [late.sent / closed], 1.01, 4)
            report.at_least("faster", "step of plain DDP / with late-multiply", [plain.step_s / late.step_s], 4.0)
            if options.size != "tiny":
                tried = _both(machine, _tried)
                report.at_least("kept", "the trial of the run's own plan keeps it", [float(tried.kept)], 1.0)
                report.figure("gain", tried.gain or 0.0)
                report.figure("predicted", tried.predicted_s / tried.step_s if tried.step_s else 0.0)
    except NoNamespaces as error:
        report.note(f"skipped: {error}")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
