"""`stoker queue`: the jobs of the cluster that wait and run, and why they wait."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence

import msgspec

from stoker.backends.ray.allocator.launch import JobRecord
from stoker.backends.ray.observing import SeenNode
from stoker.cli.arguments import INSECURE, Parser
from stoker.cli.cluster.controls import sentence
from stoker.cli.jobs.joined import joined
from stoker.cli.output import print_json
from stoker.core.texts import escaped
from stoker.core.units import format_seconds
from stoker.scale.cluster.controls import ControlChange

_RECENT = 5
"""Ended jobs that are shown without `--all`."""


def main(argv: list[str]) -> int:
    """Shows the queue.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster, or it cannot be joined.
        ClusterStartError: the allocator does not answer.
    """
    arguments = _parser().parse_args(argv)
    jobs = joined(insecure=arguments.insecure)
    records, nodes, controls = jobs.records(), jobs.nodes(), jobs.control(ControlChange())
    rows = [row_of(record, nodes, time.time()) for record in records]
    if not arguments.all:
        ended = [row["job"] for row in rows if row["ended"]][:-_RECENT]
        rows = [row for row in rows if row["job"] not in ended]
    if arguments.json:
        print_json({"policy": jobs.discipline(), "controls": msgspec.to_builtins(controls), "jobs": rows})
    else:
        print("\n".join([*render(rows), sentence(controls)]))
    return 0


def row_of(record: JobRecord, nodes: Mapping[str, SeenNode], now_s: float) -> dict[str, object]:
    """A job as numbers and words."""
    job, asked = record.job, record.job.asked
    began_s = job.first_s if job.first_s is not None else job.ended_s
    seats = job.alive.seats if job.alive is not None else ()
    return {
        "job": job.number,
        "state": job.state,
        "reason": job.reason,
        "user": asked.user,
        "gpus": asked.gpus,
        "cpus": asked.cpus,
        "priority": asked.priority,
        "resumable": asked.resumable,
        "nodes": [nodes[seat.node].name if seat.node in nodes else seat.node for seat in seats],
        "waited_s": round((began_s if began_s is not None else now_s) - job.arrived_s, 1),
        "ran_s": round(job.attained_s, 1),
        "attempts": job.attempts,
        "ended": job.ended_s is not None,
        "command": shlex.join(asked.command),
        "folder": record.program.folder,
        "logs": [place.path for place in record.logs],
    }


def render(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The queue as lines."""
    if not rows:
        return ["no jobs; stoker submit --gpus 1 -- train.py adds one"]
    lines = [f"{'JOB':>5} {'STATE':<10} {'USER':<10} {'GPUS':>4} {'WAITED':>10} {'RAN':>10}  COMMAND"]
    for row in rows:
        waited, ran = (format_seconds(float(str(row[key]))) for key in ("waited_s", "ran_s"))
        why = f"  ({row['reason']})" if row["reason"] else ""
        lines.append(
            f"{row['job']:>5} {row['state']:<10} {escaped(str(row['user']))[:10]:<10} {row['gpus']:>4} {waited:>10} "
            f"{ran:>10}  {escaped(str(row['command']))[:60]}{why}"
        )
    return lines


def _parser() -> Parser:
    made = Parser(
        prog="stoker queue",
        description="Shows the jobs of the cluster that wait and run, the last that ended, and why they wait.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--all", action="store_true", help="all jobs that ended too")
    made.add_argument("--insecure", action="store_true", help=INSECURE)
    return made
