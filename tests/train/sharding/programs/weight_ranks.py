"""Sharded weights against plain DDP on forked ranks: their number and the cases are its arguments.

Its answer is a line of JSON.
"""

import copy
import gc
import io
import json
import sys
import time
import warnings
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.core.errors import ExchangeError
from stoker.train.sharding.states import shard_states
from stoker.train.sharding.weights import shard_weights
from stoker.train.state.service import PartService
from tests.train.sharding.programs.state_ranks import batch, clipped, copied, groups, loss_of, plain, scaled


class Block(nn.Module):
    """A residual block with BatchNorm, whose forward pass counts its calls."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.wide = nn.Linear(12, 37)
        self.narrow = nn.Linear(37, 12)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.narrow(self.wide(self.norm(x.transpose(1, 2)).transpose(1, 2)).relu())


class Net(nn.Module):
    """Tied weights around blocks; numbers of rows that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 12)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(12, 300, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        found = self.table(ids)
        for block in self.blocks:
            found = block(found)
        return self.head(found)


def sgd(module):
    return groups(module, kind=torch.optim.SGD, momentum=0.9)


CASES = {
    "adamw": (groups, plain),
    "clipped": (groups, clipped),
    "scaled": (groups, scaled),
    "sgd": (sgd, plain),
    "kept": (groups, plain),
    "outer": (groups, clipped),
    "fused": (lambda module: groups(module, fused=True), plain),
    "foreach": (lambda module: groups(module, foreach=True), plain),
    "adagrad": (lambda module: groups(module, kind=torch.optim.Adagrad), plain),
}
OPTIONS = {"kept": {"reshard": False, "keeps_fetched": False}, "outer": {"units": []}}


def replicated(rank, make, options=None, *, is_sharded, early=True):
    torch.manual_seed(rank)
    net = Net()
    optimizer = make(net) if early else None
    whole = weakref.ref(net.table.weight)
    ddp = shard_weights(net, **(options or {})) if is_sharded else DistributedDataParallel(net)
    gc.collect()
    assert (whole() is None) == is_sharded, "nothing keeps whole weights"
    return ddp, optimizer if early else make(ddp.module)


def apart(one, other):
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(one, other, strict=True))


