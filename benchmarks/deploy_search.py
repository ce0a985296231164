"""A search's model against the tools: cycles simulated, resources synthesised, clocks placed, foldings enumerated."""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.support.harness import Bar, Options, Report, run

if TYPE_CHECKING:
    from stoker.deploy.ir.graph import IntegerGraph
    from stoker.deploy.search.families import Dataflow

BAR = Bar(
    "deploy_search",
    "picks of searches against the tools: cycles as simulated within 1 %, LUTs and flip-flops 15 % off in the median "
    "and 35 % at most, with weights in the circuit LUTs 10 % at most, DSPs and block RAMs exact, clock within 20 %; "
    "foldings within 2 % of all enumerated; at least 3x fewer multipliers than one reuse factor for all layers at "
    "equal throughput",
    headline=("luts_median_frac", "clock_off_frac", "above_exhaustive_frac", "fewer_multipliers"),
)
_DEVICE = "ecp5-45k"
_REUSE = 16
_LANES = 4
_RATES = {"mlp": (20e3, 200e3), "residual": (10e3, 20e3), "depthwise": (5e3, 20e3), "tower": (100e3, 500e3)}
"""Samples a second that are searched for, by network."""
_CIRCUIT = {"mlp": (800e3,), "residual": (10e3,)}
"""Those at which weights may be in the circuit, too, and are: their units take most of these designs' LUTs."""
_PLACED = (("mlp", 200e3), ("residual", 10e3), ("depthwise", 5e3))
"""Designs that are placed, too: placing takes minutes."""


def measure(options: Options) -> Report:
    """All networks; quick: the small one, placed by nothing; tiny: what is enumerated alone."""
    report = Report()
    try:
        import torch

        from benchmarks.support.deployed import task
        from stoker.deploy.importing.quantising import quantise
        from stoker.deploy.tools.verilator import runtime

        runtime()
    except ImportError as error:
        report.skip(str(error))
        return report
    torch.set_num_threads(1)
    names = options.pick(tuple(_RATES), ("mlp", "residual"), ("residual",))
    graphs: dict[str, IntegerGraph] = {}
    for name in names:
        made = task(name, epochs=options.pick(20, 5, 1))
        graphs[name] = quantise(made.module, made.known, name=name).graph
    _multipliers(report, graphs["residual"])
    _enumerated(report)
    if options.size == "tiny":
        return report
    full = options.size == "full"
    chosen = {name: _RATES[name] for name in names} if full else {"mlp": _RATES["mlp"][:1]}
    in_circuit = _CIRCUIT if full else {"mlp": _CIRCUIT["mlp"]}
    runs = [(name, rate, False) for name, rates in chosen.items() for rate in rates]
    runs += [(name, rate, True) for name, rates in in_circuit.items() for rate in rates]
    _against_tools(report, graphs, runs, placed=full)
    _engines(report, graphs)
    return report


def _family(graph: IntegerGraph, device: str = _DEVICE, *, circuit: bool = False) -> Dataflow:
    """Weights in memories alone, or by layer in the circuit as well."""
    from stoker.deploy.search.families import ConstantForms, Dataflow, SearchedPackage, constant_forms
    from stoker.deploy.search.model import model_of
    from stoker.deploy.tools.devices import fpga

    part = fpga(device)
    constants = constant_forms(graph) if circuit else ConstantForms()
    return Dataflow(SearchedPackage(name="net", digest="", graph=graph), part, model_of(part), constants)


