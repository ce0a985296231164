"""Sums of constant weights as text: of random matrices Verilator warns of nothing; yosys's circuits give products."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stoker.deploy.rtl.constant_sums import constant_sums, width
from stoker.deploy.rtl.constant_text import sums_lines
from stoker.deploy.rtl.structure import ConstantLayer
from stoker.deploy.tools.verilator import lint_files
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.proofs.circuits import circuit_of, needs_yosys

pytestmark = [pytest.mark.integration, needs_verilator, needs_yosys]
MOST, IN_BITS, TOGETHER = 7, 8, 16
ENDS = [(-128, 127), (0, 255), (-3, 12), (0, 1), (0, 0), (-100, -90)]
Made = tuple[NDArray[np.int64], list[int], ConstantLayer]


def made_layer(weights: NDArray[np.int64], biases: list[int], ends: list[tuple[int, int]]) -> Made:
    """A layer with accumulators as wide as its outputs can become, and no wider."""
    low, high = (np.array(each[: weights.shape[1]]) for each in zip(*ends, strict=True))
    least = np.where(weights > 0, weights * low, weights * high).sum(axis=1) + biases
    most = np.where(weights > 0, weights * high, weights * low).sum(axis=1) + biases
    sums = constant_sums(weights, ends[: weights.shape[1]], biases)
    return weights, biases, ConstantLayer(
        sums=sums, in_bits=IN_BITS, acc_bits=width(int(least.min()), int(most.max()))
    )  # fmt: skip


def random_layer(random: np.random.Generator, ends: list[tuple[int, int]]) -> Made:
    """Weights of 2 to 9 bits, at times 0, of one sign, or rows that nearly are another's; biases of several widths."""
    outputs, inputs, bits = random.integers((1, 1, 2), (7, MOST + 1, 10))
    weights = random.integers(-(1 << (bits - 1)), 1 << (bits - 1), (outputs, inputs))
    weights[random.random(weights.shape) < random.choice([0.0, 0.5, 0.9, 1.0])] = 0
    weights = np.abs(weights) if random.random() < 0.2 else weights
    if random.random() < 0.5:
        weights[-1] = weights[0] * random.choice([1, -1, 2]) + random.integers(-1, 2, inputs)
    most = int(random.choice([0, 5, 5000]))
    return made_layer(weights, [int(each) for each in random.integers(-most, most + 1, outputs)], ends)


def check(folder: Path, layers: list[Made], random: np.random.Generator, ends: list[tuple[int, int]]) -> None:
    """All layers in one run of each tool."""
    ports = [f"input [{IN_BITS - 1}:0] x{at}" for at in range(MOST)]
    units: list[str] = []
    texts: dict[str, str] = {}
    for at, (weights, biases, layer) in enumerate(layers):
        texts[f"sums_{at}.sv"] = "\n".join([*sums_lines(layer, f"sums_{at}"), ""])
        numbers = ", ".join(f"x{each}" for each in reversed(range(weights.shape[1])))
        ports += [f"output [{layer.acc_bits - 1}:0] y{at}_{row}" for row in range(len(biases))]
        rows = ", ".join(f"y{at}_{row}" for row in reversed(range(len(biases))))
        units.append(f"sums_{at} unit_{at} (.clk, .in_data({{{numbers}}}), .out_data({{{rows}}}));\n")
    # Of an input that no layer has, nothing is used: that is no matter of sums.
    every = ", ".join(f"x{at}" for at in range(MOST))
    texts["top.sv"] = (
        f"module top (input clk, {', '.join(ports)});\nlogic unused;\nassign unused = &{{1'b0, {every}}};\n"
        f"{''.join(units)}endmodule\n"
    )
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    lint_files(folder, "top", [*texts])

    low, high = (np.array(each) for each in zip(*ends, strict=True))
    samples = random.integers(low, high + 1, (200, MOST))
    extremes = np.where(random.random((200, MOST)) < 0.5, low, high)
    samples = np.concatenate([samples, extremes])
    given_ = {f"x{at}": samples[:, at] & 0xFF for at in range(MOST)}
    whole = "".join(texts.values())
    cycles = [given_] * (1 + max(layer.sums.levels for _, _, layer in layers))
    found = circuit_of(folder, whole).run(cycles, len(samples))[-1]
    for at, (weights, biases, layer) in enumerate(layers):
        wanted = samples[:, : weights.shape[1]] @ weights.T + biases
        got = np.stack([found[f"y{at}_{row}"] for row in range(len(biases))], axis=1)
        assert (got == wanted & ((1 << layer.acc_bits) - 1)).all(), at


@pytest.mark.slow("two tools read sixteen circuits in each of its examples")
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.permutations(ENDS * 2))
def test_no_warning_and_whole_numbers(tmp_path: Path, seed: int, ends: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(seed)
    check(tmp_path, [random_layer(random, ends[:MOST]) for _ in range(TOGETHER)], random, ends[:MOST])


def test_layers_at_the_edges(tmp_path: Path) -> None:
    """Without weights, with a number that is always 0, with sums that cancel, and with a bias alone that has bits."""
    ends = [(-128, 127), (0, 0), (0, 255), (-128, 127), (-3, 12), (0, 1), (-100, -90)]
    matrices = [
        ([[0, 0], [0, 0]], [0, -5]),
        ([[1, 64], [1, 1]], [0, 0]),
        ([[0, 64]], [0]),
        ([[5, 0, 3], [5, 0, 4], [-5, 0, -3], [5, 0, 3]], [0, 1, 2, 3]),
        ([[85, 0, 0, -85], [85, 0, 0, -84], [43, 0, 1, -43]], [-7, 7, 1000]),
        ([[0, 0, 0, 0, 0, 0, 0]], [1 << 12]),
    ]
    random = np.random.default_rng(0)
    check(tmp_path, [made_layer(np.array(rows), biases, ends) for rows, biases in matrices], random, ends)
