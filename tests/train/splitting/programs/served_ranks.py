"""Unmodified programs whose layers are split while they train, against plain DDP: a case on some ranks, and its answer.

Arguments: the number of ranks, names of cases; the answer is a line of JSON. Prices of a plan are the real ones or a
plan is planted, as a case says; on this machine no split gains time, so that verdicts of trials are planted.
"""

import copy
import gc
import io
import json
import sys

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.support.ranks import on_ranks
from stoker.records.exchange import AgreedExchange, LayerMethod
from stoker.run.exchanging.serving import planner
from stoker.train.exchanging import calling
from stoker.train.program.replicas import ReplicaWatch
from stoker.train.splitting.layers import SplitLayer
from stoker.train.splitting.running.split_trial import SplitTrial

WORDS, IN, WIDTH, OUT, ROWS, STEPS = 67, 6, 64, 7, 5, 22
FIRST = 6 + 1 + 3
"""Steps before layers are split: of the plan, one that settles, and the trial's."""
SPLIT = FIRST + 1 + 3
"""Steps until it is known whether they stay."""
PAIR = {"head.1": "column", "head.3": "row"}
ALL = {"table": "table", **PAIR}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}


class Net(nn.Module):
    """A table, a trunk, and a head of two linear layers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, IN, padding_idx=20)
        self.trunk = nn.Linear(IN, IN, bias=False)
        self.norm = nn.BatchNorm1d(IN)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(IN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, OUT))

    def forward(self, ids):
        return self.head(self.norm(self.trunk(self.table(ids)).transpose(1, 2)).transpose(1, 2))


def made():
    torch.manual_seed(dist.get_rank())
    return Net()


def loss_of(ddp, step):
    random = torch.Generator().manual_seed(100 * step + dist.get_rank())
    ids = torch.randint(WORDS, (ROWS, 3), generator=random)
    classes = torch.randint(OUT, (ROWS, 3), generator=random)
    return nn.functional.cross_entropy(ddp(ids).flatten(0, 1), classes.flatten())


def adamw(ddp):
    return torch.optim.AdamW(ddp.parameters(), lr=1e-2)


def sgd(ddp):
    return torch.optim.SGD(ddp.parameters(), **SGD)


class Program:
    """A training as people write it; the last loss lives on, and gradients are dropped after the forward pass."""

    def __init__(self, optimizer=adamw, net=made, **options):
        self.ddp = DistributedDataParallel(net(), **options)
        self.optimizer = optimizer(self.ddp)
        self.found = []

    def train(self, steps=STEPS, start=0, clip=0.0, accumulate=False, dtype=None):
        for step in range(start, start + steps):
            if accumulate:
                with self.ddp.no_sync():
                    loss_of(self.ddp, 1000 + step).backward()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = loss_of(self.ddp, step)
            if not accumulate:
                self.optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.ddp.parameters(), clip) if clip else loss
            self.optimizer.step()
            if accumulate:
                self.optimizer.zero_grad()
            self.found += [float(loss.detach()), float(norm.detach())]
        return self.found


def planted(plan):
    """A plan that names splits where they are possible, and nothing else."""

    def planned(measured):
        agreed = planner(frozenset({"split"}))([replace(each, links=None) for each in measured])
        layers = {each.module: each for each in measured[0].layers}
        methods = [
            LayerMethod(module=path, weight=f"{path}.weight", method=kind, rows=0)
            for path, kind in plan.items()
            if path in layers and kind in layers[path].splits
        ]
        return AgreedExchange(
            methods=methods, report=agreed.report, note=str({k: v.unsplit for k, v in layers.items()})
        )

    return planned


class Served:
    """Within its block modules of DDP are served, with leave to split."""

    def __init__(self, plan, gains=True):
        self.replicas, self.said = [], []
        self.plan = planted(plan)
        SplitTrial.STEPS, SplitTrial.SETTLING, SplitTrial.LEAST_GAIN = 3, 1, -99.0 if gains else 99.0
        self.watch = ReplicaWatch(self.serve)

    def serve(self, ddp):
        self.replicas.append(calling.serve(ddp, self.plan, tell=self.said.append, splits=True))
        return self.replicas[-1]

    def __enter__(self):
        self.watch.install()
        return self

    def __exit__(self, *_):
        self.watch.remove()

    @property
    def record(self):
        return self.replicas[0].record()

    @property
    def runs(self):
        return [
            {"layers": each.layers, "step": each.step, "kept": each.kept, "why": each.why, "gain": each.gain}
            for each in self.record.splits
        ]


def copied(state):
    """A deep copy, as of a file."""
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=True)


def tensors_of(optimizer):
    return [value for values in optimizer.state_dict()["state"].values() for value in values.values()]


def apart(one, other):
    return max((abs(a - b) / max(abs(b), 1e-3) for a, b in zip(one, other, strict=True)), default=0.0)


def largest(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def compared(plan, gains=True, optimizer=adamw, options=None, **how):
    """A program under plain DDP, then served."""

    def plain():
        program = Program(optimizer, **(options or {}))
        losses = list(program.train(**how))
        return losses, copied(program.ddp.module.state_dict()), [each.clone() for each in tensors_of(program.optimizer)]

    losses, state, moments = plain()
    gc.collect()
    with Served(plan, gains) as served:
        program = Program(optimizer, **(options or {}))
        identity = id(program.ddp), id(program.ddp.module), [id(each) for each in program.ddp.parameters()]
        found = program.train(**how)
        same = identity == (id(program.ddp), id(program.ddp.module), [id(each) for each in program.ddp.parameters()])
        own = program.ddp.module.state_dict()
        record = served.record
        answer = {
            "losses": apart(found, losses),
            "weights": largest(list(own.values()), list(state.values())),
            "moments": largest(tensors_of(program.optimizer), moments),
            "names": list(own) == list(state),
            "same": same,
            "held": sum(each.numel() for each in program.ddp.parameters()),
            "bits": [each.double().sum().item() for name, each in own.items() if "running" not in name] + [
                each.double().sum().item() for each in tensors_of(program.optimizer)
            ],
            "runs": served.runs,
            "note": record.agreed.note,
            "methods": {each.module: each.method for each in record.agreed.methods},
            "split": sum(isinstance(each, SplitLayer) for each in program.ddp.modules()),
            "bytes": [record.plain_bytes, record.planned_bytes],
            "said": served.said,
        }  # fmt: skip
        dist.barrier()  # nobody leaves before all parts are there
        return answer


class Whole(torch.optim.SGD):
    """Might look at whole weights."""


class Tied(Net):
    """Multiplies by its table."""

    def forward(self, ids):
        found = self.table(ids)
        return super().forward(ids) + (found @ self.table.weight.t())[..., :OUT]


class Shared(Net):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(IN, WIDTH, bias=False)
        self.other.weight = self.head[1].weight


class Frozen(Net):
    """A layer of which one parameter is not trained."""

    def __init__(self):
        super().__init__()
        self.head[1].bias.requires_grad_(False)


class Recomputed(Net):
    """Recomputes its head in the backward pass."""

    def forward(self, ids):
        whole = self.norm(self.trunk(self.table(ids)).transpose(1, 2)).transpose(1, 2)
        return checkpoint(self.head, whole, use_reentrant=False)


class Unseen(Net):
    """Multiplies by the weights of a layer that it does not call."""

    def forward(self, ids):
        return super().forward(ids) + nn.functional.linear(ids.float().unsqueeze(1), self.head[1].weight[:OUT, :3])


def reasons(net=Net, optimizer=adamw, options=None, before=lambda program: None, after=lambda program, step: None):
    """Why layers are not split, in a program that does something before its steps, and after each backward pass."""
    torch.manual_seed(dist.get_rank())
    with Served(ALL) as served:
        program = Program(optimizer, lambda: net(), **(options or {}))
        held = before(program)
        for step in range(7):
            program.optimizer.zero_grad()
            loss_of(program.ddp, step).backward()
            after(program, step)
            program.optimizer.step()
        note, runs = served.record.agreed.note, served.runs
    del held
    return {"note": note, "tried": len(runs), "planned": len(served.record.agreed.methods)}


def refused():
    """What each program has that a split does not keep."""
    averages = []

    def keep_average(program):
        averages.append(copy.deepcopy(program.ddp.module))

    def follow(program, _):
        with torch.no_grad():
            for mean, own in zip(averages[0].parameters(), program.ddp.module.parameters(), strict=True):
                mean.lerp_(own, 0.1)

    def penalise(program, _):
        program.ddp.module.head[1].weight.square().sum().backward(inputs=[program.ddp.module.head[1].weight])

    ways = {
        "static": {"options": {"static_graph": True}},
        "unused": {"options": {"find_unused_parameters": True}},
        "optimizer": {"optimizer": lambda ddp: Whole(ddp.parameters(), lr=0.1)},
        "unstepped": {"optimizer": lambda ddp: torch.optim.SGD(ddp.module.trunk.parameters(), lr=0.1)},
        "hook": {"before": lambda program: program.ddp.module.head[1].register_forward_hook(lambda *_: None)},
        "gradient": {"before": lambda program: program.ddp.module.head[1].weight.register_hook(lambda _: None)},
        "frozen": {"net": Frozen},
        "view": {"before": lambda program: program.ddp.module.head[1].weight.detach()},
        "scaler": {"before": lambda program: torch.amp.GradScaler("cpu")},
        "average": {"before": keep_average, "after": follow},
        "tied": {"net": Tied},
        "shared": {"net": Shared},
        "recomputed": {"net": Recomputed},
        "unseen": {"net": Unseen},
        "twice": {"after": lambda program, step: loss_of(program.ddp, 50 + step).backward()},
        "direct": {"after": lambda program, step: program.ddp.module.head[1](torch.ones(2, IN))},
        "checkpoint": {"before": lambda program: copied(program.ddp.module.state_dict())},
    }  # fmt: skip
    found = {}
    for name, how in ways.items():
        found[name] = reasons(**how)
        averages.clear()
        gc.collect()
    return found


def compiled():
    """A model that is compiled before DDP."""
    return reasons(net=lambda: torch.compile(Net(), backend="eager"))


def own_norm():
    """A program that scales its gradients by a norm that it computes itself."""
    with Served(PAIR) as served:
        program = Program(sgd)
        for step in range(STEPS):
            program.optimizer.zero_grad()
            loss_of(program.ddp, step).backward()
            whole = torch.stack([each.grad.norm() for each in program.ddp.parameters()]).norm()
            for each in program.ddp.parameters():
                each.grad.mul_(0.1 / whole)
            program.optimizer.step()
        own = [each.double().sum().item() for each in program.ddp.parameters()]
        state = [each.double().sum().item() for each in tensors_of(program.optimizer)]
        return {"own": own, "state": state, "runs": served.runs}


def joins():
    """Ranks with other numbers of batches, in an epoch that begins when layers are split."""
    with Served(ALL) as served:
        program = Program()
        program.train(SPLIT + 1)
        split = [each["kept"] for each in served.runs]
        with program.ddp.join():
            program.train(2 + dist.get_rank(), start=SPLIT + 1)
        own = [each.double().sum().item() for each in program.ddp.parameters()]
        return {"own": own, "split": split, "runs": served.runs, "steps": len(program.found)}


def alone():
    """Rank 0 alone evaluates, saves and copies in mid-training; plain torch goes on, and a load takes it back."""
    with Served(ALL) as served:
        hooked = []
        program = Program(sgd)
        program.ddp.register_forward_hook(lambda *_: hooked.append(1))
        kept = program.ddp.module.head[1]
        program.train(SPLIT + 1)
        answer = {"hooked": len(hooked), "split": [each["kept"] for each in served.runs], "losses": [0.0]}
        if dist.get_rank() == 0:
            saved = copied({"model": program.ddp.module.state_dict(), "optimizer": program.optimizer.state_dict()})
            again, whole = copy.deepcopy(program.ddp.module), io.BytesIO()
            torch.save(program.ddp.module, whole)
            answer["stoker"] = b"stoker" in whole.getvalue()
            program.ddp.module.eval()
            again.eval()
            ids = torch.arange(6).view(2, 3)
            with torch.no_grad():
                answer["apart"] = float((again(ids) - program.ddp.module(ids)).abs().max())
            program.ddp.module.train()
            dist.broadcast_object_list([saved], 0)
        else:
            every = [None]
            dist.broadcast_object_list(every, 0)
            saved = every[0]
        rows = torch.ones(2, IN)
        # The layer that the program has kept is the split one, on all ranks at once.
        answer["same"] = torch.equal(kept(rows), program.ddp.module.head[1](rows))
        found = program.train(4, start=90)[-8:]
        program.ddp.module.load_state_dict(saved["model"])
        program.optimizer.load_state_dict(copied(saved["optimizer"]))
        answer["back"] = apart(program.train(4, start=90)[-8:], found)
        dist.barrier()
    plain = DistributedDataParallel(Net())
    plain.module.load_state_dict(saved["model"])
    optimizer = sgd(plain)
    optimizer.load_state_dict(saved["optimizer"])
    resumed = Program(lambda _: optimizer, lambda: plain.module)
    answer["plain"] = apart(resumed.train(4, start=90), found)
    return answer


CASES = {
    "pair": lambda: compared(PAIR, clip=0.1),
    "apart": lambda: compared({"head.1": "row", "head.3": "column"}),
    "all": lambda: compared(ALL, optimizer=sgd, clip=0.1),
    "accumulated": lambda: compared(ALL, accumulate=True),
    "view": lambda: compared(ALL, options={"gradient_as_bucket_view": True, "broadcast_buffers": False}),
    "autocast": lambda: compared(PAIR, optimizer=sgd, steps=18, dtype=torch.bfloat16),
    "lost": lambda: compared(ALL, gains=False, clip=0.1),
    "refused": refused,
    "compiled": compiled,
    "own_norm": own_norm,
    "joins": joins,
    "alone": alone,
    "lost_sgd": lambda: compared(PAIR, gains=False, optimizer=sgd),
}


if __name__ == "__main__":
    names = sys.argv[2:] or list(CASES)
    # Each in processes of its own: models of a case before would look like averages of weights.
    print(
        json.dumps(
            {name: on_ranks(int(sys.argv[1]), lambda _, name=name: CASES[name](), timeout_s=60) for name in names}
        )
    )
