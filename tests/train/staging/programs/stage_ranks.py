"""Layers in stages against plain DDP on forked ranks: their number and the cases are its arguments.

Its answer is a line of JSON.
"""

import contextlib
import copy
import io
import json
import random
import sys
import time
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.support.ranks import on_ranks
from stoker.core.errors import ExchangeError
from stoker.perf.features.step import trace
from stoker.perf.memory.stages import stage_memory
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.sharding.states import shard_states
from stoker.train.sharding.weights import shard_weights
from stoker.train.staging.calling import shard_layers
from stoker.train.staging.states import StageStates
from stoker.train.state.service import PartService
from tests.train.sharding.programs.state_ranks import batch, clipped, closed, copied, groups, hooked, plain, scaled
from tests.train.sharding.programs.weight_ranks import apart, far, held_bytes, refusal, sgd, states_of


class Block(nn.Module):
    """A residual block with BatchNorm and dropout."""

    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.wide = nn.Linear(width, 3 * width)
        self.narrow = nn.Linear(3 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.narrow(self.wide(self.norm(x.transpose(1, 2)).transpose(1, 2)).relu()))


class Net(nn.Module):
    """Blocks between a table and a head with the same weight, which the first and the last stage have."""

    def __init__(self, width=16):
        super().__init__()
        self.table = nn.Embedding(300, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(6))
        self.head = nn.Linear(width, 300, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        found = self.table(ids)
        for block in self.blocks:
            found = block(found)
        return self.head(found)


class Untied(Net):
    """Its weights have one stage each."""

    def __init__(self):
        super().__init__()
        self.head.weight = nn.Parameter(self.head.weight.detach().clone())


class Frozen(Untied):
    """What comes first is not trained."""

    def __init__(self):
        super().__init__()
        self.table.requires_grad_(False)
        self.blocks[0].requires_grad_(False)


CUTS = {2: ["blocks.3"], 3: ["blocks.2", "blocks.4"], 4: ["blocks.1", "blocks.3", "blocks.5"]}
CASES = {
    "adamw": (Net, groups, plain),
    "clipped": (Net, groups, clipped),
    "scaled": (Net, groups, scaled),
    "sgd": (Untied, sgd, plain),
    "frozen": (Frozen, groups, clipped),
    "closed": (Untied, groups, closed),
    "hooked": (Net, groups, hooked),
    "fused": (Untied, lambda module: groups(module, fused=True), scaled),
    "foreach": (Net, lambda module: groups(module, foreach=True), plain),
    "adafactor": (Untied, lambda module: groups(module, kind=torch.optim.Adafactor), plain),
}


def replicated(rank, kind, make, *, is_staged, early=True):
    torch.manual_seed(rank)
    net = kind()
    optimizer = make(net) if early else None
    ranks = dist.get_world_size()
    example = torch.zeros(4, 5, dtype=torch.int64)
    ddp = shard_layers(net, example, cuts=CUTS[ranks]) if is_staged else DistributedDataParallel(net)
    return ddp, optimizer if early else make(ddp.module)


def own_bytes(module):
    return held_bytes([each for each in module.parameters() if type(each) is nn.Parameter])


def compared(rank, name):
    kind, make, train = CASES[name]
    early = name != "sgd"
    ddp, theirs = replicated(rank, kind, make, is_staged=False, early=early)
    torch.manual_seed(50 + rank)
    expected = train(ddp, rank, theirs)
    drawn = torch.rand(3)
    stages, ours = replicated(rank, kind, make, is_staged=True, early=early)
    torch.manual_seed(50 + rank)
    losses = train(stages, rank, ours)
    found = {
        "losses": apart(losses, expected),
        "draws": torch.equal(torch.rand(3), drawn),
        "names": [key for key, _ in stages.named_parameters()] == [key for key, _ in ddp.named_parameters()],
        "kind": isinstance(stages, DistributedDataParallel) and type(stages).__name__ == "DistributedDataParallel",
        "weights": far(state_of(stages, rank), state_of(ddp, rank)),
        "state": far(copied(ours.state_dict()), copied(theirs.state_dict())),
        "held": own_bytes(stages.module) / held_bytes(ddp.module.parameters()),
        "states": held_bytes(states_of(ours)) / max(1, held_bytes(states_of(theirs))),
    }
    # What was saved goes on as the one that was not interrupted: here, and under each other choice.
    model, state = copied(stages.module.state_dict()), copied(ours.state_dict())
    on = []
    for how in ("stages", "plain", "states"):
        again, fresh = replicated(rank + 7, kind, make, is_staged=how == "stages", early=early)
        if how == "states":
            shared = shard_states(again)
        again.module.load_state_dict(model)
        fresh.load_state_dict(copied(state))
        torch.manual_seed(90 + rank)
        on.append(plain(again, rank, fresh, 90, 2))
        if how == "states":
            shared.undo()
    torch.manual_seed(90 + rank)
    straight = plain(stages, rank, ours, 90, 2)
    found["resumed"] = max(apart(straight, each) for each in on)
    return found


def state_of(ddp, rank):
    """Rank 0's: under DDP other ranks have running means of their own between two passes."""
    state = copied(ddp.module.state_dict())
    return state if not rank else {key: value for key, value in state.items() if "running" not in key}


def alone(rank, naive=False):
    """Rank 0 alone saves, copies and evaluates beside a slow rank.

    The naive way serves what is there at that moment, whatever the step of the rank that asks.
    """
    found = {}
    if naive:
        PartService._wait_for = lambda *_: ""
    expected, theirs = replicated(rank, Net, groups, is_staged=False)
    torch.manual_seed(rank)
    plain(expected, rank, theirs)
    ddp, ours = replicated(rank, Net, groups, is_staged=True)
    if rank == dist.get_world_size() - 1:
        begin = StageStates._begin
        # Behind the word of all ranks: rank 0 is through its step before.
        StageStates._begin = lambda *args: (begin(*args), time.sleep(0.4))[0]
    torch.manual_seed(rank)
    plain(ddp, rank, ours)
    x = batch(0, 77)[0]
    if rank == 0:
        found["weights"] = far(copied(ddp.state_dict()), copied(expected.state_dict()))
        found["state"] = far(copied(ours.state_dict()), copied(theirs.state_dict()))
        for each in (ddp, expected):
            each.eval()
        with torch.no_grad():
            one, other = ddp.module, expected.module
            found["seen"] = far(one(x), other(x))
            found["through"] = far(ddp(x), other(x))
            found["inner"] = far(one.blocks[5](torch.ones(2, 4, 16)), other.blocks[5](torch.ones(2, 4, 16)))
        with torch.inference_mode():
            found["inference"] = far(ddp(x).clone(), other(x).clone())
        average = copy.deepcopy(ddp.module)
        assert all(type(each) is nn.Parameter for each in average.parameters())
        assert average.head.weight is average.table.weight
        found["copy"] = far(average.state_dict(), copied(expected.module.state_dict()))
        stream = io.BytesIO()
        torch.save(ddp.module, stream)
        loaded = torch.load(io.BytesIO(stream.getvalue()), weights_only=False)
        assert all(type(each) is nn.Parameter for each in loaded.parameters())
        assert loaded.head.weight is loaded.table.weight
        found["file"] = far(loaded.state_dict(), copied(expected.module.state_dict()))
        with torch.no_grad():
            for one, other in zip(average.parameters(), ddp.module.parameters(), strict=True):
                one.lerp_(other.detach() + 1, 0.5)
            found["average"] = max(
                float((one - other - 0.5).abs().max())
                for one, other in zip(average.parameters(), expected.parameters(), strict=True)
            )
        for each in (ddp, expected):
            each.train()
        found["trains"] = refusal(lambda: ddp.module(x))
        found["writes"] = refusal(lambda: torch.nn.init.zeros_(ddp.module.blocks[5].wide.weight))
    torch.manual_seed(70 + rank)
    one = plain(ddp, rank, ours, 20, 2)
    torch.manual_seed(70 + rank)
    found["after"] = apart(one, plain(expected, rank, theirs, 20, 2))
    return found


def naive(rank):
    return alone(rank, naive=True)


class Two(nn.Module):
    """A skip over all stages, two inputs of which one wants a gradient, outputs by name, a loss inside."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, x, target=None, scale=1.0):
        kept = []
        found = x
        for each in self.down:
            found = each(found).tanh()
            kept.append(found)
        middle = found
        for each in self.up:
            found = each(found + kept.pop()).relu()
        found = self.norm(found) * scale
        loss = None if target is None else ((found - target) ** 2).mean()
        return {"loss": loss, "rows": (found, middle), "count": (x > 0).sum(), "same": x}


def named(rank):
    """Two passes before one backward pass, keywords, gradients of inputs, uneven and changing batches."""
    ranks = dist.get_world_size()
    cuts = {2: ["up.1"], 3: ["down.2", "up.1"], 4: ["down.2", "up.0", "up.2"]}[ranks]
    losses = {}
    for is_staged in (False, True):
        torch.manual_seed(0)
        net = Two()
        example = {"x": torch.zeros(3, 8, requires_grad=True), "target": torch.zeros(3, 8)}
        ddp = shard_layers(net, example, cuts=cuts) if is_staged else DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
        found = losses[is_staged] = []
        for step in range(6):
            generator = torch.Generator().manual_seed(10 * step + rank)
            rows = 3 + rank + (step == 5)
            x = torch.randn(rows, 8, generator=generator, requires_grad=True)
            target = torch.randn(rows, 8, generator=generator)
            if step < 3:
                first = ddp(x=x, target=target)
                total = first["loss"] + 0.1 * first["rows"][1].sum()
            else:
                one, other = ddp(x=x, target=target), ddp(x=2 * x, target=target)
                total = one["loss"] + other["loss"] * 0.5
                first = one
            assert first["same"] is x
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            found += [total.item(), float(first["count"]), float(x.grad.norm())]
            found += first["rows"][0].detach().flatten()[:5].tolist()
        found += [float(each.detach().double().sum()) for each in copied(ddp.module.state_dict()).values()]
    return apart(losses[True], losses[False])


def together(rank):
    """All ranks evaluate, each its batches, and not equally many; the first pass has rank 0's running means."""
    expected, theirs = replicated(rank, Untied, groups, is_staged=False)
    torch.manual_seed(rank)
    plain(expected, rank, theirs)
    ddp, ours = replicated(rank, Untied, groups, is_staged=True)
    torch.manual_seed(rank)
    plain(ddp, rank, ours)
    for each in (ddp, expected):
        each.eval()
    with torch.no_grad():
        first = far(ddp(batch(rank, 60)[0]), expected(batch(rank, 60)[0]))
        others = [far(ddp(x), expected.module(x)) for x in (batch(rank, 70 + at)[0] for at in range(2 + 3 * rank))]
    # With gradients and without dropout: a pass of all ranks in evaluation.
    rows = far(ddp(batch(rank, 61)[0]), expected.module(batch(rank, 61)[0]))
    return [first, *others, rows]


class Residual(nn.Module):
    """A residual block of convolutions, which works in place."""

    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        found = self.last(self.second(self.relu(self.norm(self.first(x)))))
        found += x
        return self.relu(found)


class Images(nn.Module):
    """A residual network."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*(Residual() for _ in range(4)))
        self.head = nn.Linear(16, 300)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Words(nn.Module):
    """A transformer encoder with a mask and dropout."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.table, self.head = nn.Embedding(300, 32), nn.Linear(32, 300)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.encoder(self.table(ids), mask=mask, is_causal=True))


def drawn(kind, rank, step):
    """A batch of images or words."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    if kind is Images:
        return torch.randn(4, 3, 8, 8, generator=generator).double(), torch.randint(300, (4,), generator=generator)
    return torch.randint(300, (4, 7), generator=generator), torch.randint(300, (4, 7), generator=generator)


def twenty(rank):
    """Losses of 20 steps of three models, the last two cut as predicted.

    These are in double precision: AdamW makes much of the order of sums where a gradient is rounding alone, as that of
    a bias before a norm is.
    """
    found = {}
    for kind in (Net, Images, Words):
        losses = []
        for is_staged in (False, True):
            if kind is Net:
                ddp, optimizer = replicated(rank, kind, groups, is_staged=is_staged)
                torch.manual_seed(rank)
                losses.append(plain(ddp, rank, optimizer, 0, 20))
                continue
            torch.manual_seed(0)
            net = kind().double()
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
            ddp = shard_layers(net, drawn(kind, 0, 0)[0]) if is_staged else DistributedDataParallel(net)
            torch.manual_seed(rank)
            losses.append([])
            for step in range(20):
                x, y = drawn(kind, rank, step)
                loss = nn.functional.cross_entropy(ddp(x).flatten(0, -2), y.flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
        found[kind.__name__] = apart(*losses)
    return found


class Wide(nn.Module):
    """Blocks that keep much."""

    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
              for _ in range(8))
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        found = self.first(x)
        for block in self.blocks:
            found = found + block(found)
        return self.head(found)


def peaks(rank):
    """Bytes that are alive at most, against those that are predicted, for cuts that are chosen."""
    found = []
    for rows, width in ((256, 64), (16, 128), (1024, 64)):
        x, y = torch.randn(rows, 32), torch.randint(10, (rows,))
        net = Wide(width)
        optimizer = torch.optim.AdamW(net.parameters())
        _, timeline = trace(
            net, x, optimizer=optimizer, loss=partial(nn.functional.cross_entropy, target=y), target="cpu"
        )
        ddp = shard_layers(net, x, budget="1GB")
        predicted = stage_memory(timeline, ddp.stoker_stages.cuts, dist.get_world_size())[rank].peak
        counted = 0
        for _ in range(3):
            known = [each for each in (*net.parameters(), *states_of(optimizer)) if type(each).__name__[0] != "E"]
            with LiveBytes([*known, x, y]) as live:
                nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()
            optimizer.zero_grad()
            counted = live.peak
        found.append(predicted / counted - 1)
    return found


class Own(torch.optim.SGD):
    """Might look at all weights."""

    def step(self, closure=None):
        return super().step(closure)


class Straight(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(_context, x):
        return x.round()

    @staticmethod
    def backward(_context, gradient):
        return gradient


class Odd(nn.Module):
    """Does what a graph leaves out."""

    def __init__(self, act):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.calls = act, 0

    def forward(self, x):
        return self.last(self.act(self, self.first(x)))


def count(module, x):
    module.calls += 1
    return x


def branch(_module, x):
    return x if x.sum() > 0 else -x


def shift(_module, x):
    return x + random.random()


def refused(rank):
    """What can't be in stages, before anything is changed, and what a module in stages does not do."""
    found = {}
    ranks = dist.get_world_size()
    ids, rows = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(2, 4)

    def case(name, net=None, act=None, example=ids, cuts=None, **options):
        net = net or Net()
        kept = act(net) if act else None
        if cuts is None:
            cuts = CUTS[ranks] if isinstance(net, Net) else ["last"]
        names = list(dict(net.named_parameters()))
        found[name] = refusal(lambda: shard_layers(net, example, cuts=cuts, **options))
        assert all(type(each) is nn.Parameter and each.numel() == each.untyped_storage().size() // 4
                   for each in net.parameters()), name  # fmt: skip
        assert names == list(dict(net.named_parameters())), name
        del kept

    case("unused", find_unused_parameters=True)
    case("optimizer", act=lambda net: Own(net.parameters(), lr=0.1))
    case("hook", act=lambda net: net.blocks[0].register_forward_hook(lambda *_: None) if rank == 1 else None)
    case("gradient", act=lambda net: net.blocks[0].wide.weight.register_hook(lambda gradient: gradient))
    case("compiled", act=lambda net: net.compile())
    case("few", cuts=[])
    case("path", cuts=["blocks.9"] * (ranks - 1))
    case("counter", Odd(count), example=rows)
    case("branch", Odd(branch), example=rows)
    case("python", Odd(shift), example=rows)
    case("function", Odd(lambda _module, x: Straight.apply(x)), example=rows)
    again = partial(checkpoint, use_reentrant=False)
    case("checkpoint", Odd(lambda module, x: again(module.last, x)), example=rows)
    case("older", Odd(lambda module, x: checkpoint(module.last, x, use_reentrant=True)), example=rows)
    unused = Odd(lambda _module, x: x)
    unused.more = nn.Linear(2, 2)
    case("idle", unused, example=rows)
    case("order", Odd(lambda _module, x: x), cuts=["first"], example=rows)
    case("argument", Odd(lambda _module, x: x), example=(rows, object()))
    case("buffers", broadcast_buffers=False)
    ddp, optimizer = replicated(rank, Net, groups, is_staged=True)
    plain(ddp, rank, optimizer, 0, 1)
    found["deepcopy_ddp"] = refusal(lambda: copy.deepcopy(ddp))
    found["save_ddp"] = refusal(lambda: torch.save(ddp, io.BytesIO()))
    found["hook_of_ddp"] = refusal(lambda: ddp.register_comm_hook(None, lambda *_: None))
    found["join"] = refusal(lambda: ddp.join().__enter__())
    loss = ddp(ids).sum()
    loss.backward(retain_graph=True)
    found["twice"] = refusal(loss.backward)
    late = Own(ddp.parameters(), lr=0.1)
    found["late"] = refusal(late.step)
    return found


def different(rank):
    """Rank 1 steps alone; then ranks call the module in different ways."""
    ddp, optimizer = replicated(rank, Untied, groups, is_staged=True)
    other = torch.optim.SGD(ddp.module.blocks.parameters(), lr=0.1)
    nn.functional.cross_entropy(ddp(batch(rank, 0)[0]).flatten(0, 1), batch(rank, 0)[1].flatten()).backward()
    found = [refusal((other if rank == 1 else optimizer).step)]
    ddp, optimizer = replicated(rank, Untied, groups, is_staged=True)
    ddp.train(rank != 1)
    found.append(refusal(lambda: ddp(batch(rank, 0)[0])))
    return found


def over(rank):
    """Into a file and back under each other choice and number of ranks."""
    kinds = {}
    for how in ("stages", "weights", "states", "plain"):
        if how == "stages":
            ddp, optimizer = replicated(rank, Untied, groups, is_staged=True)
        elif how == "weights":
            torch.manual_seed(rank)
            ddp = shard_weights(Untied())
            optimizer = groups(ddp.module)
        else:
            ddp, optimizer = replicated(rank, Untied, groups, is_staged=False)
            shares = shard_states(ddp) if how == "states" else None
        torch.manual_seed(rank)
        plain(ddp, rank, optimizer, 0, 2)
        kinds[how] = copied(ddp.module.state_dict()), copied(optimizer.state_dict())
        for other in kinds:
            model, state = kinds[other]
            dist.barrier()  # a rank that loads has another version than one that still reads
            ddp.module.load_state_dict(model)
            optimizer.load_state_dict(state)
            assert far(copied(optimizer.state_dict()), state) == 0, (how, other)
            assert far({k: v for k, v in copied(ddp.module.state_dict()).items() if "running" not in k},
                       {k: v for k, v in model.items() if "running" not in k}) == 0, (how, other)  # fmt: skip
        if how == "states":
            shares.close()
    return max(far(kinds["stages"][1], kinds[other][1]) for other in kinds)


def work(rank, names):
    warnings.simplefilter("ignore")
    return {name: OTHERS[name](rank) if name in OTHERS else compared(rank, name) for name in names}


OTHERS = {each.__name__: each for each in (alone, naive, named, together, twenty, peaks, refused, different, over)}

if __name__ == "__main__":
    chosen = sys.argv[2].split(",")
    with contextlib.suppress(ExchangeError):
        print(json.dumps(on_ranks(int(sys.argv[1]), lambda rank: work(rank, chosen), timeout_s=100)))
