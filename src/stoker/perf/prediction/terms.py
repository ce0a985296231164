"""The terms of a step on one GPU: the time of each part at the vendor's rates, and the prior of its coefficient.

A step's work times :func:`unit_times` is its time at the vendors' rates, term by term; coefficients, fitted to
published measurements (:mod:`stoker.perf.prediction.calibrated`), make it a prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stoker.perf.calibration.fitting import Calibration, Term
from stoker.perf.catalogue import Gpu, catalogue
from stoker.perf.prediction.work_vector import AMOUNTS, Array

LAUNCH_S = 10e-6
"""A unit for the host's work for a kernel, and for a step of a recurrent layer; the coefficient says how many."""
PRECISIONS = ("fp32", "tf32", "half")
CARDS = (
    "V100-16GB-SXM", "V100-32GB-SXM", "RTX-8000", "A100-40GB-PCIe", "A100-40GB-SXM", "A100-80GB-PCIe", "A100-80GB-SXM",
    "A10", "RTX-A6000", "RTX-3090", "RTX-6000-Ada", "RTX-4090", "H100-PCIe", "H100-SXM",
)  # fmt: skip
"""GPUs of which there are measurements."""
GENERATIONS = ("volta", "turing", "ampere", "ampere-ga10x", "ada", "hopper")
"""Terms with measurements."""
_FLOPS_PER_JOULE = {
    "maxwell": 0.2e12,
    "pascal": 0.3e12,
    "volta": 0.45e12,
    "turing": 0.45e12,
    "ampere": 0.8e12,
    "ampere-ga10x": 0.6e12,
    "ada": 1.3e12,
    "hopper": 1.5e12,
    "blackwell": 2.2e12,
}
"""FLOP/s per W of products in 16 bits: about the rate over the board power of each generation's largest server card,
whose clock power limits least (data sheets in catalogue.toml); GA10x and Ada between their cards."""
_ENERGY = {"fp8": 0.5, "half": 1.0, "tf32": 2.0, "fp32": 8.0}
"""Power of a FLOP relative to one in 16 bits: from the rates of V100 (1 to 8) and A100 (1 to 2)."""
_BORN = {
    "maxwell": (2014, "server"),
    "pascal": (2016, "server"),
    "volta": (2017, "server"),
    "turing": (2018, "graphics"),
    "ampere": (2020, "server"),
    "ampere-ga10x": (2020, "graphics"),
    "ada": (2022, "graphics"),
    "hopper": (2022, "server"),
    "blackwell": (2024, "server"),
}
"""Year of a generation, and what its chips are made for: servers with HBM, or graphics."""
_OTHER_LINE = 10
"""Years that the other line counts as further away: its memory and its tensor cores differ."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs the program.

    Attributes:
        compiled: chains of elementwise work become one kernel (XLA, MXNet's and Paddle's fused kernels, inductor).
        channels_last: images have the layout of tensor cores; torch uses it only on request.
    """

    compiled: bool = False
    channels_last: bool = False


