"""Exchanges on real ranks, as a program of its own: what each case of the command line found, a line of JSON each."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.comm_equal import compare, everything
from benchmarks.programs.exchanged_models import MODELS, Case, drawn, train
from benchmarks.support.ranks import on_ranks
from stoker.core.errors import ExchangeError
from stoker.core.trials.alternating import CutTrial
from stoker.records.exchange import AgreedExchange, MeasuredExchange
from stoker.run.exchanging.serving import planner
from stoker.train.exchanging import calling, own_rings
from stoker.train.exchanging import replica as replicas_of_hook
from stoker.train.exchanging.mixed_round import MixedRound
from stoker.train.exchanging.replica import ReplicaExchange
from stoker.train.exchanging.splits.plans import ExchangePlanner
from stoker.train.exchanging.weights import hash_of
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.ring import meeting
from stoker.train.ring import probe as ring_probe
from stoker.train.ring.probe import islands_of
from stoker.train.ring.transport import RingExchange
from tests.train.first_copies import copied, uncopied


def few(rank: int) -> dict[str, Any]:
    """Products, rows, checkpointing."""
    cases = [Case("mlp", "no_sync"), Case("alexnet", "clipping"), Case("dlrm", "plain"), Case("checkpointed", "plain")]
    return _compared(cases, rank)


def equal(rank: int) -> dict[str, Any]:
    """One of each model with a drawn option."""
    cases = [case for case in drawn(random.Random(3), len(MODELS)) if case.option != "autocast"]
    cases += [Case("mlp", option) for option in ("no_sync", "clipping", "join", "static")]
    return _compared(cases, rank)


def _compared(cases: list[Case], rank: int) -> dict[str, Any]:
    found = [compare(case, rank, 16) for case in cases]
    return {
        "apart": {str(each.case): each.apart for each in found},
        "weights": [each.weights for each in found],
        "gathered": sum(each.gathered for each in found),
        "repaired": sum(each.repaired for each in found),
    }


def wrong_factor(rank: int) -> dict[str, Any]:
    """A factor is changed on rank 1 in one step: that layer goes by all-reduce there, on all ranks."""
    replicas: list[ReplicaExchange] = []

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        replica = calling.serve(ddp, everything, tries=False)
        replicas.append(replica)
        layer = replica._layers["first.weight"]
        take = layer.take

        def planted() -> Any:
            found = take()
            if rank == 1 and replica.rounds == 9 and found is not None:
                found[0][0, 0] += 1.0
            return found

        layer.take = planted  # type: ignore[method-assign]
        return replica

    plain, _, _ = train(Case("mlp", "plain"), rank, 16, lambda ddp: None)
    losses, ddp, _ = train(Case("mlp", "plain"), rank, 16, served)
    record = replicas[0].record()
    assert record is not None
    return {
        "apart": max(abs(a - b) for a, b in zip(plain, losses, strict=True)),
        "weights": hash_of(list(ddp.parameters())),
        "doubts": {each.weight: each.doubts for each in record.counts if each.doubts},
    }


def different_bit(rank: int) -> dict[str, Any]:
    """One bit of a weight differs on rank 2: found by the hash, and repaired."""

    def planted(measured: list[MeasuredExchange]) -> AgreedExchange:
        return everything(measured)

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        replica = calling.serve(ddp, planted, tries=False)
        end = replica._end_mixed

        def changed(mixed: MixedRound) -> None:
            end(mixed)
            if rank == 2 and replica.rounds == 7:
                _flip_bit(ddp)

        replica._end_mixed = changed  # type: ignore[method-assign]
        return replica

    with mock.patch.object(replicas_of_hook, "_HASHED_EVERY", 4):
        _, ddp, replica = train(Case("mlp", "plain"), rank, 12, served)
    record = replica.record()
    assert record is not None
    return {"repaired": record.repaired, "weights": hash_of(list(ddp.parameters())), "notes": record.notes}


def own_difference(rank: int) -> dict[str, Any]:
    """Weights that differ by the program's own doing are left as they are, also where a plan is followed."""

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        if rank == 2:
            _flip_bit(ddp)
        return calling.serve(ddp, everything, tries=False)

    with mock.patch.object(replicas_of_hook, "_HASHED_EVERY", 2):
        _, ddp, replica = train(Case("mlp", "plain"), rank, 14, served)
    record = replica.record()
    assert record is not None
    return {"repaired": record.repaired, "weights": hash_of(list(ddp.parameters())), "notes": record.notes}


