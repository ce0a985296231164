# pyright: reportMissingTypeStubs=false
"""Hits of a cache worker over TCP on this machine: beside bare sockets and aiohttp, and with many paced clients.

The worker is a process; so is the bare server, which sends bytes of a mapped file for a request of eight bytes and does
nothing else, and so is the one of aiohttp. Loopback is the network here: what a real one adds, it adds to all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import mmap
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from xxhash import xxh3_64_digest

from benchmarks.support.caching import MIB, scratch, seconds, write_objects
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from stoker.cache.cluster.client.client import ClientSettings, PeerClient
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.cluster.server.worker import WorkerSettings, open_mounts, run_worker
from stoker.cache.names import ObjectName
from stoker.cache.sources.opening import SourceSpec, open_source
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.wire.secrets import create_secret

BAR = Bar(
    "cache_hit_remote",
    "hits of a worker on another connection's end: beside bare sockets and aiohttp, and p99 with 32 paced clients",
    headline=("large", "of_bare", "of_aiohttp", "small_p50", "paced_p99_ms"),
)
SMALL_BYTES = 4096
CLIENTS = 32
PER_S = 200
FILES = SourceSpec("file")
_ASKED = struct.Struct("<II")
MICRO = 1e6


class Worker:
    """A cache worker in a process, and clients of it."""

    def __init__(self, folder: Path, port: int) -> None:
        secret = folder / "secret"
        create_secret(secret)
        node = f"127.0.0.1:{port}"
        self._settings = WorkerSettings(
            server=ServerSettings(node=node, listen=(f"tcp://{node}",)),
            join=f"static:{node}",
            mounts={"files": FILES},
            secret_file=secret,
            drain_s=0.5,
        )
        self.client_settings = ClientSettings(join=f"static:{node}", secret_file=secret, timeout_s=5.0)
        context = get_context("fork")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(folder / "pages", theirs), daemon=True)
        self._process.start()
        ours.recv()

    def _serve(self, directory: Path, pipe: Any) -> None:
        def ready(server: Server) -> None:
            pipe.send(server.addresses)

        with PageStore(directory, StoreSettings(limit_bytes=4 << 30, keep_free_frac=0.0)) as pages:
            run_worker(self._settings, pages, open_mounts(self._settings.mounts), ready)

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.join()


class Fetching:
    """Reads of one object from a worker."""

    def __init__(self, settings: ClientSettings, path: str) -> None:
        self._client = PeerClient(settings)
        self._name = ObjectName(FILES.namespace, path)
        self._version = open_source(FILES).info(path).version

    def read(self, place: int, buffer: memoryview) -> None:
        """Fills the buffer from a place of the object."""
        if self._client.fetch(self._name, self._version, [(place, place + len(buffer))], [buffer]) != [True]:
            raise AssertionError("the worker did not send a page")

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()


class Bare:
    """Reads from the bare server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, place: int, buffer: memoryview) -> None:
        """Fills the buffer from a place of the file."""
        self._socket.sendall(_ASKED.pack(place // SMALL_BYTES, len(buffer)))
        got = 0
        while got < len(buffer):
            got += self._socket.recv_into(buffer[got:], 0, socket.MSG_WAITALL)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def measure(options: Options) -> Report:
    """One connection, then many."""
    report = Report()
    size = options.pick(256, 64, 2) * MIB
    with scratch() as folder, contextlib.ExitStack() as stack:
        (path,) = write_objects(folder / "objects", 1, size)
        bare_port = stack.enter_context(_server(functools.partial(_serve_bare, path)))
        sums_port = stack.enter_context(_server(functools.partial(_serve_bare, path, sums=True)))
        web_port = stack.enter_context(_server(functools.partial(_serve_web, path)))
        worker = Worker(folder, free_port())
        stack.callback(worker.close)
        sides: dict[str, Callable[[], Any]] = {
            "bare sockets": functools.partial(Bare, bare_port),
            "worker": functools.partial(Fetching, worker.client_settings, path),
        }
        _fill(sides["worker"], size)
        clients = options.pick(CLIENTS, CLIENTS, 2)
        crowds = {name: stack.enter_context(_crowd(clients, make, size)) for name, make in sides.items()}
        _large(options, report, sides, sums_port, web_port, size)
        _small(options, report, sides, size)
        _paced(options, report, crowds, clients)
    return report


def _fill(make: Callable[[], Any], size: int) -> None:
    """Has the worker store every page, from a thread's own connection."""
    side, buffer = make(), memoryview(bytearray(MIB))
    for place in range(0, size, MIB):
        side.read(place, buffer)
    side.close()


def _large(
    options: Options, report: Report, sides: dict[str, Callable[[], Any]], sums_port: int, web_port: int, size: int
) -> None:  # fmt: skip
    places = list(range(0, size, MIB))
    random.Random(0).shuffle(places)
    bare, ours = (make() for make in sides.values())
    summed = Bare(sums_port)
    runs = {
        "bare sockets": functools.partial(_reads_s, bare, places, MIB),
        "worker": functools.partial(_reads_s, ours, places, MIB),
        "bare sockets, with a checksum": functools.partial(_reads_s, summed, places, MIB),
        "aiohttp": functools.partial(_web_s, web_port, places, MIB),
    }
    alternate(1, runs)
    with no_collections():
        found = alternate(options.rounds, runs)
    bare.close()
    ours.close()
    summed.close()
    rates = {name: [size / 1e9 / value for value in values] for name, values in found.items()}
    rows = [[name, *Spread.of(values).show(2)] for name, values in rates.items()]
    report.table(["GB/s, 1 MiB a request, one connection", "median", "lowest - highest"], rows)
    bare_s, worker_s, summed_s, web_s = found.values()
    report.at_least("large", "1 MiB: worker / bare sockets", ratios(bare_s, worker_s), 0.6)
    report.at_least("of_bare", "1 MiB: worker / bare sockets that sum as well", ratios(summed_s, worker_s), 0.8)
    report.figure("bare_of_aiohttp", Spread.of(ratios(web_s, bare_s)).median)
    report.figure("summed_of_aiohttp", Spread.of(ratios(web_s, summed_s)).median)
    report.at_least("of_aiohttp", "1 MiB: worker / aiohttp", ratios(web_s, worker_s), 5.0)


def _reads_s(side: Any, places: list[int], size: int) -> float:
    buffer = memoryview(bytearray(size))

    def read() -> None:
        for place in places:
            side.read(place, buffer)

    return seconds(read)


def _web_s(port: int, places: list[int], size: int) -> float:
    async def read() -> float:
        async with aiohttp.ClientSession() as session:
            begun = time.perf_counter()
            for place in places:
                async with session.get(f"http://127.0.0.1:{port}/{place}/{size}") as answer:
                    if len(await answer.read()) != size:
                        raise AssertionError("a read was short")
            return time.perf_counter() - begun

    return asyncio.run(read())


def _small(options: Options, report: Report, sides: dict[str, Callable[[], Any]], size: int) -> None:
    count = options.pick(5000, 2000, 50)
    made = {name: make() for name, make in sides.items()}
    runs = {name: functools.partial(_median_us, side, count, size) for name, side in made.items()}
    alternate(1, runs)
    with no_collections():
        found = alternate(options.rounds, runs)
    for side in made.values():
        side.close()
    rows = [[name, *Spread.of(values).show(1)] for name, values in found.items()]
    report.table(["microseconds, 4 KiB a request, p50", "median", "lowest - highest"], rows)
    gain = ratios(found["worker"], found["bare sockets"])
    report.at_most("small_p50", "4 KiB, p50: worker / bare sockets", gain, 1.6)


def _median_us(side: Any, count: int, size: int) -> float:
    rng = random.Random(0)
    buffer, took = memoryview(bytearray(SMALL_BYTES)), list[float]()
    for place in [rng.randrange(size // SMALL_BYTES) * SMALL_BYTES for _ in range(count)]:
        begun = time.perf_counter()
        side.read(place, buffer)
        took.append(time.perf_counter() - begun)
    return MICRO * float(np.median(took))


def _paced(options: Options, report: Report, crowds: dict[str, Callable[[int], list[float]]], clients: int) -> None:
    count = options.pick(1000, 250, 10)
    tails: dict[str, list[float]] = {name: [] for name in crowds}
    for turn in range(options.rounds):
        for name in list(crowds)[:: 1 if turn % 2 else -1]:
            tails[name].append(1e3 * float(np.quantile(crowds[name](count), 0.99)))
    rows = [[name, *Spread.of(values).show(2)] for name, values in tails.items()]
    title = f"milliseconds, 4 KiB, p99 of {clients} processes with {PER_S} requests/s each"
    report.table([title, "median", "lowest - highest"], rows)
    report.figure("paced_bare_p99_ms", Spread.of(tails["bare sockets"]).median)
    report.at_most("paced_p99_ms", f"4 KiB, p99 with {clients} clients", tails["worker"], 1.0, 2, " ms")


@contextlib.contextmanager
def _crowd(count: int, make: Callable[[], Any], size: int) -> Iterator[Callable[[int], list[float]]]:
    """Processes that read at a pace of their own; called with a number of reads, it gives their times (seconds)."""
    context = get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]
    jobs = [
        context.Process(target=_read_paced, args=(make, size, number, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for job in jobs:
        job.start()

    def read(reads: int) -> list[float]:
        at = time.perf_counter() + 0.1  # the clock is that of the machine, the same in all processes
        for number, (ours, _) in enumerate(pipes):
            ours.send((reads, at + number / count / PER_S))
        return [value for ours, _ in pipes for value in ours.recv()]

    read(1)  # all are connected
    yield read
    for ours, _ in pipes:
        ours.send(None)
    for job in jobs:
        job.join()


def _read_paced(make: Callable[[], Any], size: int, seed: int, pipe: Any) -> None:
    gc.disable()
    side, rng = make(), random.Random(seed)
    buffer = memoryview(bytearray(SMALL_BYTES))
    while (told := pipe.recv()) is not None:
        count, begin = told
        took: list[float] = []
        for number in range(count):
            place = rng.randrange(size // SMALL_BYTES) * SMALL_BYTES
            time.sleep(max(0.0, begin + number / PER_S - time.perf_counter()))
            begun = time.perf_counter()
            side.read(place, buffer)
            took.append(time.perf_counter() - begun)
        pipe.send(took)


@contextlib.contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A process that serves a listening socket; its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    process = get_context("fork").Process(target=_end_quietly, args=(serve, listener), daemon=True)
    process.start()
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield port
    finally:
        process.kill()
        process.join()


def _end_quietly(serve: Callable[[socket.socket], None], listener: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(listener)


def _mapped(path: str) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _serve_bare(path: str, listener: socket.socket, *, sums: bool = False) -> None:
    data = _mapped(path)

    def converse(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(ConnectionError):
            while len(asked := connection.recv(_ASKED.size, socket.MSG_WAITALL)) == _ASKED.size:
                block, size = _ASKED.unpack(asked)
                part = data[block * SMALL_BYTES : block * SMALL_BYTES + size]
                if sums:
                    xxh3_64_digest(part)
                connection.sendall(part)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(connection,), daemon=True).start()


def _serve_web(path: str, listener: socket.socket) -> None:
    data = _mapped(path)

    async def answer(request: web.Request) -> web.Response:
        place, size = int(request.match_info["place"]), int(request.match_info["size"])
        return web.Response(body=bytes(data[place : place + size]))

    app = web.Application()
    app.router.add_get("/{place}/{size}", answer)
    web.run_app(app, sock=listener, print=None, handle_signals=False)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
