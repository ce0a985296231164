"""Optimizer states in shares against plain DDP on forked ranks: their number and the cases are its arguments.

Its answer is a line of JSON."""

import contextlib
import copy
import hashlib
import io
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.train.sharding.states import shard_states

STEPS = 6


class Net(nn.Module):
    """Tied weights, a convolution laid out by channels, BatchNorm, and a weight larger than all others together."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 12)
        self.conv = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.BatchNorm1d(12)
        self.wide = nn.Linear(12, 700)
        self.narrow = nn.Linear(700, 12)
        self.head = nn.Linear(12, 300, bias=False)
        self.head.weight = self.table.weight
        self.conv.weight.data = self.conv.weight.data.transpose(1, 2).contiguous().transpose(1, 2)

    def forward(self, ids):
        found = self.norm(self.conv(self.table(ids).transpose(1, 2))).transpose(1, 2)
        return self.head(found + self.narrow(self.wide(found).relu()))


def batch(rank, step):
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(300, (4, 5), generator=random), torch.randint(300, (4, 5), generator=random)


def loss_of(ddp, rank, step):
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten())


def groups(module, kind=torch.optim.AdamW, **options):
    """Two groups, as programs make them."""
    decayed = [each for each in module.parameters() if each.dim() > 1]
    others = [each for each in module.parameters() if each.dim() <= 1]
    decay = {} if kind is torch.optim.Rprop else {"weight_decay": 0.02}
    return kind([{"params": decayed, **decay}, {"params": others, "lr": 0.003}], lr=0.01, **options)


def plain(ddp, rank, optimizer, start=0, steps=STEPS):
    found = []
    for step in range(start, start + steps):
        loss = loss_of(ddp, rank, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def clipped(ddp, rank, optimizer):
    """Two micro-batches, clipped, with a schedule."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    found = []
    for step in range(STEPS):
        with ddp.no_sync():
            loss_of(ddp, rank, 50 + step).backward()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 0.3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        found += [loss.item(), norm.item()]
    return found


def scaled(ddp, rank, optimizer):
    """Mixed precision with a scaler, whose first scale overflows: a step is skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    found = []
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(ddp, rank, step)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found += [loss.item(), scaler.get_scale()]
    return found


def closed(ddp, rank, optimizer):
    """A closure, which sets all gradients to zero."""
    found = []
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad(set_to_none=False)
            loss = loss_of(ddp, rank, step)
            loss.backward()
            return loss

        found.append(optimizer.step(closure).item())
    optimizer.zero_grad()
    return found


def grown(ddp, rank, optimizer):
    """A group is added in mid-training."""
    found = plain(ddp, rank, optimizer)
    known = {id(each) for group in optimizer.param_groups for each in group["params"]}
    optimizer.add_param_group({"params": [each for each in ddp.parameters() if id(each) not in known], "lr": 0.005})
    return found + plain(ddp, rank, optimizer, STEPS)


def hooked(ddp, rank, optimizer):
    """The program's own hooks see all weights, before a step and updated behind it."""
    seen = []

    def look(optimizer, *_):
        weights = [each for group in optimizer.param_groups for each in group["params"]]
        seen.append(float(sum(each.detach().double().sum() for each in weights)))

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(look)
    return plain(ddp, rank, optimizer) + seen


CASES = {
    "adamw": (groups, plain, {}),
    "clipped": (groups, clipped, {}),
    "scaled": (groups, scaled, {}),
    "closed": (groups, closed, {}),
    "hooked": (groups, hooked, {}),
    "fused": (groups, scaled, {"fused": True}),
    "foreach": (groups, plain, {"foreach": True}),
    "sgd": (groups, plain, {"kind": torch.optim.SGD, "momentum": 0.9}),
    "still": (groups, plain, {"kind": torch.optim.SGD}),
    "adagrad": (groups, plain, {"kind": torch.optim.Adagrad}),
    "rprop": (groups, plain, {"kind": torch.optim.Rprop}),
    "adafactor": (groups, plain, {"kind": torch.optim.Adafactor}),
    "amsgrad": (groups, plain, {"kind": torch.optim.Adam, "amsgrad": True}),
    "grown": (lambda module: torch.optim.AdamW(module.wide.parameters(), lr=0.01), grown, {}),
}


def digest(tensors):
    return hashlib.sha256(b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)).hexdigest()


def copied(state):
    """As from a file."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=True)


def equal(one, other):
    """Whether two state dicts are equal in all they hold."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def replicated(rank, make, options, *, is_shared):
    """A net in DDP and its optimizer, made before it."""
    torch.manual_seed(rank)
    net = Net()
    optimizer = make(net, **options)
    ddp = DistributedDataParallel(net)
    return ddp, optimizer, shard_states(ddp) if is_shared else None


def held_bytes(optimizer):
    return sum(
        value.numel() * value.element_size()
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor)
    )


def compared(rank, name):
    make, train, options = CASES[name]
    ddp, theirs, _ = replicated(rank, make, options, is_shared=False)
    expected = train(ddp, rank, theirs)
    weights, held, state = digest(ddp.module.state_dict().values()), held_bytes(theirs), copied(theirs.state_dict())
    ddp, ours, shares = replicated(rank, make, options, is_shared=True)
    found = {
        "losses": train(ddp, rank, ours) == expected,
        "weights": digest(ddp.module.state_dict().values()) == weights,
        "held": held_bytes(ours) / max(1, held),
        "state": equal(copied(ours.state_dict()), state),
        "bucket": shares.bucket_bytes,
    }
    # A loaded state goes on as the one that was not interrupted, here and under plain DDP.
    again, fresh, others = replicated(rank + 7, make, options, is_shared=True)
    if name == "grown":
        return found
    again.module.load_state_dict(ddp.module.state_dict())
    fresh.load_state_dict(state)
    found["loaded"] = held_bytes(fresh) / max(1, held)
    one, other = (plain(each, rank, its, 90, 2) for each, its in ((ddp, ours), (again, fresh)))
    found["resumed"] = one == other or dist.get_world_size() > 2  # a new DDP of three sums its first step otherwise
    shares.undo()
    found["undone"] = equal(copied(ours.state_dict()), copied(fresh.state_dict())) or dist.get_world_size() > 2
    found["whole"] = held_bytes(ours) / max(1, held)
    found["after"] = plain(ddp, rank, ours, 95, 1) == plain(again, rank, fresh, 95, 1) or dist.get_world_size() > 2
    others.close()
    return found


