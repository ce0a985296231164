"""Constant layers against da4ml's, synthesised alike; hls4ml's C++ of the same networks against our integers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.harness import Bar, Options, Report, run

BAR = Bar(
    "deploy_peers",
    "layers of trained networks with their weights in the circuit: at most 1.2x the LUTs of da4ml's at no more cycles, "
    "both synthesised by the same yosys for an ECP5, all sums equal; hls4ml's C++ of the same networks: how far from "
    "float, and the seconds that it takes",
    headline=("luts_over_da4ml", "cycles_over_da4ml", "hls4ml_build_s"),
)
_DEVICE = "ecp5-85k"
_LIMIT_S = 560
_LAYERS = {
    "full": (("mlp", 1, 8), ("mlp", 1, 4), ("residual", 0, 8), ("residual", 0, 4), ("residual", 1, 4), ("mlp", 0, 4)),
    "quick": (("residual", 0, 8), ("mlp", 1, 4)),
    "tiny": (("residual", 0, 4),),
}
"""Network, number of its layer, bits of the weights."""
_ANY_DEPTH, _LEAST_DEPTH = -1, 0
"""Levels that da4ml may add for fewer adders: any number, or none."""


@dataclass(frozen=True)
class _Layer:
    """Weights (outputs, inputs), biases, ends of the inputs, bits of a sum."""

    name: str
    weights: NDArray[np.int64]
    biases: NDArray[np.int64]
    bits: int
    signed: bool
    acc_bits: int


@dataclass(frozen=True)
class _Found:
    """A layer as Verilog: files, the top module, cycles from inputs to sums, additions."""

    texts: dict[str, str]
    top: str
    cycles: int
    additions: int


def measure(options: Options) -> Report:
    """All layers; quick: two small ones; tiny: one, its additions alone."""
    report = Report()
    for name in ("da4ml", "sklearn"):
        if importlib.util.find_spec(name) is None:
            report.skip(f'{name} is not installed: pip install "stoker[bench]"')
            return report
    import torch

    torch.set_num_threads(1)
    rows: list[list[str]] = []
    over: list[float] = []
    later: list[float] = []
    differing = 0
    for layer in _layers(options):
        samples = np.random.default_rng(0).integers(*_ends(layer), (200, layer.weights.shape[1]), endpoint=True)
        kept: dict[int, tuple[_Found, tuple[int, int] | None]] = {}
        for depth, told in ((_ANY_DEPTH, "da4ml"), (_LEAST_DEPTH, "da4ml, least depth")):
            peer = _da4ml(layer, depth, samples)
            theirs = None if options.size == "tiny" else _luts(peer)
            if peer.cycles not in kept:
                own, sums = _own(layer, peer.cycles)
                differing += int((sums.computed(samples) != samples @ layer.weights.T + layer.biases).sum())
                kept[peer.cycles] = own, None if theirs is None else _luts(own)
            own, luts = kept[peer.cycles]
            rows.append([layer.name if depth == _ANY_DEPTH else "", told, *_shown(peer, theirs)])
            rows.append(["", "stoker, no deeper", *_shown(own, luts)])
            over.append(own.additions / peer.additions if luts is None or theirs is None else luts[0] / theirs[0])
            later.append(own.cycles / peer.cycles)
    report.table(["layer", "by", "additions", "cycles", "LUTs", "flip-flops"], rows)
    report.note(f"synthesised by yosys for {_DEVICE}; a carry cell counts as two LUTs; biases included on both sides")
    report.at_most("differing", "sums that differ", [float(differing)], 0, 0)
    report.at_most("luts_over_da4ml", "LUTs over da4ml's, worst layer", [max(over)], 1.2)
    report.at_most("cycles_over_da4ml", "cycles over da4ml's, worst layer", [max(later)], 1.0)
    if importlib.util.find_spec("hls4ml") is None:
        report.note('hls4ml is not installed: pip install "stoker[bench]"')
    elif options.size != "tiny":
        _hls4ml(report, options)
    return report


def _layers(options: Options) -> Iterator[_Layer]:
    from benchmarks.support.deployed import task
    from stoker.deploy.importing.quantising import quantise
    from stoker.deploy.ir.bounds import accumulator
    from stoker.deploy.ir.operations import Convolution, Linear
    from stoker.deploy.lowering.grids import Widths

    tasks: dict[str, Any] = {}
    for network, number, bits in _LAYERS[options.size]:
        made = tasks.setdefault(network, task(network, epochs=options.pick(20, 5, 1)))
        graph = quantise(made.module, made.known, widths=Widths(weights=bits)).graph
        operation = [each for each in graph.operations if isinstance(each, (Linear, Convolution))][number]
        weights = graph.constants[operation.weight].astype(np.int64)
        weights = weights.reshape(len(weights), -1)
        source = graph.values[operation.source]
        shape = " x ".join(map(str, weights.shape[::-1]))
        yield _Layer(
            f"{network}, {shape}, {bits}-bit weights", weights, graph.constants[operation.bias].astype(np.int64),
            source.bits, source.signed, accumulator(operation, graph.values, graph.constants).bits,
        )  # fmt: skip


def _ends(layer: _Layer) -> tuple[int, int]:
    """Of an input; both sides are given the whole range of its type."""
    return (-(1 << layer.bits - 1), (1 << layer.bits - 1) - 1) if layer.signed else (0, (1 << layer.bits) - 1)


def _own(layer: _Layer, levels: int) -> tuple[_Found, Any]:
    from stoker.deploy.rtl.constant_sums import constant_sums
    from stoker.deploy.rtl.constant_text import sums_lines
    from stoker.deploy.rtl.structure import ConstantLayer

    biases = [int(each) for each in layer.biases]
    sums = constant_sums(layer.weights, [_ends(layer)] * layer.weights.shape[1], biases, levels=levels)
    made = ConstantLayer(sums=sums, in_bits=layer.bits, acc_bits=layer.acc_bits)
    text = "\n".join([*sums_lines(made, "sums"), ""])
    return _Found({"sums.sv": text}, "sums", sums.levels, len(sums.sums)), sums


def _da4ml(layer: _Layer, depth: int, samples: NDArray[np.int64]) -> _Found:
    from da4ml.codegen.rtl.rtl_model import RTLModel
    from da4ml.trace import FixedVariableArrayInput, HWConfig, comb_trace

    count = layer.weights.shape[1]
    given = FixedVariableArrayInput((count,), hwconf=HWConfig(1, -1, -1), solver_options={"hard_dc": depth})
    signs, wholes = (np.full(count, each, np.int64) for each in (int(layer.signed), layer.bits - int(layer.signed)))
    x = given.quantize(signs, wholes, np.zeros(count, np.int64))
    logic = comb_trace(given, x @ layer.weights.T.astype(np.float64) + layer.biases.astype(np.float64))
    assert (logic.predict(samples.astype(np.float64)) == samples @ layer.weights.T + layer.biases).all()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        model = RTLModel(logic, "sums", name, flavor="verilog", latency_cutoff=1, print_latency=False)
        model.write()
        files = [each for each in sorted(Path(name, "src").rglob("*.v")) if "wrapper" not in each.name]
        texts = {each.name: each.read_text() for each in files}
    # Its registers are before each stage and behind the last; ours are behind each level alone, so stages count.
    stages = sum(1 for text in texts if "_stage" in text)
    return _Found(texts, "sums", stages, sum(each.opcode in (0, 1, 4) for each in logic.ops))


def _luts(found: _Found) -> tuple[int, int]:
    from stoker.deploy.tools.devices import fpga
    from stoker.deploy.tools.synthesis import synthesise_texts

    _, cells = synthesise_texts(found.texts, list(found.texts), found.top, fpga(_DEVICE), limit_s=_LIMIT_S)
    return cells.luts, cells.flip_flops


def _shown(found: _Found, luts: tuple[int, int] | None) -> list[str]:
    cells = ["-", "-"] if luts is None else [f"{each:,}" for each in luts]
    return [f"{found.additions:,}", f"{found.cycles}", *cells]


def _hls4ml(report: Report, options: Options) -> None:
    """The default precision of hls4ml, 16 bits of which 6 are whole, against 8 bits of ours."""
    import hls4ml
    import torch

    from benchmarks.support.deployed import task
    from stoker.deploy.engines.native.engine import CompiledEngine
    from stoker.deploy.importing.quantising import outputs, quantise

    rows: list[list[str]] = []
    seconds: list[float] = []
    for network in ("mlp", "residual") if options.size == "full" else ("mlp",):
        made = task(network, epochs=options.pick(20, 5, 1))
        images = made.unseen.inputs[0]
        dense = network == "mlp"
        # Without the reshape, and with names: hls4ml calls its layers by them.
        named = dict(zip(("hidden", "rectified", "head"), list(made.module.children())[1:], strict=False))
        module = torch.nn.Sequential(OrderedDict(named)) if dense else made.module
        shape = (64,) if dense else (1, 8, 8)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            config = hls4ml.utils.config_from_pytorch_model(
                module, input_shape=shape, granularity="name", default_precision="ap_fixed<16,6>",
                channels_last_conversion="full",  # with "off" it does not turn the weights of dense layers
            )  # fmt: skip
            model = hls4ml.converters.convert_from_pytorch_model(
                module, hls_config=config, output_dir=name, backend="Vivado", io_type="io_parallel"
            )
            model.compile()
            theirs_s = time.monotonic() - begun
            numbers = images.flatten(1) if dense else images.permute(0, 2, 3, 1)
            theirs = np.asarray(model.predict(np.ascontiguousarray(numbers.numpy()))).reshape(len(images), -1)
        with torch.no_grad():
            real = made.module(images).numpy()
        begun = time.monotonic()
        graph = quantise(made.module, made.known).graph
        with tempfile.TemporaryDirectory() as name:
            CompiledEngine(graph, folder=Path(name))
        own_s = time.monotonic() - begun
        own = outputs(graph, made.unseen)[0]
        spread = float(real.std())
        for told, found, took in (("hls4ml, C++", theirs, theirs_s), ("stoker, 8 bits, C++", own, own_s)):
            error = float(np.sqrt(((found - real) ** 2).mean())) / spread
            flips = int((found.argmax(1) != real.argmax(1)).sum())
            rows.append([network, told, f"{100 * error:.2f} %", f"{flips} of {len(real)}", f"{took:.1f} s"])
        seconds.append(theirs_s)
    report.table(["network", "by", "error over spread", "flips against float", "module to compiled C++"], rows)
    report.figure("hls4ml_build_s", max(seconds))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
