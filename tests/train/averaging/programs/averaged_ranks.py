"""One of several ranks over gloo: which part, the rank, their number and a file for the answer are its arguments."""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.averaged_digits import DigitsCase, DigitsTraining
from benchmarks.support.averaged_ranks import train_rank
from stoker.core.errors import AveragingError
from stoker.train.averaging import AveragingRules, average, serve

PERIOD = AveragingRules(fixed_period=8, warm_up_steps=0, settling_steps=0)


def digest(tensors):
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()


def saved(model):
    """What a checkpoint holds, without counters of batches."""
    return digest([each for each in model.state_dict().values() if each.is_floating_point()])


def digits(rank, ranks):
    """A training that must equal the simulated one."""
    end = train_rank(DigitsCase("cnn", "sorted", 3, ranks, 80, 2), rank, AveragingRules(), found=True)
    rounds = [(each.step, each.period, each.agreement) for each in end.rounds]
    return {"weights": hashlib.sha256(end.weights.tobytes()).hexdigest(), "seconds": end.seconds, "rounds": rounds}


def each_step(rank, ranks):
    """Averaged in each step, then DDP: the largest difference; and DDP again after the end."""
    case, weights = DigitsCase("mlp", "sorted", 0, ranks, 30, 1), []
    for averaged in (True, False):
        own = DigitsTraining(case, rank)
        ddp = own.module = DistributedDataParallel(own.model)
        averager = average(ddp, own.optimizer, rules=AveragingRules(max_period=1)) if averaged else None
        for _ in range(case.steps):
            own.backward()
            own.optimizer.step()
        weights.append(torch.cat([each.detach().flatten() for each in own.model.parameters()]))
        if averager is not None:
            averager.close()
            own.backward()
            gradients = digest([each.grad for each in own.model.parameters()])
    return {"apart": float((weights[0] - weights[1]).abs().max()), "gradients": gradients}


def alone(rank, ranks):
    """Rank 0 alone evaluates and saves between averages; then weights are equal again."""
    own = DigitsTraining(DigitsCase("cnn", "iid", 0, ranks, 100, 1), rank)
    ddp = own.module = DistributedDataParallel(own.model)
    averager = serve(ddp, rules=PERIOD)
    found = {}
    for step in range(1, 17):
        own.backward()
        own.optimizer.step()
        if step == 8:
            found["mean"] = saved(own.model)
        if step == 12:
            found["apart"] = digest(own.model.parameters())
            if rank == 0:
                found["saved"] = saved(own.model)
                own.optimizer.state_dict()
                own.evaluate(100)
    found["after"] = digest([*own.model.parameters(), *[s["momentum_buffer"] for s in own.optimizer.state.values()]])
    found["records"] = [each.step for each in averager.rounds]
    averager.close()
    return found


def refused(rank, ranks):
    """Ranks that train different weights."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average(model, optimizer)
    started = digest(model.parameters())
    model.bias.requires_grad_(rank == 0)
    model(torch.ones(1, 3)).sum().backward()
    try:
        optimizer.step()
    except AveragingError as error:
        return {"started": started, "error": str(error)}
    return {}


def islands(rank, ranks):
    """Two islands of two: equal inside after some steps, equal everywhere after others."""
    own = DigitsTraining(DigitsCase("mlp", "sorted", 0, ranks, 64, 1), rank)
    rules = AveragingRules(form="islands", fixed_period=8, warm_up_steps=0, settling_steps=0)
    average(own.model, own.optimizer, rules=rules, islands=[[0, 1], [2, 3]])
    seen = []
    for _ in range(16):
        own.backward()
        own.optimizer.step()
        seen.append(digest(own.model.parameters()))
    return {"seen": seen}


if __name__ == "__main__":
    part, rank, ranks, answer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{answer.parent / 'meeting'}", rank=rank, world_size=ranks)
    found = {name: globals()[name](rank, ranks) for name in part.split(",")}
    dist.barrier()
    dist.destroy_process_group()
    answer.write_text(json.dumps(found))