def far(one, other):
    """Largest difference of two state dicts."""
    if isinstance(one, torch.Tensor):
        assert type(one) is torch.Tensor, type(one)
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
    if isinstance(one, dict):
        assert list(one) == list(other), (list(one), list(other))
        return max((far(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, (list, tuple)):
        return max((far(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    assert one == other, (one, other)
    return 0.0


def held_bytes(tensors):
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in local)


def states_of(optimizer):
    return [
        value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)
    ]


def compared(rank, name):
    make, train = CASES[name]
    early = name != "sgd"
    ddp, theirs = replicated(rank, make, is_sharded=False, early=early)
    expected = train(ddp, rank, theirs)
    whole = held_bytes(ddp.module.parameters())
    states = held_bytes(states_of(theirs))
    shards, ours = replicated(rank, make, OPTIONS.get(name), is_sharded=True, early=early)
    losses = train(shards, rank, ours)
    found = {
        "losses": apart(losses, expected),
        "names": [key for key, _ in shards.named_parameters()] == [key for key, _ in ddp.named_parameters()],
        "kind": isinstance(shards, DistributedDataParallel) and type(shards).__name__ == "DistributedDataParallel",
        "weights": far(copied(shards.module.state_dict()), copied(ddp.module.state_dict())),
        "state": far(copied(ours.state_dict()), copied(theirs.state_dict())),
        "held": held_bytes(shards.module.parameters()) / whole,
        "states": held_bytes(states_of(ours)) / max(1, states),
        "calls": shards.module.blocks[1].calls == ddp.module.blocks[1].calls,
    }
    # What was saved goes on as the one that was not interrupted: here, and under plain DDP and shared states.
    model, state = copied(shards.module.state_dict()), copied(ours.state_dict())
    on = []
    for how in ("weights", "plain", "states"):
        again, fresh = replicated(rank + 7, make, is_sharded=how == "weights", early=early)
        if how == "states":
            shared = shard_states(again)
        again.module.load_state_dict(model)
        fresh.load_state_dict(copied(state))
        on.append(plain(again, rank, fresh, 90, 2))
        if how == "states":
            again_state = copied(fresh.state_dict())
            shared.undo()
            found["states_back"] = far(again_state, copied(fresh.state_dict()))
    straight = plain(shards, rank, ours, 90, 2)
    found["resumed"] = max(apart(straight, each) for each in on)
    return found


def alone(rank, naive=False):
    """Rank 0 alone saves and evaluates beside a slow rank.

    The naive way serves what is there at that moment, whatever the step of the rank that asks.
    """
    found = {}
    if naive:
        PartService._wait_for = lambda *_: ""
    expected, theirs = replicated(rank, groups, is_sharded=False)
    plain(expected, rank, theirs)
    ddp, ours = replicated(rank, groups, is_sharded=True)
    if rank == dist.get_world_size() - 1:
        ours.register_step_pre_hook(lambda *_: time.sleep(0.4))
    plain(ddp, rank, ours)
    x = batch(0, 77)[0]
    if rank == 0:
        found["weights"] = far(copied(ddp.state_dict()), copied(expected.state_dict()))
        found["state"] = far(copied(ours.state_dict()), copied(theirs.state_dict()))
        for each in (ddp, expected):
            each.eval()
        seen = []
        ddp.module.blocks[0].register_forward_hook(lambda *_: seen.append(1))
        with torch.no_grad():
            one, other = ddp.module, expected.module
            found["seen"] = far(one(x), other(x))
            found["through"] = far(ddp(x), other(x))
            rows = torch.ones(2, 4, 12)
            for path in ("blocks.1", "blocks.1.wide", "head", "table"):
                inputs = x if path == "table" else rows
                found[path] = far(one.get_submodule(path)(inputs), other.get_submodule(path)(inputs))
        found["hooks"] = len(seen)
        for each in (ddp, expected):
            each.train()
        with torch.no_grad():  # updates BatchNorm's running means, of rank 0 alone
            ddp.module(x), expected.module(x)
        found["means"] = far(ddp.module.blocks[0].norm.state_dict(), expected.module.blocks[0].norm.state_dict())
        try:
            ddp.module(x)
        except ExchangeError as error:
            found["trains"] = str(error)
    found["after"] = apart(plain(ddp, rank, ours, 20, 2), plain(expected, rank, theirs, 20, 2))
    return found


def naive(rank):
    return alone(rank, naive=True)


def together(rank):
    """All ranks evaluate, each its batches, and not equally many; the first pass has rank 0's running means."""
    expected, theirs = replicated(rank, groups, is_sharded=False)
    plain(expected, rank, theirs)
    ddp, ours = replicated(rank, groups, is_sharded=True)
    plain(ddp, rank, ours)
    for each in (ddp, expected):
        each.eval()
    with torch.no_grad():
        first = far(ddp(batch(rank, 60)[0]), expected(batch(rank, 60)[0]))
        others = [far(ddp(x), expected.module(x)) for x in (batch(rank, 70 + at)[0] for at in range(2 + 3 * rank))]
    for each in (ddp, expected):
        each.train()
    return [first, *others, apart(plain(ddp, rank, ours, 20, 2), plain(expected, rank, theirs, 20, 2))]


class Written(nn.Module):
    """Views that are written into: outputs of its blocks by itself, those of the whole by the program."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12)) for _ in range(3))
        self.head = nn.Linear(12, 300)

    def forward(self, ids):
        found = self.table(ids)
        for block in self.blocks:
            later = block(found)
            later += found
            found = later
        return self.head(found)


def written(rank):
    """A program writes into views: its losses, whether its outputs are views, and what torch warned of."""
    found = {}
    for is_sharded in (False, True):
        torch.manual_seed(3)
        net = Written()
        ddp = shard_weights(net) if is_sharded else DistributedDataParallel(net)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        losses = found[is_sharded] = []
        with warnings.catch_warnings(record=True) as seen:
            for step in range(3):
                x, y = batch(rank, step)
                logits = ddp(x)
                found["view"] = logits._is_view()
                logits *= 2.0
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        found["warned"] = [str(each.message) for each in seen]
    return {"losses": apart(found[True], found[False]), "view": found["view"], "warned": found["warned"]}


def refusal(act):
    try:
        act()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


class Own(torch.optim.SGD):
    """Might look at whole weights."""


def refused(rank):
    """What can't be sharded, before anything is changed, and what a sharded module does not do."""
    found = {}

    def case(name, net=None, act=None, **options):
        net = net or Net()
        kept = act(net) if act else None
        found[name] = refusal(lambda: shard_weights(net, **options))
        assert all(type(each) is nn.Parameter for each in net.parameters()), name
        del kept

    case("unused", find_unused_parameters=True)
    case("optimizer", act=lambda net: Own(net.parameters(), lr=0.1))
    case("copy", act=lambda net: copy.deepcopy(net) if rank == 1 else None)
    case("list", act=lambda net: [each for each in net.parameters() if each.dim() > 1])
    case("hook", act=lambda net: net.blocks[0].wide.weight.register_hook(lambda gradient: gradient))
    case("unit", units=["blocks.9"])
    case("tied", units=["head"])
    case("sparse", net=nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)))
    scalar = nn.Linear(3, 3)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    case("scalar", net=scalar)
    ddp, optimizer = replicated(rank, groups, is_sharded=True)
    plain(ddp, rank, optimizer, 0, 1)
    found["deepcopy"] = refusal(lambda: copy.deepcopy(ddp.module))
    found["deepcopy_ddp"] = refusal(lambda: copy.deepcopy(ddp))
    found["save"] = refusal(lambda: torch.save(ddp.module, io.BytesIO()))
    found["save_ddp"] = refusal(lambda: torch.save(ddp, io.BytesIO()))
    found["hook_of_ddp"] = refusal(lambda: ddp.register_comm_hook(None, lambda *_: None))
    found["join"] = refusal(lambda: ddp.join().__enter__())
    late = Own(ddp.parameters(), lr=0.1)
    loss_of(ddp, rank, 3).backward()
    found["late"] = refusal(late.step)
    return found


def different(rank):
    """Rank 1 steps alone."""
    ddp, optimizer = replicated(rank, groups, is_sharded=True)
    other = torch.optim.SGD(ddp.module.blocks.parameters(), lr=0.1)
    loss_of(ddp, rank, 0).backward()
    return refusal((other if rank == 1 else optimizer).step)


def work(rank, names):
    return {name: OTHERS[name](rank) if name in OTHERS else compared(rank, name) for name in names}


OTHERS = {each.__name__: each for each in (alone, naive, together, written, refused, different)}

if __name__ == "__main__":
    chosen = sys.argv[2].split(",")
    print(json.dumps(on_ranks(int(sys.argv[1]), lambda rank: work(rank, chosen), timeout_s=100)))