def _flip_bit(ddp: DistributedDataParallel) -> None:
    next(ddp.parameters()).detach().view(torch.int32)[0, 0] ^= 1


def joined(rank: int) -> dict[str, Any]:
    """Rank 0 ends first: its weights, which wait for the end of `join()`, are no measure for the others."""
    found: dict[str, Any] = {"apart": 0.0, "repaired": 0, "steps": []}
    for momentum in (0.9, 0.0):  # with it the ranks go apart after `join()`, also under plain DDP
        plain = _joined(rank, momentum, is_served=False)
        with mock.patch.object(replicas_of_hook, "_HASHED_EVERY", 2):
            served = _joined(rank, momentum, is_served=True)
        apart = max(abs(a - b) for a, b in zip(plain["losses"], served["losses"], strict=True))
        found["apart"] = max(found["apart"], apart)
        found["repaired"] += served["repaired"]
        found["steps"].append(served["steps"])
    return {**found, "weights": served["weights"]}


def _joined(rank: int, momentum: float, *, is_served: bool) -> dict[str, Any]:
    replicas: list[ReplicaExchange] = []

    def serve(ddp: DistributedDataParallel) -> ReplicaExchange:
        replicas.append(calling.serve(ddp, everything, tries=False))
        return replicas[-1]

    watch = ReplicaWatch(serve)
    if is_served:
        watch.install()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=momentum)
    torch.manual_seed(100 + rank)
    losses: list[float] = []
    for divides_by_all in (True, False, True):
        with ddp.join(divide_by_initial_world_size=divides_by_all):
            for _ in range(12 + 6 * rank):
                optimizer.zero_grad()
                loss = ddp(torch.randn(8, 24)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
    record = replicas[0].record() if replicas else None
    watch.remove()
    return {
        "losses": losses, "weights": hash_of(list(ddp.parameters())),
        "repaired": record.repaired if record is not None else 0,
        "steps": sum(each.steps for each in record.counts) if record is not None else 0,
    }  # fmt: skip


def sparse(rank: int) -> dict[str, Any]:
    """A table with sparse gradients beside a layer that is planned: torch exchanges it."""
    found: list[list[float]] = []
    methods: dict[str, str] = {}
    for is_served in (False, True):
        torch.manual_seed(0)
        words, head = nn.Embedding(50, 24, sparse=True), nn.Linear(24, 48)
        ddp = DistributedDataParallel(nn.Sequential(words, head))
        replica = calling.serve(ddp, everything, tries=False) if is_served else None
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        torch.manual_seed(100 + rank)
        losses: list[float] = []
        for _ in range(14):
            optimizer.zero_grad()
            loss = ddp(torch.randint(50, (8,))).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        found.append(losses)
        record = replica.record() if replica is not None else None
        if record is not None:
            methods = {each.module: each.method for each in record.agreed.methods}
    return {"apart": max(abs(a - b) for a, b in zip(*found, strict=True)), "methods": methods}


def unseen(rank: int) -> dict[str, Any]:
    """Buckets that cannot be looked at on one rank: all ranks stay with torch's exchange."""

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        replica = calling.serve(ddp, planner(), tries=False)
        if rank == 1:
            replica._look = lambda bucket: bucket.nothing  # type: ignore[method-assign]
        return replica

    plain, _, _ = train(Case("mlp", "plain"), rank, 10, lambda ddp: None)
    losses, _, replica = train(Case("mlp", "plain"), rank, 10, served)
    return {"same": plain == losses, "note": replica.agreed.note}


def own_hook(rank: int) -> dict[str, Any]:
    """The program's own hook takes the place of ours, and is refused as torch refuses it."""
    called: list[int] = []

    def theirs(state, bucket):  # torch takes annotations as objects only
        state.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(3), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    before = DistributedDataParallel.__init__
    watch = ReplicaWatch(lambda ddp: calling.serve(ddp, everything, tries=False))
    watch.install()
    ddp = DistributedDataParallel(nn.Linear(4, 2))
    refused = ""
    try:
        ddp.register_comm_hook(None, lambda state, wrong: None)
    except (ValueError, KeyError) as error:
        refused = str(error)
    ddp.register_comm_hook(called, theirs)
    torch.manual_seed(rank)
    ddp(torch.randn(3, 4)).sum().backward()
    watch.remove()
    return {
        "called": len(called), "refused": refused, "restored": DistributedDataParallel.__init__ is before,
        "gradient": next(ddp.parameters()).grad.tolist(),  # type: ignore[union-attr]
    }  # fmt: skip


def untouched(rank: int) -> dict[str, Any]:
    """Before a plan, and in buckets that no plan touches, gradients are those of plain DDP to the last bit."""
    found: list[list[list[float]]] = []
    for serves in (False, True):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40)), bucket_cap_mb=0.001)
        if serves:
            calling.exchange(ddp, {"1": "late"})
        torch.manual_seed(rank)
        steps: list[list[float]] = []
        for _ in range(9):
            ddp.zero_grad()
            ddp(torch.randn(5, 40)).square().sum().backward()
            steps.append(ddp.module[0].weight.grad.flatten().tolist())
        found.append(steps)
    return {"same": found[0] == found[1]}


