"""`stoker logs JOB`: what a job printed, on whatever node."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from stoker.backends.ray.allocator.launch import LogPlace
from stoker.cli.arguments import INSECURE, Parser, whole
from stoker.cli.jobs.joined import joined

if TYPE_CHECKING:
    from stoker.backends.ray.allocator.jobs import Jobs

_POLL_S = 0.5


def main(argv: list[str]) -> int:
    """Prints the output of a job, of all its attempts.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster, it cannot be joined, or it has no such job.
        ClusterStartError: the allocator does not answer.
    """
    made = Parser(prog="stoker logs", description="Prints what a job printed, on whatever nodes it ran.")
    made.add_argument("job", type=whole(1), metavar="JOB", help="number of the job")
    made.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    made.add_argument("--insecure", action="store_true", help=INSECURE)
    arguments = made.parse_args(argv)
    jobs = joined(insecure=arguments.insecure)
    follow(jobs, arguments.job, until_end=arguments.follow)
    return 0


def follow(jobs: Jobs, number: int, *, until_end: bool) -> None:
    """Prints what there is, and what comes until the job ends."""
    offsets: dict[LogPlace, int] = {}
    last: LogPlace | None = None
    while True:
        record = jobs.record(number)
        for place in record.logs:
            while data := jobs.read_log(place, offsets.get(place, 0)):
                if place != last and len(record.logs) > 1:
                    print(f"==> {place.path} <==", flush=True)
                last = place
                offsets[place] = offsets.get(place, 0) + len(data)
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        if not until_end or record.job.ended_s is not None:
            return
        time.sleep(_POLL_S)
