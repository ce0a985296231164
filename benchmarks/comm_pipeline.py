"""Sums by ring and copies by chain over own sockets against gloo's, among ranks in network namespaces at one switch.

Every rank has a link of its own, shaped at both ends. All share this machine's cores. The time of an exchange is that
from the last rank's start to the last rank's end; bytes are those that came from each rank's interface.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from benchmarks.support.harness import Bar, Options, Report, no_collections, ratios, run
from benchmarks.support.nodes import Machine, NoNamespaces, switched
from benchmarks.support.ranks import on_ranks
from stoker.perf.communication.methods import ring_bytes
from stoker.train.ring.blocks import DEFAULT_BLOCK_BYTES
from stoker.train.ring.groups import connect, release

BAR = Bar(
    "comm_pipeline",
    "ring and chain over own sockets against gloo's, 2 to 8 ranks: copies at 400 Mbit/s, sums at 200",
    headline=("chain_grows", "chain_faster", "ring_slowest", "ring_closed_form"),
)
_COPY_MEGABITS, _SUM_MEGABITS = 400.0, 200.0
_MB = 1 << 20
_LIMIT_S = 280.0


@dataclass(frozen=True)
class Case:
    """What is exchanged, and among how many of the ranks."""

    ranks: int
    size: int
    block_bytes: int = DEFAULT_BLOCK_BYTES

    def show(self) -> str:
        """For people."""
        return f"{self.size / _MB:g} MB, {self.ranks} ranks"


@dataclass
class Timed:
    """One rank's exchanges of one kind, round by round: when they began and ended (s), and bytes it sent in each."""

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


Found = dict[tuple[Case, str], Timed]
Exchange = Callable[[torch.Tensor], object]