def trial(rank: int) -> dict[str, Any]:
    """A plan that gains nothing is taken back on all ranks in the same step."""
    replicas: list[ReplicaExchange] = []
    CutTrial.TRIALS = 1  # where a machine is disturbed, a lost trial would be repeated after some hundred steps

    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        replicas.append(calling.serve(ddp, everything))
        return replicas[-1]

    _, ddp, _ = train(Case("mlp", "plain"), rank, 90, served)
    record = replicas[0].record()
    assert record is not None
    return {"gain": record.gain, "kept": record.kept, "weights": hash_of(list(ddp.parameters()))}


def ring(rank: int) -> dict[str, Any]:
    """A plan that names own sockets: sums go by them, and nothing of them is left behind."""
    sums: list[str] = []
    start = RingExchange.start

    def counted(self: RingExchange, flat: torch.Tensor, name: str) -> Any:
        sums.append(name)
        return start(self, flat, name)

    with mock.patch.object(RingExchange, "start", counted):
        found = _by_ring(rank, {"first": "ring", "middle": "late", "last": "ring"}, tries=False)
    return {**found, "sums": sorted(set(sums)), "sockets": _sockets()}


def compressed(rank: int) -> dict[str, Any]:
    """Sums of 16 bits and of low rank, with a step that is not finite."""
    plan = {"0": "power", "2": "half"}
    losses: dict[bool, list[float]] = {}
    for is_served in (False, True):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10)))
        replica = calling.exchange(ddp, plan) if is_served else None
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(100 + rank)
        losses[is_served] = []
        for step in range(60):
            optimizer.zero_grad()
            x = torch.randn(8, 24)
            loss = (ddp(x) - x[:, :10]).square().mean()
            (loss * float("inf") if step == 20 and rank == 1 else loss).backward()
            if step != 20:
                optimizer.step()
            losses[is_served].append(float(loss.detach()))
    assert replica is not None
    record = replica.record()
    assert record is not None
    return {
        "weights": hash_of(list(ddp.parameters())), "counts": {each.method: each.steps for each in record.counts},
        "doubts": {each.method: sorted(each.doubts) for each in record.counts}, "losses": losses[True],
        "plain": losses[False], "bytes": record.planned_bytes / record.plain_bytes,
    }  # fmt: skip


def no_ring(rank: int) -> dict[str, Any]:
    """One rank can't connect: the backend makes these sums on all ranks."""

    def refused(group: Any) -> RingExchange:
        if rank == 1:
            raise ExchangeError("`rank 1` must connect, and was planted not to", rank=1)
        raise ExchangeError("`rank 1` is lost", rank=1)

    with mock.patch.object(own_rings, "exchange_of", refused):
        return _by_ring(rank, {"first": "ring", "middle": "late"}, tries=False)


def probed(rank: int) -> dict[str, Any]:
    """Two machines, as ranks say, placed in turns: links are probed machine by machine, and sums go by islands."""
    seen: list[MeasuredExchange] = []

    def planner(measured: list[MeasuredExchange]) -> AgreedExchange:
        seen.extend(measured)
        return calling.GivenPlan({"first": "islands", "middle": "late", "last": "ring"})(measured)

    def by_machine(hosts: Sequence[str], rates: Sequence[float]) -> Any:
        del rates  # of this machine's loopback, disturbed by all else
        return islands_of(hosts, ())

    def host() -> str:
        return f"machine {rank % 2}"

    sums: list[str] = []
    start = RingExchange.start_by_islands

    def counted(self: RingExchange, flat: torch.Tensor, name: str) -> Any:
        sums.append(f"{name} {self.order} {self.islands}")
        return start(self, flat, name)

    with (
        mock.patch.object(meeting, "host_name", host), mock.patch.object(own_rings, "host_name", host),
        mock.patch.object(ring_probe, "islands_of", by_machine),
        mock.patch.object(RingExchange, "start_by_islands", counted),
    ):  # fmt: skip
        found = _planned(rank, planner, tries=False)
    links = [each.links for each in seen]
    return {**found, "sums": sorted(set(sums)), "sockets": _sockets(), "links": msgspec.to_builtins(links)}