def _multipliers(report: Report, graph: IntegerGraph) -> None:
    """Multipliers of arrays against one reuse factor for all layers, as hls4ml has, at equal throughput."""
    from stoker.deploy.rtl.folding import works_of

    works = works_of(graph)
    windows = {name: work.windows.images * math.prod(work.windows.out) for name, work in works.items()}
    cycles = _REUSE * max(windows.values())
    uniform = sum(-(-work.products // windows[name] // _REUSE) for name, work in works.items())
    design = _family(graph, "ecp5-85k").design(cycles)
    own = sum(works[name].multipliers(fold) for name, fold in design.foldings.items())
    report.note(f"{design.cycles:,} cycles a sample: {own} multipliers, with a reuse factor of {_REUSE}: {uniform}")
    report.at_least("fewer_multipliers", "multipliers of one reuse factor over those found", [uniform / own], 3.0, 1)


def _enumerated(report: Report) -> None:
    """Solutions against all combinations of foldings, each lowered and estimated whole."""
    from stoker.deploy.rtl.folding import works_of
    from stoker.deploy.rtl.mapping import lower
    from stoker.deploy.search.model import estimated
    from stoker.deploy.search.solving import order_of
    from stoker.deploy.search.specimens import small_networks

    above: list[float] = []
    rows: list[list[str]] = []
    for specimen in small_networks():
        family = _family(specimen.graph)
        works = works_of(specimen.graph)
        found = {
            combination: order_of(estimated(lower(specimen.graph, given), family.model).demand, family.part)[0]
            for combination in itertools.product(*(tuple(work.foldings()) for work in works.values()))
            for given in (dict(zip(works, combination, strict=True)),)
        }
        paces = family.paces()
        worst = 0.0
        for pace in paces:
            best = min(
                value
                for combination, value in found.items()
                if all(work.cycles(fold) <= pace for work, fold in zip(works.values(), combination, strict=True))
            )
            worst = max(worst, family.design(pace).share / best - 1)
        above.append(worst)
        rows.append([specimen.name, f"{len(found):,}", f"{len(paces)}", f"{100 * worst:.2f} %"])
    report.table(["network", "combinations", "paces", "worst above the best"], rows)
    report.at_most("above_exhaustive_frac", "largest share over the least of all, less 1, worst", [max(above)], 0.02, 4)


def _against_tools(
    report: Report, graphs: Mapping[str, IntegerGraph], runs: Sequence[tuple[str, float, bool]], *, placed: bool
) -> None:  # fmt: skip
    """Picks of a network at a rate, some of them with weights in the circuit."""
    from stoker.deploy.hardware.verification import random_samples
    from stoker.deploy.rtl.generate import write_design
    from stoker.deploy.search.searching import DesignLimits, search
    from stoker.deploy.tools.devices import fpga
    from stoker.deploy.tools.placing import place
    from stoker.deploy.tools.simulation import simulate
    from stoker.deploy.tools.synthesis import synthesise
    from stoker.deploy.tools.verilator import simulator

    part = fpga(_DEVICE)
    rows: list[list[str]] = []
    kinds = ("cycles", "latency", "luts", "flip_flops", "circuit_luts", "circuit_flip_flops", "clock")
    off: dict[str, list[float]] = {kind: [] for kind in kinds}
    constant: list[int] = []
    exact = {"dsps": 0, "block_rams": 0}
    for name, rate, circuit in runs:
        family = _family(graphs[name], circuit=circuit)
        design: Any = search([family], DesignLimits(rate_per_s=rate)).nearest.design
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made, "design")
            description = write_design(family.written(design), folder)
            program = simulator(folder)
            _, seen = simulate(program, folder, description, random_samples(graphs[name], 12, 0))
            netlist, taken = synthesise(folder, part, limit_s=900)
        off["cycles"].append(abs(seen.interval() / design.cycles - 1))
        off["latency"].append(abs(seen.latency() / design.latency_cycles - 1))
        guess: Any = design.estimate.demand
        for kind in ("luts", "flip_flops"):
            off[f"circuit_{kind}" if circuit else kind].append(abs(getattr(guess, kind) / getattr(taken, kind) - 1))
        for kind in exact:
            exact[kind] += getattr(guess, kind) != getattr(taken, kind)
        if circuit:
            constant.append(len(design.chosen.constant))
        clock = "-"
        if placed and not circuit and (name, rate) in _PLACED:
            found: Any = place(netlist, part, limit_s=1200)
            mhz = found.clock_mhz
            off["clock"].append(abs(design.estimate.clock_mhz / mhz - 1))
            clock = f"{design.estimate.clock_mhz:.0f} / {mhz:.0f}"
        rows.append([
            f"{name} {rate:,.0f}/s{', in the circuit' * circuit}", f"{design.cycles:,} / {seen.interval():,.1f}",
            f"{design.latency_cycles:,} / {seen.latency():,}", f"{guess.luts:,.0f} / {taken.luts:,}",
            f"{guess.flip_flops:,.0f} / {taken.flip_flops:,}", f"{guess.dsps} / {taken.dsps}",
            f"{guess.block_rams} / {taken.block_rams}", clock,
        ])  # fmt: skip
    heads = ["network", "cycles", "latency", "LUTs", "flip-flops", "DSPs", "block RAMs", "MHz"]
    report.table([heads[0], *(f"{head}: model / tools" for head in heads[1:])], rows)
    report.note(f"{_DEVICE}; networks of benchmarks/support/deployed.py, none of which the model was fitted to")
    report.at_most("cycles_off_frac", "cycles over those simulated, less 1, worst", [max(off["cycles"])], 0.01, 4)
    report.figure("latency_off_frac", max(off["latency"]))
    for kind, word in (("luts", "LUTs"), ("flip_flops", "flip-flops")):
        report.at_most(f"{kind}_median_frac", f"{word}, median error", [median(off[kind])], 0.15, 3)
        report.at_most(f"{kind}_worst_frac", f"{word}, worst error", [max(off[kind])], 0.35, 3)
    report.at_least("circuit_layers", "layers in the circuit, where they may be, fewest", [float(min(constant))], 1, 0)
    report.at_most(
        "circuit_luts_worst_frac", "LUTs with weights in the circuit, worst error", [max(off["circuit_luts"])], 0.1, 3
    )
    report.figure("circuit_flip_flops_worst_frac", max(off["circuit_flip_flops"]))
    report.at_most("dsps_wrong", "designs with other DSPs than synthesised", [float(exact["dsps"])], 0, 0)
    report.at_most(
        "block_rams_wrong", "designs with other block RAMs than synthesised", [float(exact["block_rams"])], 0, 0
    )
    if off["clock"]:
        report.at_most("clock_off_frac", "clock over that of nextpnr, less 1, worst", [max(off["clock"])], 0.2, 3)


def _engines(report: Report, graphs: Mapping[str, IntegerGraph]) -> None:
    """Cycles of programs by closed form against those simulated, all on one engine that has room for each."""
    from stoker.deploy.hardware.engines import write_model
    from stoker.deploy.hardware.verification import random_samples
    from stoker.deploy.rtl.engine.compiling import least_engine
    from stoker.deploy.rtl.engine.cycles import sample_cycles
    from stoker.deploy.rtl.engine.shape import EngineShape
    from stoker.deploy.tools.engine_simulation import engine_simulator, simulate_engine

    images = {name: least_engine(graph, _LANES) for name, graph in graphs.items()}
    sizes = [name for name in EngineShape.__struct_fields__ if name != "lanes"]
    room = {name: max(getattr(image.shape, name) for image in images.values()) for name in sizes}
    rows: list[list[str]] = []
    off: list[float] = []
    for name, graph in graphs.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made, "engine")
            write_model(graph, EngineShape(lanes=_LANES, **room), folder)
            program = engine_simulator(folder)
            _, seen = simulate_engine(program, folder, graph, random_samples(graph, 4, 0))
        cycles = sample_cycles(images[name])
        off.append(abs(seen.interval() / cycles - 1))
        rows.append([name, f"{cycles:,} / {seen.interval():,.1f}", f"{cycles:,} / {seen.latency():,}"])
    report.table([f"on an engine of {_LANES} lanes", "cycles: model / tools", "latency: model / tools"], rows)
    report.at_most("engine_cycles_off_frac", "cycles of engines over those simulated, less 1", [max(off)], 0.01, 4)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
