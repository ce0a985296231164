"""A trained module becomes a placed design: quantised, verified, synthesised, routed; how long, and which clock."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, run

BAR = Bar(
    "deploy_build",
    "the residual CNN of digits: quantised, verified over the test set, synthesised, placed and routed on an ECP5-6 in "
    "at most 120 s, tools prepared (quick: a dense layer of its size in 40 s); at least 80 MHz by the tools' estimate",
    headline=("seconds", "clock_mhz", "prepared_s"),
)
_CLOCK_MHZ = 80
_DEVICE = "ecp5-45k"


def measure(options: Options) -> Report:
    """The whole model, or a dense layer of its hidden layer's width."""
    report = Report()
    try:
        import torch

        from benchmarks.support.deployed import task
        from stoker.deploy.engines.ends import taken
        from stoker.deploy.hardware.designing import chosen_foldings, design
        from stoker.deploy.hardware.fitting import fit
        from stoker.deploy.hardware.verification import verify
        from stoker.deploy.importing.quantising import quantise
        from stoker.deploy.tools.devices import fpga
        from stoker.deploy.tools.synthesis import YOSYS
        from stoker.deploy.tools.verilator import runtime
        from stoker.deploy.tools.wasm import prepare

        part = fpga(_DEVICE)
        begun = time.monotonic()
        if options.size != "tiny":  # which places nothing: preparing takes minutes
            prepare(YOSYS)
            assert part.tools.placer is not None, "designs are placed on it"
            prepare(part.tools.placer)
        runtime()
    except ImportError as error:
        report.skip(str(error))
        return report
    report.figure("prepared_s", time.monotonic() - begun)
    torch.set_num_threads(1)
    made = task("residual", epochs=options.pick(20, 10, 1))
    model = made.module
    if options.size != "full":
        # One unit of it: the hidden layer, on images instead of the convolutions' results.
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU()).eval()
    steps: list[list[str]] = []
    last = begun = time.monotonic()

    def step(name: str) -> None:
        nonlocal last
        now = time.monotonic()
        steps.append([name, f"{now - last:.1f} s"])
        last = now

    with tempfile.TemporaryDirectory() as name:
        folder, kept = Path(name, "design"), Path(name, "kept")
        graph = quantise(model, made.known).graph
        step("quantised")
        design(graph, chosen_foldings(graph, multipliers=options.pick(24, 8, 8)), folder)
        step("written")
        arrays = made.unseen.arrays([port.name for port in graph.inputs])
        found = verify(graph, folder, taken(graph, arrays), kept_in=kept)
        step("verified")
        report.at_most("differing", "outputs that differ", [float(sum(way.differing for way in found.ways))], 0, 0)
        if options.size == "tiny":
            return report
        fitted = fit(folder, part, kept, limit_s=600)
        step("synthesised, placed, routed")
    seconds = time.monotonic() - begun
    report.table(["step", "took"], steps)
    report.note(f"{_DEVICE}, speed grade 6; figures of open tools, no board was there")
    report.note(f"{fitted.luts[0]:,} LUTs, {fitted.flip_flops[0]:,} flip-flops, {fitted.dsps[0]} DSPs")
    assert fitted.clock_mhz is not None, "it was placed"
    report.at_least("clock_mhz", "clock after routing", [fitted.clock_mhz], _CLOCK_MHZ, 1, "MHz")
    report.at_most("seconds", "module to routed design", [seconds], options.pick(120.0, 40.0, 40.0), 1, "s")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
