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
from stoker.train.exchanging.split_trial import SplitTrial
from stoker.train.program.replicas import ReplicaWatch

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
            if kind in layers[path].splits
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
            "kinds": {type(each).__name__ for each in program.ddp.modules()} & {"SplitLinear", "SplitEmbedding"} != set(),
            "bytes": [record.plain_bytes, record.planned_bytes],
            "said": served.said,
        }  # fmt: skip
        dist.barrier()  # nobody leaves before all parts are there
        return answer


CASES = {
    "pair": lambda: compared(PAIR, clip=0.1),
    "apart": lambda: compared({"head.1": "row", "head.3": "column"}),
    "all": lambda: compared(ALL, optimizer=sgd, clip=0.1),
    "accumulated": lambda: compared(ALL, accumulate=True),
    "view": lambda: compared(ALL, options={"gradient_as_bucket_view": True, "broadcast_buffers": False}),
    "autocast": lambda: compared(PAIR, optimizer=sgd, steps=18, dtype=torch.bfloat16),
    "lost": lambda: compared(ALL, gains=False, clip=0.1),
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