TERMS = (
    Term("products in fp32", 1.15, 0.15, "large products reach nearly the rate of fp32"),
    Term("products in tf32", 1.4, 0.2, "about two thirds of the rate of tensor cores"),
    Term("products in 16 bits", 1.4, 0.2, "the same"),
    Term("convolutions in fp32", 1.0, 0.2, "Winograd's algorithm saves multiplications"),
    Term("convolutions in tf32", 2.2, 0.3, "tiles of 3x3 kernels fill tensor cores by half"),
    Term("convolutions in 16 bits", 1.8, 0.3, "the same"),
    Term("recurrent layers in fp32", 1.2, 0.3, "products of a step, one after another"),
    Term("recurrent layers in tf32", 1.6, 0.3, "the same"),
    Term("recurrent layers in 16 bits", 1.6, 0.3, "the same"),
    Term("narrow products", 0.2, 0.5, "a side below a tile of 64 leaves part of it empty"),
    Term("narrow convolutions", 0.2, 0.5, "the same"),
    Term("operands of products", 0.5, 0.5, "half of the traffic hides behind arithmetic"),
    Term("operands of convolutions", 0.6, 0.4, "the same"),
    Term("fused attention", 0.6, 0.4, "compared with products, FlashAttention-2 reaches 50 to 73 % (arXiv 2307.08691)"),
    Term("grouped convolutions", 0.5, 0.5, "groups below 32 channels leave tensor cores idle"),
    Term("depthwise convolutions", 5.0, 0.5, "cuDNN's kernels for them reach a fifth of the memory's bandwidth"),
    Term("steps of recurrent layers", 0.5, 0.5, "a step cannot begin before the one before it"),
    Term("fused traffic", 1.1, 0.12, "streaming kernels reach 85 to 95 % of the memory's bandwidth"),
    Term("unfused traffic", 0.2, 0.5, "little of it is left where chains are compiled"),
    Term("unfused traffic, eager", 0.6, 0.3, "on top; caches hold some of what the next kernel reads"),
    Term("lookups", 1.2, 0.3, "rows of tables, at random"),
    Term("optimizer", 1.3, 0.3, "reads and writes its state once"),
    Term("optimizer, unfused", 0.7, 0.4, "more often where it is many kernels"),
    Term("launches", 0.6, 0.4, "6 us of the host for a kernel, forward and backward", "host"),
    Term("power", 0.4, 0.5, "boards with less power for their rate lower their clocks"),
    Term("change of layout", 1.0, 0.4, "16-bit convolutions turn channels-first images over and back"),
    *(Term(f"tensor cores of {name}", 0.1, 1.0, "how well they are fed") for name in GENERATIONS),
    *(Term(f"memory of {name}", 0.05, 1.0, "less of its bandwidth is reached") for name in GENERATIONS),
    *(Term(f"card {name}", 0.05, 0.5, "cooling, clocks and hosts differ from the data sheet") for name in CARDS),
)
TENSOR_CORES = {name: f"tensor cores of {name}" for name in GENERATIONS}
MEMORIES = {name: f"memory of {name}" for name in GENERATIONS}
OF_CARDS = {name: f"card {name}" for name in CARDS}
"""Terms of a generation or card, by its name."""
_COLUMN = {term.name: place for place, term in enumerate(TERMS)}
_COMMON = np.array([
    term.prior * (term.lane == "device" and not term.name.startswith(("tensor cores", "memory of", "card")))
    for term in TERMS
])  # fmt: skip
"""Prior of each term that all cards have; the term of a card is a share of their sum."""
_NAMES = {"fp32": "fp32", "tf32": "tf32", "half": "16 bits"}
_CALLED = {"matmul": "products", "conv": "convolutions", "rnn": "recurrent layers"}
_COMPUTE = (
    "products", "convolutions", "recurrent", "narrow", "operands", "tensor cores", "fused attention", "grouped",
    "depthwise", "steps of", "power", "change of layout",
)  # fmt: skip
COMPUTE = frozenset(term.name for term in TERMS if term.name.startswith(_COMPUTE))
"""Terms of products, convolutions and recurrent layers."""
OPTIMIZER = frozenset({"optimizer", "optimizer, unfused"})
HOST = frozenset({"launches"})
CARD = frozenset(OF_CARDS.values())


def precision_of(width: str, gpu: Gpu, precision: str) -> str:
    """Precision of products of numbers of a width, as the catalogue calls it; ``fp32`` keeps TF32 off."""
    if width == "half":
        return "bf16" if precision == "fp8" else precision if precision in ("fp16", "bf16") else "fp16"
    return "tf32" if precision != "fp32" and "tf32" in gpu.rates else "fp32"


@functools.cache
def _places() -> dict[str, int]:
    return {name: place for place, name in enumerate(AMOUNTS)}


