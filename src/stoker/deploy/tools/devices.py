"""FPGAs that designs are placed on, with open tools alone: names, options of the tools, what they hold.

Source: family data sheets of Lattice, ECP5 (FPGA-DS-02012) and iCE40 (FPGA-DS-02029, FPGA-DS-02008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fpga:
    """A part.

    Attributes:
        name: as users write it.
        family: of the tools.
        grade: of speed; clocks are modelled for each.
        options: of nextpnr.
        luts: with four inputs; on iCE40 logic cells, each with one and a flip-flop.
        flip_flops: registers of one bit.
        dsps: multipliers of 18 x 18 that designs may use. None of iCE40: how many products share one of the eight that
            the UP5K has is left to synthesis, and the HX8K has none.
        block_rams: of 18 (ECP5) or 4 (iCE40) kilobits.
        pins: of its package that a design's ports may have.
    """

    name: str
    family: Literal["ecp5", "ice40"]
    grade: str
    options: tuple[str, ...]
    luts: int
    flip_flops: int
    dsps: int
    block_rams: int
    pins: int


def _ecp5(size: str, package: str, pins: int, luts: int, dsps: int, block_rams: int) -> Fpga:
    options = (f"--{size}", "--package", package, "--speed", "6", "--lpf-allow-unconstrained")
    return Fpga(
        name=f"ecp5-{size}", family="ecp5", grade="6", options=options, luts=luts, flip_flops=luts, dsps=dsps,
        block_rams=block_rams, pins=pins,
    )  # fmt: skip


FPGAS = (
    _ecp5("25k", "CABGA381", 197, 24_288, 28, 56),
    _ecp5("45k", "CABGA554", 245, 43_848, 72, 108),
    _ecp5("85k", "CABGA756", 365, 83_640, 156, 208),
    Fpga(
        name="ice40-up5k", family="ice40", grade="up", luts=5_280, flip_flops=5_280, dsps=0, block_rams=30, pins=39,
        options=("--up5k", "--package", "sg48", "--pcf-allow-unconstrained"),
    ),
    Fpga(
        name="ice40-hx8k", family="ice40", grade="hx", luts=7_680, flip_flops=7_680, dsps=0, block_rams=32, pins=206,
        options=("--hx8k", "--package", "ct256", "--pcf-allow-unconstrained"),
    ),
)  # fmt: skip


def fpga(name: str) -> Fpga:
    """The part of a name.

    Raises:
        ValueError: there is none.
    """
    for each in FPGAS:
        if each.name == name:
            return each
    raise ValueError(f"`device` must be one of {', '.join(each.name for each in FPGAS)}, got {name}")
