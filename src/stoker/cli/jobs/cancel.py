"""`stoker cancel JOB`: takes a job from the queue, or ends it."""

from __future__ import annotations

from stoker.cli.arguments import INSECURE, Parser, whole
from stoker.cli.jobs.joined import joined


def main(argv: list[str]) -> int:
    """Ends jobs: SIGTERM first, and SIGKILL after half a minute.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster, it cannot be joined, or it has no such job.
        ClusterStartError: the allocator does not answer.
    """
    made = Parser(
        prog="stoker cancel",
        description="Takes jobs from the cluster's queue; one that runs gets SIGTERM, and SIGKILL after half a minute.",
    )
    made.add_argument("job", type=whole(1), nargs="+", metavar="JOB", help="number of the job")
    made.add_argument("--insecure", action="store_true", help=INSECURE)
    arguments = made.parse_args(argv)
    jobs = joined(insecure=arguments.insecure)
    for number in arguments.job:
        print(f"job {number}: {jobs.cancel(number)}")
    return 0