def unit_times(gpu: Gpu, precision: str, stack: Stack) -> Array:
    """Seconds at the vendors' rates of one unit of each amount, by term: shape (amounts, terms).

    Raises:
        ValueError: the GPU does not have the precision.
    """
    gpu.rate(precision)
    at, table = _places(), np.zeros((len(AMOUNTS), len(TERMS)))

    def put(amount: str, term: str, seconds: float) -> None:
        table[at[amount], _COLUMN[term]] += seconds

    def share(amount: str, terms: Mapping[str, str], names: Sequence[str], seconds: float) -> None:
        for name in names:
            put(amount, terms[name], seconds / len(names))

    generations = (nearest(gpu.generation),)
    cards = (gpu.name,) if gpu.name in OF_CARDS else CARDS
    efficiency = _FLOPS_PER_JOULE.get(
        gpu.generation, max(rate for name, rate in gpu.rates.items() if name != "fp8") / gpu.power_w
    )
    for width in ("single", "half"):
        used = precision_of(width, gpu, precision)
        if used not in gpu.rates:  # 16-bit operations of a program in a card without them
            used = "fp32"
        flop_s = 1.0 / gpu.rate(used)
        group = "half" if used in ("fp16", "bf16") else used
        for kind, name in _CALLED.items():
            # Linear layers alone are computed in 8 bits, and are believed to be as efficient as in 16.
            in_8_bits = precision == "fp8" and (kind, width) == ("matmul", "half")
            kind_s, energy = (1.0 / gpu.rate("fp8"), "fp8") if in_8_bits else (flop_s, group)
            put(f"{kind} {width}", f"{name} in {_NAMES[group]}", kind_s)
            put(f"{kind} {width}", "power", _ENERGY[energy] / (gpu.power_w * efficiency))
            if precision != "fp32":
                share(f"{kind} {width}", TENSOR_CORES, generations, kind_s)
            if in_8_bits:
                put(f"attention {width}", f"{name} in {_NAMES[group]}", flop_s - kind_s)
        put(f"attention {width}", "fused attention", flop_s)
        put(f"narrow matmul {width}", "narrow products", flop_s)
        put(f"narrow conv {width}", "narrow convolutions", flop_s)
        put(f"grouped conv {width}", "grouped convolutions", flop_s)
    byte_s = 1.0 / gpu.memory_bandwidth
    put("matmul bytes", "operands of products", byte_s)
    put("conv bytes", "operands of convolutions", byte_s)
    put("half conv bytes", "change of layout", byte_s * (not stack.channels_last and "fp16" in gpu.rates))
    put("depthwise bytes", "depthwise convolutions", byte_s)
    put("recurrences", "steps of recurrent layers", LAUNCH_S)
    put("embedding bytes", "lookups", byte_s)
    put("fused bytes", "fused traffic", byte_s)
    share("fused bytes", MEMORIES, generations, byte_s)
    put("unfused bytes", "unfused traffic", byte_s)
    if not stack.compiled:
        put("unfused bytes", "unfused traffic, eager", byte_s)
    share("unfused bytes", MEMORIES, generations, byte_s / 2)
    put("optimizer bytes", "optimizer", byte_s)
    put("unfused optimizer bytes", "optimizer, unfused", byte_s)
    put("compiled launches" if stack.compiled else "launches", "launches", LAUNCH_S)
    for amount, seconds in zip(AMOUNTS, (table @ _COMMON).tolist(), strict=True):
        share(amount, OF_CARDS, cards, seconds)
    return table


def without(calibration: Calibration, left_out: Collection[str]) -> Calibration:
    """The calibration for unseen cards and generations.

    An unseen generation counts as the nearest seen one, an unseen card as the mean of the seen ones.

    Args:
        calibration: fitted without them.
        left_out: names of cards and of generations; other names are ignored.
    """
    taken = np.eye(len(TERMS))
    missing = _unseen(left_out)
    for name in missing:
        for terms in (TENSOR_CORES, MEMORIES):
            taken[_COLUMN[terms[name]]] = taken[_COLUMN[terms[nearest(name, missing)]]]
    seen = [_COLUMN[OF_CARDS[card]] for card in _seen(left_out)]
    for name in CARDS:
        if _COLUMN[OF_CARDS[name]] not in seen:
            taken[_COLUMN[OF_CARDS[name]]] = taken[seen].mean(axis=0)
    covariance = calibration.covariance
    return replace(
        calibration,
        coefficients=taken @ calibration.coefficients,
        covariance=None if covariance is None else taken @ covariance @ taken.T,
    )


def nearest(generation: str, left_out: Collection[str] = ()) -> str:
    """The measured generation for a generation: itself, or else the nearest in time, of its own line first.

    An unknown generation counts as the newest: unknown is no reason to expect more.

    Args:
        generation: as the catalogue calls it.
        left_out: generations that count as not measured.
    """
    year, line = _BORN.get(generation, (9999, "server"))

    def distance(name: str) -> tuple[int, int]:
        other_year, other_line = _BORN[name]
        return abs(other_year - year) + _OTHER_LINE * (other_line != line), -other_year

    return min((name for name in GENERATIONS if name not in left_out), key=distance)


def older(generation: str) -> frozenset[str]:
    """The measured generations that are older than this one."""
    return frozenset(name for name in GENERATIONS if _BORN[name][0] < _BORN[generation][0])


def _seen(left_out: Collection[str]) -> dict[str, str]:
    """Measured cards and their generations, without those left out."""
    known = {card: catalogue()[card].generation for card in CARDS}
    return {card: own for card, own in known.items() if card not in left_out and own not in left_out}


def _unseen(left_out: Collection[str]) -> frozenset[str]:
    """Generations of which no card is left."""
    return frozenset(GENERATIONS) - set(_seen(left_out).values())