def _on(nodes: Sequence[Machine], work: Callable[[int], Found]) -> list[Found]:
    return on_ranks(
        len(nodes), work, timeout_s=_LIMIT_S, enter=[node.enter for node in nodes],
        environ=[{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes],
    )  # fmt: skip


def _timing(nodes: Sequence[Machine], cases: Sequence[Case], rounds: int, *, copies: bool) -> Callable[[int], Found]:
    """What a rank does: all cases, own and gloo's in turns; ranks that a case has no place for wait."""

    def work(rank: int) -> Found:
        found: Found = {}
        groups = {count: dist.new_group(list(range(count))) for count in sorted({case.ranks for case in cases})}
        for case in cases:
            dist.barrier()
            if rank < case.ranks:
                group = groups[case.ranks]
                own = connect(group, block_bytes=case.block_bytes)
                ways: dict[str, Exchange] = (
                    {"own": lambda data, own=own: own.broadcast([data]), "gloo": _copying(group)}
                    if copies
                    else {"own": own.all_reduce, "gloo": _summing(group)}
                )
                found |= _in_turns(case, ways, rounds, group, nodes[rank])
                release(group)
        dist.barrier()
        return found

    return work


def _copying(group: dist.ProcessGroup) -> Exchange:
    return lambda data: dist.broadcast(data, 0, group=group)


def _summing(group: dist.ProcessGroup) -> Exchange:
    return lambda data: dist.all_reduce(data, group=group)


def _in_turns(
    case: Case, ways: dict[str, Exchange], rounds: int, group: dist.ProcessGroup, node: Machine
) -> dict[tuple[Case, str], Timed]:
    found = {name: Timed() for name in ways}
    data = torch.ones(case.size // 4)
    for exchange in ways.values():
        exchange(data[:1000])
    with no_collections():
        for turn in range(rounds):
            for name in list(ways)[:: -1 if turn % 2 else 1]:
                data.fill_(1.0)
                dist.barrier(group=group)
                timed, before = found[name], node.sent
                timed.began.append(time.monotonic())
                ways[name](data)
                timed.ended.append(time.monotonic())
                dist.barrier(group=group)  # its own bytes are few beside those of the exchange
                timed.sent.append(node.sent - before)
    return {(case, name): timed for name, timed in found.items()}


def seconds_of(ranks: Sequence[Found], case: Case, way: str) -> list[float]:
    """Round by round, from the start of the rank that came last to the end of that which ended last."""
    timed = [found[case, way] for found in ranks[: case.ranks]]
    return [
        max(ended) - max(began)
        for began, ended in zip(
            zip(*(each.began for each in timed), strict=True), zip(*(each.ended for each in timed), strict=True),
            strict=True,
        )
    ]  # fmt: skip


def _sent(ranks: Sequence[Found], case: Case, way: str) -> float:
    """Bytes that the rank with the most of them sent in an exchange, in the median of the rounds."""
    return max(statistics.median(found[case, way].sent) for found in ranks[: case.ranks])


def _copies(report: Report, nodes: Sequence[Machine], options: Options) -> None:
    size = options.pick(8 * _MB, 8 * _MB, _MB // 4)
    counts = options.pick((2, 4, 8), (2, 4, 8), (2, 3))
    cases = [Case(count, size) for count in counts]
    found = _on(nodes[: counts[-1]], _timing(nodes, cases, options.rounds, copies=True))
    rows: list[list[str]] = []
    for case in cases:
        own, gloo = (seconds_of(found, case, way) for way in ("own", "gloo"))
        rows.append([
            case.show(), *(f"{1e3 * statistics.median(each):.0f}" for each in (own, gloo)),
            f"{8e3 * case.size / _COPY_MEGABITS / 1e6:.0f}", f"{_sent(found, case, 'own') / case.size:.3f}",
        ])  # fmt: skip
        report.figure(f"chain_{case.ranks}_s", statistics.median(own))
    report.table(["copy", "chain, ms", "gloo, ms", "of the wire, ms", "bytes of a rank / size"], rows)
    few, many = (seconds_of(found, case, "own") for case in (cases[0], cases[-1]))
    last = seconds_of(found, cases[-1], "gloo")
    report.at_most("chain_grows", f"chain: {counts[-1]} ranks / {counts[0]}", ratios(many, few), 1.07)
    report.at_least("chain_faster", f"gloo's copy / chain, {counts[-1]} ranks", ratios(last, many), 4.5)


def _sums(report: Report, nodes: Sequence[Machine], options: Options) -> None:
    sizes = options.pick((_MB, 4 * _MB, 16 * _MB), (_MB, 4 * _MB, 16 * _MB), (_MB // 4,))
    counts = options.pick((2, 4, 8), (2, 4, 8), (2, 3))
    cases = [Case(count, size) for size in sizes for count in counts]
    found = _on(nodes[: counts[-1]], _timing(nodes, cases, options.rounds, copies=False))
    rows: list[list[str]] = []
    slowest: list[float] = []
    above: list[float] = [0.0]
    carried: list[float] = []
    for case in cases:
        own, gloo = (seconds_of(found, case, way) for way in ("own", "gloo"))
        sent = _sent(found, case, "own") / ring_bytes(case.ranks, case.size)
        wire_s = 8 * ring_bytes(case.ranks, case.size) / _SUM_MEGABITS / 1e6
        ratio = statistics.median(ratios(own, gloo))
        rows.append([
            case.show(), *(f"{1e3 * statistics.median(each):.0f}" for each in (own, gloo)), f"{1e3 * wire_s:.0f}",
            f"{ratio:.3f}", f"{sent:.3f}",
        ])  # fmt: skip
        report.figure(f"ring_{case.size >> 20}_{case.ranks}", ratio)
        slowest.append(ratio)
        carried.append(sent)
        if case.size >= 4 * _MB:
            above.append(statistics.median(own) / wire_s)
    report.table(["sum", "ring, ms", "gloo, ms", "of the wire, ms", "ring / gloo", "bytes / closed form"], rows)
    report.at_most("ring_slowest", "ring / gloo's sum, the worst case", [max(slowest)], 1.0)
    report.at_most("ring_closed_form", "ring from 4 MB on / time of the wire, the worst case", [max(above)], 1.06)
    report.figure("ring_bytes", max(carried))


def measure(options: Options) -> Report:
    """All cases over one set of machines."""
    report = Report()
    try:
        with switched([_COPY_MEGABITS] * options.pick(8, 8, 3)) as nodes:
            _copies(report, nodes, options)
            for node in nodes:
                node.shape(_SUM_MEGABITS)
            _sums(report, nodes, options)
    except NoNamespaces as error:
        report.skip(f"network namespaces are refused here ({error})")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
