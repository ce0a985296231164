"""Sums by ring and copies by chain over own sockets against gloo's, among ranks in network namespaces at one switch.

Every rank has a separate link, shaped at both ends. Further sums go by islands, where two switches are joined by a link
that ranks share. All share this machine's cores. The time of an exchange is that
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
from benchmarks.support.nodes import Machine, NoNamespaces, islands, switched
from benchmarks.support.ranks import on_ranks
from stoker.perf.communication.methods import ring_bytes
from stoker.train.exchanging.own_rings import OwnRing
from stoker.train.ring.blocks import DEFAULT_BLOCK_BYTES
from stoker.train.ring.groups import connect, release
from stoker.train.ring.probe import probe

BAR = Bar(
    "comm_pipeline",
    "ring, chain and islands over own sockets against gloo's, 2 to 8 ranks: copies at 400 Mbit/s, sums at 200",
    headline=(
        "chain_grows", "chain_faster", "ring_slowest", "ring_closed_form", "block_found", "islands_faster",
        "islands_in_turns",
    ),
)  # fmt: skip
_COPY_MEGABITS, _SUM_MEGABITS = 400.0, 200.0
_INNER_MEGABITS, _UPLINK_MEGABITS = 400.0, 100.0
"""Links of the ranks of an island to its switch, and of that to the other island's."""
_BLOCKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
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


def _timing(
    nodes: Sequence[Machine], cases: Sequence[Case], rounds: int, *, copies: bool, alone: bool = False
) -> Callable[[int], Found]:
    """What a rank does: all cases, own and gloo's in turns, or own alone; ranks that a case has no place for wait."""

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
                if alone:
                    del ways["gloo"]
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


def _probed_block(_: int) -> int:
    found = probe(connect()).block_bytes
    release()
    return found


def _block_sizes(report: Report, nodes: Sequence[Machine], options: Options) -> None:
    """Sums in blocks of all sizes that a probe may answer, and its answer among them."""
    enter, environ = [node.enter for node in nodes], [{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes]
    found = on_ranks(len(nodes), _probed_block, timeout_s=_LIMIT_S, enter=enter, environ=environ)[0]
    size = options.pick(16 * _MB, 4 * _MB, _MB // 4)
    cases = [Case(len(nodes), size, block) for block in sorted({found, *options.pick(_BLOCKS, _BLOCKS[::2], ())})]
    timed = _on(nodes, _timing(nodes, cases, options.rounds, copies=False, alone=True))
    seconds = {case.block_bytes: seconds_of(timed, case, "own") for case in cases}
    rows = [
        [f"{block >> 10} KB", f"{1e3 * statistics.median(each):.0f}", "from the probe" if block == found else ""]
        for block, each in seconds.items()
    ]
    report.table([f"blocks, {cases[0].show()}", "ring, ms", ""], rows)
    best = min(seconds.values(), key=statistics.median)
    report.at_most("block_found", "ring in the probe's blocks / in the best ones", ratios(seconds[found], best), 1.05)
    report.figure("block_bytes", found)


def _by_islands(places: Sequence[Sequence[int]], size: int, rounds: int, nodes: Sequence[Machine]) -> list[Found]:
    case = Case(len(nodes), size)

    def work(rank: int) -> Found:
        own, group = connect(islands=places), dist.group.WORLD
        assert group is not None
        ways: dict[str, Exchange] = {
            "own": lambda data: own.start_by_islands(data, "bar").wait(), "gloo": _summing(group)
        }  # fmt: skip
        found = _in_turns(case, ways, rounds, group, nodes[rank])
        release(group)
        return found

    return _on(nodes, work)


def _found(nodes: Sequence[Machine]) -> tuple[list[list[int]], float, int]:
    """The islands that a probe finds by rates alone, its seconds, and the bytes of the rank that sent most."""

    def work(rank: int) -> tuple[list[list[int]], float, int]:
        group = dist.group.WORLD
        assert group is not None
        own, before = OwnRing(group), nodes[rank].sent_payload
        own.probe(torch.device("cpu"))
        sent, links = nodes[rank].sent_payload - before, own.links
        own.close()
        return (links.islands, links.took_s, sent) if links is not None else ([], 0.0, sent)

    enter, environ = [node.enter for node in nodes], [{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes]
    ranks = on_ranks(len(nodes), work, timeout_s=_LIMIT_S, enter=enter, environ=environ)
    return ranks[0][0], max(took_s for _, took_s, _ in ranks), max(sent for *_, sent in ranks)


def _islands(report: Report, options: Options) -> None:
    """Ranks that follow each other island by island, and ranks placed in turns: what gloo does not know."""
    local, size = options.pick(4, 4, 2), options.pick(2 * _MB, 2 * _MB, _MB // 4)
    rows: list[list[str]] = []
    with islands([local, local], _INNER_MEGABITS, _UPLINK_MEGABITS) as (first, second):
        in_turns = [node for both in zip(first, second, strict=True) for node in both]
        for key, title, nodes, least in (
            ("islands_faster", "island by island", [*first, *second], 1.35),
            ("islands_in_turns", "in turns", in_turns, 5.0),
        ):
            places = [[nodes.index(node) for node in island] for island in (first, second)]
            probed = [_found(nodes) for _ in range(options.pick(5, 3, 1))]
            report.figure(f"{key}_probed", sum(each == places for each, _, _ in probed) / len(probed))
            report.figure(f"{key}_probe_s", statistics.median(took_s for _, took_s, _ in probed))
            report.figure(f"{key}_probe_bytes", max(sent for *_, sent in probed))
            case, found = Case(2 * local, size), _by_islands(places, size, options.rounds, nodes)
            own, gloo = (seconds_of(found, case, way) for way in ("own", "gloo"))
            report.at_least(key, f"gloo's sum / by islands, ranks {title}", ratios(gloo, own), least)
            sent = _sent(found, case, "own") / ring_bytes(case.ranks, case.size)
            rows.append(
                [f"{case.show()}, {title}", *(f"{1e3 * statistics.median(each):.0f}" for each in (own, gloo)),
                 f"{8e3 * case.size / _UPLINK_MEGABITS / 1e6:.0f}", f"{sent:.3f}"]
            )  # fmt: skip
    report.table(["sum, 2 islands", "islands, ms", "gloo, ms", "of the uplink, ms", "bytes / closed form"], rows)


def measure(options: Options) -> Report:
    """All cases over one set of machines, and over two islands of others."""
    report = Report()
    try:
        with switched([_COPY_MEGABITS] * options.pick(8, 8, 3)) as nodes:
            _copies(report, nodes, options)
            for node in nodes:
                node.shape(_SUM_MEGABITS)
            _sums(report, nodes, options)
            _block_sizes(report, nodes, options)
        _islands(report, options)
    except NoNamespaces as error:
        report.skip(f"network namespaces are refused here ({error})")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
