"""`stoker cluster up`: starts a Ray cluster of nodes on this machine."""

from __future__ import annotations

import argparse

from stoker.backends.ray import clusters, joining
from stoker.cli.arguments import Parser, whole
from stoker.cli.cluster.controls import add_options, change_of, put, sentence
from stoker.core.units import format_bytes, parse_bytes

_EPILOG = """\
Only who has the cluster's token, a file that no other user can read, may use it. Ray listens on all addresses of this
machine, whatever one it is given.
examples:
  stoker cluster up
  stoker run --backend ray train.py
  stoker cluster down"""


def main(argv: list[str]) -> int:
    """Starts it, and says how others join.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: an option is invalid, Ray is too old, or a cluster is up.
        ClusterStartError: a daemon does not start.
    """
    arguments = _parser().parse_args(argv)
    shape = clusters.NodeShape(
        cpus=arguments.cpus or clusters.default_cpus(arguments.nodes),
        gpus=arguments.gpus,
        object_store_bytes=arguments.object_store,
    )
    change = change_of(arguments)
    record = clusters.up(clusters.state_folder(), arguments.nodes, shape)
    nodes = "1 node" if arguments.nodes == 1 else f"{arguments.nodes} nodes"
    print(f"a cluster of {nodes} is up at {record.address}; its token is in {record.token_file}")
    if not change.is_empty:
        token, source = record.token_file, "the cluster that was started"
        joining.connect(joining.RayTarget(address=record.address, source=source, token_file=token))
        print(sentence(put(change)))
    print("here:       stoker run --backend ray train.py")
    print(f"elsewhere:  RAY_ADDRESS={record.address} RAY_AUTH_TOKEN_PATH=… with a copy of the token, mode 600")
    return 0


def _size(text: str) -> int:
    least = clusters.LEAST_OBJECT_STORE_BYTES
    try:
        size_bytes = parse_bytes(text)
    except ValueError:
        size_bytes = 0
    if size_bytes < least:
        raise argparse.ArgumentTypeError(f"must be a size of at least {format_bytes(least)}, got {text!r}")
    return size_bytes


def _parser() -> Parser:
    made = Parser(
        prog="stoker cluster up",
        description="Starts a Ray cluster of nodes on this machine, with token authentication.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--nodes", type=whole(1, 64), default=1, metavar="N", help="nodes to start here (default: 1)")
    made.add_argument(
        "--cpus", type=whole(1, 4096), metavar="K", help="CPUs that each declares (default: this machine's, shared out)"
    )
    made.add_argument(
        "--gpus", type=whole(0, 64), metavar="G", help="GPUs that each declares (default: those of this machine, once)"
    )
    made.add_argument(
        "--object-store", type=_size, default="128MiB", metavar="SIZE",
        help="memory of each node's object store, for programs of Ray's own (default: 128MiB)",
    )  # fmt: skip
    add_options(made)
    return made
