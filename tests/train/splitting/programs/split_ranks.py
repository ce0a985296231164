"""Split layers against plain DDP on forked ranks: the number of ranks is its argument, its answer a line of JSON."""

import copy
import hashlib
import json
import sys
import time
from random import Random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.core.errors import ExchangeError
from stoker.train import split
from stoker.train.averaging import serve

ROWS_OF_TABLE, IN, WIDTH, OUT, ROWS, STEPS = 23, 6, 10, 7, 5, 20
PLANS = {
    "column": {"head.1": "column"},
    "row": {"head.3": "row"},
    "pair": {"head.1": "column", "head.3": "row"},
    "apart": {"head.1": "row", "head.3": "column"},
    "table": {"table": "table"},
}
ALL = {"table": "table", **PLANS["pair"]}


class Net(nn.Module):
    """A table, a trunk, and a head of two linear layers; its inputs have a sequence dimension."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS_OF_TABLE, IN, padding_idx=20)
        self.trunk = nn.Linear(IN, IN, bias=False)  # before BatchNorm its gradient would be noise alone
        self.norm = nn.BatchNorm1d(IN)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(IN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, OUT))

    def forward(self, ids):
        return self.head(self.norm(self.trunk(self.table(ids)).transpose(1, 2)).transpose(1, 2))


def batch(rank, step, rows=ROWS):
    random = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randint(ROWS_OF_TABLE, (rows, 3), generator=random),
        torch.randint(OUT, (rows, 3), generator=random),
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def step_of(ddp, rank, step, optimizer, clip=0.0, rows=ROWS, dtype=None):
    x, y = batch(rank, step, rows)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(ddp.parameters(), clip) if clip else loss
    optimizer.step()
    optimizer.zero_grad()
    return [float(loss.detach()), float(norm.detach())]


def train(ddp, rank, optimizer, steps=STEPS, uneven=False, accumulate=False, clip=0.0, start=0, dtype=None):
    found = []
    for step in range(start, start + steps):
        rows = ROWS + rank * (step % 3) if uneven else ROWS
        if accumulate:
            x, y = batch(rank, 1000 + step)
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
        found += step_of(ddp, rank, step, optimizer, clip, rows, dtype)
    return found


def digest(tensors):
    return hashlib.sha256(b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)).hexdigest()


def state_of(optimizer):
    """Tensors of a state dict, in its order."""
    state = optimizer.state_dict()["state"]
    return [value for values in state.values() for value in values.values() if isinstance(value, torch.Tensor)]


def made(rank):
    torch.manual_seed(rank)  # other weights on each rank: DDP's are rank 0's, and so are split ones
    return Net()


def apart(one, other):
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(one, other, strict=True))


def compared(rank, plan, optimizer=adamw, **how):
    plain, ddp = DistributedDataParallel(made(rank)), split(made(rank), None, plan)
    theirs, ours = optimizer(plain.parameters()), optimizer(ddp.parameters())
    losses = apart(train(ddp, rank, ours, **how), train(plain, rank, theirs, **how))
    state, expected = ddp.module.state_dict(), plain.module.state_dict()
    return {
        "losses": losses,
        "weights": max(float((state[name] - expected[name]).abs().max()) for name in expected),
        "moments": max(float((a - b).abs().max()) for a, b in zip(state_of(ours), state_of(theirs), strict=True)),
        "names": list(state) == list(expected),
        "state": digest([value for name, value in state.items() if "running" not in name] + state_of(ours)),
        "held": sum(each.numel() for each in ddp.parameters()),
        "whole": sum(each.numel() for each in plain.parameters()),
    }


def work(rank):
    found = {name: compared(rank, plan) for name, plan in PLANS.items()}
    found["clipped"] = compared(rank, ALL, clip=0.1)
    found["largest"] = compared(rank, {**ALL, **PLANS["apart"]}, optimizer=sgd, clip=0.1)
    found["uneven"] = compared(rank, ALL, uneven=True)
    found["accumulated"] = compared(rank, PLANS["apart"], accumulate=True)
    found["autocast"] = compared(rank, ALL, optimizer=sgd, steps=10, dtype=torch.bfloat16)
    found["drawn"] = [drawn(rank, Random(seed)) for seed in range(12)]
    found["sent"] = {name: sent(rank, plan) for name, plan in PLANS.items()}
    found["alone"] = alone(rank)
    found["resumed"] = resumed(rank)
    found["different"] = different(rank)
    found["refused"] = refused(rank)
    return found


def drawn(rank, random):
    """Any net, plan and numbers of rows, none among them: the largest difference of a weight after some steps."""
    ranks = dist.get_world_size()
    widths = [random.randint(ranks, 9) for _ in range(random.randint(3, 6))]
    between = [random.choice([nn.ReLU(), nn.Tanh(), nn.LayerNorm(each)]) for each in widths[1:]]
    rows = [[random.choice([0, 1, 4, 7]) for _ in range(ranks)] for _ in range(4)]
    num_words, bias = random.randint(ranks, 30), random.random() < 0.7
    plan = {str(2 * place + 1): random.choice(["column", "row"]) for place in range(len(widths) - 1)}
    plan = {path: kind for path, kind in plan.items() if random.random() < 0.8}
    if random.random() < 0.6:
        plan["0"] = "table"

    def net():
        torch.manual_seed(rank)
        layers = [nn.Embedding(num_words, widths[0])]
        for one, other, act in zip(widths, widths[1:], between, strict=False):
            layers += [nn.Linear(one, other, bias=bias), copy.deepcopy(act)]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 2))

    def after(ddp):
        optimizer = sgd(ddp.parameters())
        for step, counts in enumerate(rows):
            ids = torch.randint(num_words, (counts[rank],), generator=torch.Generator().manual_seed(9 * step + rank))
            (ddp(ids).square().sum() / 8).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return ddp.module.state_dict()

    if not plan:
        return 0.0
    expected, found = after(DistributedDataParallel(net())), after(split(net(), None, plan))
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)


def sent(rank, plan):
    """Bytes of one step; of a table, with the lookups that went elsewhere."""
    ddp = split(made(rank), init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    layer = ddp.module.get_submodule(next(iter(plan)))
    train(ddp, rank, adamw(ddp.parameters()), 1)
    found = [layer.exchange.sent_bytes]
    if "table" in plan:
        first = sum(layer.widths[:rank])
        ids = batch(rank, 0)[0]
        found.append(int(((ids < first) | (ids >= first + layer.widths[rank])).sum()))
    return found


def alone(rank):
    """Rank 0 alone evaluates and saves in mid-training, where the others go on; loaded by plain torch."""
    ddp = split(made(rank), dist.group.WORLD, ALL)
    optimizer = adamw(ddp.parameters())
    train(ddp, rank, optimizer, 3)
    found = {}
    if rank == 0:
        time.sleep(0.3)  # the others wait in their next pass
        plain = Net()
        plain.load_state_dict(ddp.module.state_dict())
        theirs = adamw(plain.parameters())
        theirs.load_state_dict(optimizer.state_dict())
        plain.eval()
        ddp.module.eval()
        with torch.no_grad():
            found["apart"] = float((plain(batch(0, 99)[0]) - ddp.module(batch(0, 99)[0])).abs().max())
        ddp.module.train()
        found["equal"] = digest(state_of(theirs)) == digest(state_of(optimizer))
    found["after"] = train(ddp, rank, optimizer, 1)
    return found


def resumed(rank):
    """A training that loads whole tensors goes on as the uninterrupted one, to the last bit.

    With three ranks or more in the same DDP alone: a new one has other buckets at first, which gloo sums in another
    order of ranks.
    """
    ddp = split(made(rank), None, ALL)
    optimizer = adamw(ddp.parameters())
    train(ddp, rank, optimizer, 3)
    kept = copied(ddp.module.state_dict()), copied(optimizer.state_dict())
    first = train(ddp, rank, optimizer, 3, start=3)
    parts = digest(ddp.parameters())
    again = [(ddp, optimizer)]
    if dist.get_world_size() == 2:
        fresh = split(made(rank + 10), None, ALL)
        again.append((fresh, adamw(fresh.parameters())))
    found = []
    for module, its in again:
        module.module.load_state_dict(kept[0])
        its.load_state_dict(copied(kept[1]))  # torch keeps what it is given
        found.append(first == train(module, rank, its, 3, start=3))
        found.append(parts == digest(module.parameters()))
    return found


def copied(state):
    """A deep copy, as of a file."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return [copied(each) for each in state] if isinstance(state, list) else state


def different(rank):
    """Rank 1 makes a step that the others do not."""
    ddp = split(made(rank), None, PLANS["column"])
    optimizer = sgd(ddp.parameters())
    step_of(ddp, rank, 0, optimizer)
    if rank == 1:
        optimizer.step()
    try:
        ddp.module(batch(rank, 0)[0])
    except ExchangeError as error:
        return str(error)
    return ""


class Whole(torch.optim.SGD):
    """Might look at whole weights."""


def refused(rank):
    """What cannot be: an optimizer that is not known to work by element, `join`, averages."""
    ddp = split(made(rank), None, PLANS["column"])
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
    found = []
    for act in (
        Whole(ddp.parameters(), lr=0.1).step,
        ddp.join,
        lambda: serve(ddp),
    ):
        try:
            act()
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    print(json.dumps(on_ranks(int(sys.argv[1]), work, timeout_s=100)))
