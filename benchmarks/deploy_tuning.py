"""What training at narrow widths wins over rounding a trained network, on test sets that chose nothing."""

from __future__ import annotations

import copy
import sys

import numpy as np
import torch
from torch.nn import functional

from benchmarks.support.deployed import ResidualNet, Task, digits, trained_task
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.deploy.importing.preparing import prepare
from stoker.deploy.importing.quantising import best_options, import_module, outputs, tried_rules
from stoker.deploy.lowering.grids import Widths
from stoker.deploy.lowering.lowering import LoweringOptions, lower

BAR = Bar(
    "deploy_tuning",
    "a residual network at 3 and 2 bits of weights and 4 of results, three seeds: trained at these widths it is "
    "right at least as often, with less cross entropy, as trained as long on real numbers and rounded",
    headline=("won_3", "won_2"),
)
RATE, SEEDS = 1e-3, 3


def measure(options: Options) -> Report:
    """Digits; the last layer's result has 8 bits in either case."""
    torch.set_num_threads(1)
    report = Report()
    rows: list[list[str]] = []
    for bits in (3, 2):
        widths = Widths(weights=bits, activations=4, activations_by_layer={"head": 8})
        right, losses = np.zeros(2, np.int64), np.zeros(2)
        for seed in range(options.pick(SEEDS, SEEDS, 1)):
            torch.manual_seed(seed)
            task = trained_task("digits", ResidualNet(8), *digits(), options.pick(15, 10, 1))
            found: list[tuple[int, float]] = []
            for module in (
                copy.deepcopy(task.module),
                prepare(copy.deepcopy(task.module), task.known, widths),
            ):
                torch.manual_seed(seed)
                found.append(_judged(_trained(task, module, options.pick(10, 10, 1)), widths))
            right += np.array([each for each, _ in found])
            losses += np.array([each for _, each in found])
            rows.append([str(bits), str(seed), *(f"{each} of {len(task.unseen)}, {loss:.3f}" for each, loss in found)])
        count = len(digits()[1]) - digits()[2]
        seeds = options.pick(SEEDS, SEEDS, 1)
        won = float(right[1] - right[0]) / (count * seeds)
        report.at_least(f"won_{bits}", f"share of right decisions won at {bits} bits, seeds together", [won], 0.0, 4)
        ratio = float(losses[1] / losses[0])
        report.at_most(f"loss_{bits}", f"cross entropy, trained at {bits} bits over rounded", [ratio], 1.0)
    report.table(["bits", "seed", "rounded: right, loss", "trained at the widths"], rows)
    return report


def _trained(task: Task, module: torch.nn.Module, epochs: int) -> Task:
    """The network after more training, at a rate that falls to 0."""
    assert task.known.labels is not None
    (images,), labels = task.known.inputs, torch.as_tensor(task.known.labels)
    optimizer = torch.optim.Adam(module.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(images) // 64))
    module.train()
    for _ in range(epochs):
        for at in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(module(images[at]), labels[at]).backward()
            optimizer.step()
            schedule.step()
    return Task(task.name, module.eval(), task.known, task.unseen)


def _judged(task: Task, widths: Widths) -> tuple[int, float]:
    """Right decisions of the integer model on the test set, and its cross entropy."""
    assert task.unseen.labels is not None
    model = import_module(task.module, task.known)
    options = best_options(tried_rules(model, task.known, LoweringOptions(widths=widths)))
    found = torch.as_tensor(outputs(lower(model.graph, model.seen, options).graph, task.unseen)[0])
    labels = torch.as_tensor(task.unseen.labels)
    return int((found.argmax(1) == labels).sum()), float(functional.cross_entropy(found, labels))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
