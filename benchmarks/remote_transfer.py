"""A batch from the slot of another process into ours: by a gateway, and by a bare TLS pair that does nothing else."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, ratios, run
from benchmarks.support.ray_objects import ray_objects
from benchmarks.support.remote import Receiver, cpu_s, source
from stoker.wire.certificates import create_certificate
from stoker.wire.tls import between

BAR = Bar(
    "remote_transfer",
    "bytes from slot to slot by a gateway, of a bare TLS pair's; and the wait for a batch that has arrived",
    headline=("rate_of_bare", "rate_of_ray", "cpu_of_bare", "wait_2_mb", "wait_20_mb", "wait_80_mb"),
)
MB = 10**6


def measure(options: Options) -> Report:
    """Both kinds in alternation, over loopback."""
    report = Report()
    size = options.pick(20, 20, 2) * MB
    count = options.pick(40, 20, 3)
    report.note(f"{count} batches of {size // MB} MB a round, over loopback, three processes on {os.cpu_count()} cores")
    with source(size) as (address, secret, pid):
        receiver = Receiver(address, secret, size)
        try:
            with ray_objects(size) as by_ray:
                _rates(options, report, receiver, pid, size, count, by_ray)
        finally:
            receiver.close()
    for each in (2, 20, 80):
        _waits(options, report, each)
    return report


def _rates(
    options: Options,
    report: Report,
    receiver: Receiver,
    pid: int,
    size: int,
    count: int,
    by_ray: Callable[[int], float] | None,
) -> None:
    cpu: dict[str, list[float]] = {"gateway": [], "bare": []}

    def ours() -> float:
        pids = (pid, receiver.process.pid, os.getpid())
        before, begun = sum(map(cpu_s, pids)), time.perf_counter()
        receiver.lease()
        receiver.lease()
        for left in range(count, 0, -1):
            if left > 2:
                receiver.lease()
            receiver.take()
        seconds = time.perf_counter() - begun
        cpu["gateway"].append((sum(map(cpu_s, pids)) - before) / (size * count / 1e9))
        return size * count / MB / seconds

    def bare() -> float:
        rate, seconds = _bare(size, count)
        cpu["bare"].append(seconds / (size * count / 1e9))
        return rate

    runs = {"gateway": ours, "bare": bare}
    if by_ray is None:
        report.note("Ray is not installed: its object store is not compared")
    else:
        runs["Ray's object store, unencrypted"] = lambda: size * count / MB / by_ray(count)
    alternate(1, runs)
    cpu["gateway"].clear()
    cpu["bare"].clear()
    found = alternate(options.rounds if options.size != "tiny" else 1, runs)
    rows = [[f"{name}, MB/s", *Spread.of(found[name]).show(0)] for name in found]
    rows += [[f"{name}, CPU s a GB, both ends", *Spread.of(cpu[name]).show(2)] for name in cpu]
    report.table(["", "median", "lowest - highest"], rows)
    report.at_least("rate_of_bare", "rate, gateway / bare TLS pair", ratios(found["gateway"], found["bare"]), 0.8)
    if by_ray is not None:
        rates = ratios(found["gateway"], found["Ray's object store, unencrypted"])
        report.at_least("rate_of_ray", "rate, gateway / Ray's object store, two nodes on this machine", rates, 1.2)
    report.at_most("cpu_of_bare", "CPU, gateway / bare TLS pair", ratios(cpu["gateway"], cpu["bare"]), 1.25)


def _bare(size: int, count: int) -> tuple[float, float]:
    """MB/s and CPU seconds of `sendall` into `recv_into`, in two processes."""
    one, other = create_certificate(), create_certificate()
    with socket.create_server(("127.0.0.1", 0)) as server:
        pid = os.fork()
        if not pid:
            try:
                sock, _ = server.accept()
                out = between(sock, other, one.der, server_side=True, timeout_s=10.0)
                data = bytes(size)
                for _ in range(count):
                    out.sendall(data)
                out.recv_into(bytearray(1))
            finally:
                os._exit(0)
        plain = socket.create_connection(server.getsockname())
    with between(plain, one, other.der, server_side=False, timeout_s=10.0) as sock:
        target: Any = memoryview(bytearray(size))
        before, begun = time.process_time(), time.perf_counter()
        for _ in range(count):
            filled = 0
            while filled < size:
                filled += sock.recv_into(target[filled:])
        seconds = time.perf_counter() - begun
        used = time.process_time() - before + cpu_s(pid)
    os.waitpid(pid, 0)
    os.close(one.fd)
    os.close(other.fd)
    return size * count / MB / seconds, used


def _waits(options: Options, report: Report, megabytes: int) -> None:
    """The time to take over a batch that arrived while the program computed."""
    size = megabytes * MB if options.size != "tiny" else 10**5 * megabytes
    with source(size) as (address, secret, _):
        receiver = Receiver(address, secret, size)
        try:
            found: list[float] = []
            for _ in range(options.pick(20, 10, 2)):
                receiver.lease()
                receiver.channel.await_frames(30.0)
                time.sleep(0.01)
                begun = time.perf_counter()
                receiver.take()
                found.append(1000.0 * (time.perf_counter() - begun))
        finally:
            receiver.close()
    name = f"wait_{megabytes}_mb"
    report.at_most(name, f"wait for a batch of {megabytes} MB that has arrived", found, 0.3, 2, " ms")


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
