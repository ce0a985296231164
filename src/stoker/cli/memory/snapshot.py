"""`stoker memory snapshot.pickle`: what held a GPU's memory in a snapshot that torch wrote."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.output import print_json, write_text
from stoker.core.errors import ConfigError
from stoker.perf.memory.snapshots.snapshot_file import read_snapshot
from stoker.perf.memory.snapshots.snapshot_report import snapshot_report
from stoker.records.memory import SnapshotReport
from stoker.ui.memory.snapshot_html import render_snapshot_page
from stoker.ui.memory.snapshot_text import render_snapshot
from stoker.ui.terminal import style_for

_WORTH = 0.01
"""Share of the reserve that expandable segments must save to be proposed (assumed)."""


def show_snapshot(path: Path, arguments: argparse.Namespace, theirs: Sequence[str]) -> int:
    """Prints the report of a snapshot; returns the exit status.

    Raises:
        ConfigError: the file is no snapshot, or options are given that ask for a prediction.
    """
    _refuse_others(arguments, theirs)
    report = snapshot_report(read_snapshot(path), path.name)
    if arguments.json:
        print_json(report)
    elif arguments.html:
        write_text(render_snapshot_page(report), arguments.html, "--html")
    else:
        sys.stdout.write(render_snapshot(report, style_for(sys.stdout, os.environ), _next(report)))
    return 0


def _refuse_others(arguments: argparse.Namespace, theirs: Sequence[str]) -> None:
    given = {
        "--gpu": arguments.gpu, "--memory": arguments.memory, "--hint": arguments.hint, "-m": arguments.module,
        "--ranks": arguments.ranks > 1, "--": theirs,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"`{option}` must go with a program, got a snapshot, which holds what a GPU had; leave it out"
            )


def _next(report: SnapshotReport) -> str:
    """The setting that would have saved something."""
    sizes = {each.name: each.bytes for each in report.choices}
    least = sizes.get("expandable segments, replayed")
    if report.expandable or least is None or least > (1 - _WORTH) * report.most_reserved_bytes:
        return ""
    return "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
