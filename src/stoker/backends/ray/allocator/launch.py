"""What a submitted job runs: its command lines and its environment, pure; and its record, as it is kept.

Imports no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stoker.backends.ray.clusters import MARK_ENV
from stoker.scale.cluster.submissions import NodeSeat, SubmittedJob

PROGRAM_EXIT_S = 30.0
"""Time between SIGTERM and SIGKILL: a program writes its checkpoint in it."""
JOB_ENV = "_RAY_JOB_BY_STOKER"
"""Tells the brokers of a submitted job whose it is (:class:`JobOwner`). No `STOKER_` variable: those are settings."""
_KEPT_OF_NODE = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    MARK_ENV,
    "CUDA_VISIBLE_DEVICES",
)
"""Variables that a job takes from its node: how to join the cluster, the mark of `stoker cluster down`, its GPUs."""


class JobOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose data workers a job's are, and before whose they go."""

    user: str = ""
    priority: int = 0


class SubmittedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, as at submission."""

    python: str
    words: tuple[str, ...]
    """Script or module and its arguments, options of `stoker run` before them."""
    folder: str
    """Working folder."""
    environ: dict[str, str]
    log_folder: str
    user: str = ""
    """Whose it is, which is not the account that it runs under."""
    priority: int = 0


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A file that an attempt wrote, and where."""

    node: str
    path: str


class JobRecord(msgspec.Struct, kw_only=True):
    """All that is known of a job; kept with the cluster's own state."""

    job: SubmittedJob
    program: SubmittedProgram
    logs: list[LogPlace]


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the nodes of a gang meet."""

    host: str
    port: int


def command_of(
    program: SubmittedProgram, seats: Sequence[NodeSeat], rank: int, meeting: Rendezvous | None
) -> list[str]:
    """The command line of a gang's processes on one of its nodes.

    Args:
        program: what is run.
        seats: of the gang.
        rank: number of the node among them.
        meeting: where several nodes meet.
    """
    run = ["-m", "stoker", "run", "--backend=ray", *program.words]
    if len(seats) == 1 and seats[0].gpus == 1:
        return [program.python, *run]
    nodes = ["--standalone"]
    if len(seats) > 1:
        assert meeting is not None, "several nodes meet somewhere"
        nodes = [
            f"--nnodes={len(seats)}", f"--node-rank={rank}", f"--master-addr={meeting.host}",
            f"--master-port={meeting.port}",
        ]  # fmt: skip
    return [program.python, "-m", "torch.distributed.run", *nodes, f"--nproc-per-node={seats[rank].gpus}", *run]


def environment_of(program: SubmittedProgram, node: Mapping[str, str], address: str) -> dict[str, str]:
    """The environment of a job's processes: that of its submission, Ray's variables those of the node.

    Args:
        program: what is run.
        node: environment of a process of Ray's on the node.
        address: of the cluster.
    """
    whose = JobOwner(user=program.user, priority=program.priority)
    told = {JOB_ENV: msgspec.json.encode(whose).decode()} if whose.user else {}
    return there(program.environ, node, address) | told


def there(environ: Mapping[str, str], node: Mapping[str, str], address: str) -> dict[str, str]:
    """An environment as it is on a node: how to join the cluster, and the GPUs, are the node's."""
    kept = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
    kept.pop("CUDA_VISIBLE_DEVICES", None)
    own = {name: node[name] for name in _KEPT_OF_NODE if name in node}
    return kept | own | {"RAY_ADDRESS": address}


def log_path(program: SubmittedProgram, attempt: int, rank: int) -> str:
    """The file of a node's output in an attempt."""
    return f"{program.log_folder}/attempt-{attempt}-node-{rank}.log"