def no_probe(rank: int) -> dict[str, Any]:
    """The probe fails on one rank: the plan is made without it on all, and their ring is connected again."""
    seen: list[MeasuredExchange] = []

    def planner(measured: list[MeasuredExchange]) -> AgreedExchange:
        seen.extend(measured)
        return calling.GivenPlan({"first": "ring"})(measured)

    def failing(exchange: RingExchange, *searched: Any) -> Any:
        if rank == 1:
            raise MemoryError("planted")
        return ring_probe.probe(exchange, *searched)

    with mock.patch.object(own_rings, "probe", failing):
        found = _planned(rank, planner, tries=False)
    return {**found, "sockets": _sockets(), "links": [each.links for each in seen]}


def slow_ring(rank: int) -> dict[str, Any]:
    """Own sockets that are slow lose the trial; what else the plan has gets one of its own."""
    CutTrial.TRIALS = 1
    start = RingExchange.start

    def slow(self: RingExchange, flat: torch.Tensor, name: str) -> Any:
        time.sleep(0.05)
        return start(self, flat, name)

    with mock.patch.object(RingExchange, "start", slow):
        found = _by_ring(rank, {"first": "ring", "middle": "late"}, tries=True, steps=120)
    return {**found, "sockets": _sockets()}


def thousand_steps(rank: int) -> dict[str, Any]:
    """Steps by late-multiply, rows and own sockets: descriptors, threads and memory of a rank, early and late."""
    return _many_steps(rank, 300, 1_300)


def ten_thousand_steps(rank: int) -> dict[str, Any]:
    """As many as is promised; by hand, since it takes minutes."""
    return _many_steps(rank, 1_000, 11_000)


def _many_steps(rank: int, early: int, late: int) -> dict[str, Any]:
    found: list[tuple[int, int, int]] = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    ddp = DistributedDataParallel(model)
    replica = calling.exchange(ddp, {"0": "rows", "1": "late", "3": "ring"})
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    begun = time.perf_counter()
    for step in range(late + 1):
        optimizer.zero_grad()
        ddp(torch.randint(500, (8,))).square().mean().backward()
        optimizer.step()
        if step in (early, late):
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            found.append((len(os.listdir("/proc/self/fd")), threading.active_count(), resident))
    took_s = time.perf_counter() - begun
    record = replica.record()
    assert record is not None
    replica.close()
    return {
        "before": found[0], "after": found[1], "steps": {each.method: each.steps for each in record.counts},
        "weights": hash_of(list(ddp.parameters())), "sockets": _sockets(), "took_s": took_s,
    }  # fmt: skip


def _by_ring(rank: int, plan: dict[str, str], *, tries: bool, steps: int = 16) -> dict[str, Any]:
    return _planned(rank, calling.GivenPlan(plan), tries=tries, steps=steps, probes=False)


def _planned(
    rank: int, planner: ExchangePlanner, *, tries: bool, steps: int = 16, probes: bool = True
) -> dict[str, Any]:
    plain, _, _ = train(Case("mlp", "plain"), rank, steps, lambda ddp: None)
    losses, ddp, replica = train(
        Case("mlp", "plain"), rank, steps, lambda ddp: calling.serve(ddp, planner, tries=tries, probes=probes)
    )
    record = replica.record()
    assert record is not None
    replica.close()
    return {
        "apart": max(abs(a - b) for a, b in zip(plain, losses, strict=True)),
        "weights": hash_of(list(ddp.parameters())),
        "methods": {each.module: each.method for each in record.agreed.methods}, "notes": record.notes,
        "steps": sum(each.steps for each in record.counts),
    }  # fmt: skip


def _sockets() -> int:
    """Threads of exchanges that are there."""
    return sum(thread.name.startswith("stoker-exchange") for thread in threading.enumerate())


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    each.__name__: each for each in (
        few, equal, wrong_factor, different_bit, own_difference, joined, sparse, unseen, own_hook, untouched, trial,
        ring, no_ring, slow_ring, probed, no_probe, copied, uncopied, compressed, thousand_steps,
        ten_thousand_steps,
    )
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:]:
        limit_s = 1_000 if name == "ten_thousand_steps" else 100
        print(json.dumps(on_ranks(4 if name == "probed" else 3, CASES[name], timeout_s=limit_s)), flush=True)
