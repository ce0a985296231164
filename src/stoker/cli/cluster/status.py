"""`stoker cluster status`: nodes of the cluster, the CPUs that jobs hold there, and what comes to them from there."""

from __future__ import annotations

import argparse

import msgspec

from stoker.backends.ray import joining
from stoker.backends.ray.observing import SeenCluster, observe
from stoker.cli.arguments import INSECURE, Parser
from stoker.cli.cluster.controls import sentence
from stoker.cli.output import print_json
from stoker.core.units import format_count
from stoker.scale.cluster.controls import ClusterControls


def main(argv: list[str]) -> int:
    """Shows the cluster.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster, or it can't be joined.
    """
    arguments = _parser().parse_args(argv)
    target = joining.connect(insecure=arguments.insecure)
    cluster = observe()
    if arguments.json:
        print_json({"address": target.address} | msgspec.to_builtins(cluster))
    else:
        print("\n".join(render(target.address, cluster)))
    return 0


def render(address: str, cluster: SeenCluster) -> list[str]:
    """The cluster as lines."""
    lines = [f"cluster at {address}: {format_count(len(cluster.nodes), 'node')}"]
    for node in cluster.nodes:
        held = [f"{grant.job} {grant.cpus}" for grant in cluster.grants if grant.node == node.name]
        gpus = (f", {format_count(node.gpus, 'GPU')}" if node.gpus else "") + (
            ", leaves soon" if node.is_draining else ""
        )
        lines.append(
            f"  {node.name:<20} {node.address:<16} {node.free_cpus} of {node.cpus} CPUs free{gpus}"
            + (f"; data workers: {', '.join(held)}" if held else "")
        )
        lines += [
            f"    {link.workers} workers send {link.job} {link.bytes_per_s / 1e6:.1f} MB/s"
            for link in cluster.links
            if link.node == node.name
        ]
    waiting = sum(grant.cpus for grant in cluster.grants if not grant.node)
    jobs = {grant.job for grant in cluster.grants}
    if jobs:
        unmet = f"; {format_count(waiting, 'CPU')} waited for" if waiting else ""
        lines.append(f"{format_count(len(jobs), 'job')} with data workers{unmet}")
    if cluster.controls != ClusterControls():
        lines.append(sentence(cluster.controls))
    return lines


def _parser() -> Parser:
    made = Parser(
        prog="stoker cluster status",
        description="Shows the nodes of the cluster that RAY_ADDRESS names, else of the one that stoker started here.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--insecure", action="store_true", help=INSECURE)
    return made