def slow(rank):
    """Rank 0 alone saves and evaluates, beside a rank that is still in its step."""
    found = {}
    expected, theirs, _ = replicated(rank, groups, {}, is_shared=False)
    ddp, ours, _ = replicated(rank, groups, {}, is_shared=True)
    plain(expected, rank, theirs)
    if rank == dist.get_world_size() - 1:
        ours.register_step_pre_hook(lambda *_: time.sleep(0.2))
        ours.register_step_post_hook(lambda *_: time.sleep(0.2))
    plain(ddp, rank, ours)
    if rank == 0:
        found["state"] = equal(copied(ours.state_dict()), copied(theirs.state_dict()))
        with torch.no_grad():
            found["seen"] = torch.equal(ddp.module.eval()(batch(0, 0)[0]), expected.module.eval()(batch(0, 0)[0]))
        ddp.train()
        expected.train()
        time.sleep(0.5)  # the others wait in their next step
        found["again"] = equal(copied(ours.state_dict()), copied(theirs.state_dict()))
    found["after"] = plain(ddp, rank, ours, 20, 2) == plain(expected, rank, theirs, 20, 2)
    return found


def between(rank):
    """Rank 0 alone saves between its backward pass and its step: no other rank goes ahead meanwhile."""
    found = {}
    expected, theirs, _ = replicated(rank, groups, {}, is_shared=False)
    ddp, ours, _ = replicated(rank, groups, {}, is_shared=True)
    plain(expected, rank, theirs, 0, 2)
    plain(ddp, rank, ours, 0, 2)
    before = copied(theirs.state_dict())
    loss_of(expected, rank, 2).backward()
    loss_of(ddp, rank, 2).backward()
    if rank == 0:
        time.sleep(0.5)
        found["state"] = equal(copied(ours.state_dict()), before)
    theirs.step()
    ours.step()
    found["weights"] = digest(ddp.parameters()) == digest(expected.parameters())
    return found


class Own(torch.optim.SGD):
    """Might look at all gradients."""

    def step(self, closure=None):
        return super().step(closure)


def refused(rank):
    """What can't be shared, and that it stays whole where that is asked for."""
    found = []
    for make in (lambda net: torch.optim.LBFGS(net.parameters()), lambda net: Own(net.parameters(), lr=0.1)):
        ddp, optimizer, shares = replicated(rank, make, {}, is_shared=True)
        loss_of(ddp, rank, 0).backward()
        try:
            optimizer.step(lambda ddp=ddp: loss_of(ddp, rank, 0))
        except TypeError as error:
            found.append(str(error))
        shares.close()
    ddp, optimizer, shares = replicated(rank, groups, {}, is_shared=True)
    try:
        with ddp.join():
            pass
    except ValueError as error:
        found.append(str(error))
    shares.close()
    with contextlib.suppress(TypeError), ddp.join():
        found.append("joined")
    told = []
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(Net())
    optimizer = Own(ddp.parameters(), lr=0.1, momentum=0.9)
    shares = shard_states(ddp, refused=told.append)
    plain(ddp, rank, optimizer)
    shares.close()
    return [*found, *told, len(optimizer.state)]


def raised(rank):
    """A step that raises leaves the optimizer whole."""
    ddp, optimizer, shares = replicated(rank, groups, {}, is_shared=True)
    plain(ddp, rank, optimizer, 0, 1)
    whole = len(optimizer.param_groups[0]["params"])

    def closure():
        raise KeyError("planted")

    with contextlib.suppress(KeyError):
        optimizer.step(closure)
    saved = optimizer.state_dict()
    dist.barrier()  # a rank that ends its share serves nothing more
    shares.close()
    return [len(saved["param_groups"][0]["params"]) == whole, len(saved["state"])]


def different(rank):
    """Rank 1 makes a step that others do not."""
    ddp, optimizer, shares = replicated(rank, groups, {}, is_shared=True)
    other = torch.optim.SGD(ddp.module.wide.parameters(), lr=0.1)
    loss_of(ddp, rank, 0).backward()
    try:
        (other if rank == 1 else optimizer).step()
    except RuntimeError as error:
        return str(error)
    finally:
        shares.close()
    return ""


def kept(rank):
    """A copy of DDP, and one that is saved, have nothing of stoker's."""
    ddp, optimizer, shares = replicated(rank, groups, {}, is_shared=True)
    plain(ddp, rank, optimizer, 0, 1)
    stream = io.BytesIO()
    torch.save(ddp.module, stream)
    twin = copy.deepcopy(ddp.module)
    shares.close()
    return [b"stoker" in stream.getvalue(), digest(twin.parameters()) == digest(ddp.parameters())]


OTHERS = {each.__name__: each for each in (slow, between, refused, raised, different, kept)}


def work(rank, names):
    return {name: OTHERS[name](rank) if name in OTHERS else compared(rank, name) for name in names}


if __name__ == "__main__":
    chosen = sys.argv[2].split(",")
    print(json.dumps(on_ranks(int(sys.argv[1]), lambda rank: work(rank, chosen), timeout_s=100)))
