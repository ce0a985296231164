"""`stoker cluster down`: ends the Ray cluster that stoker started here, and all that runs in it."""

from __future__ import annotations

from stoker.backends.ray import clusters
from stoker.cli.arguments import Parser


def main(argv: list[str]) -> int:
    """Ends it; nothing of it is left.

    Raises:
        ConfigError: there is none, or it was started on another machine.
        ClusterStartError: a process does not end.
    """
    Parser(
        prog="stoker cluster down",
        description="Ends the Ray cluster that `stoker cluster up` started here, and all that runs in it.",
    ).parse_args(argv)
    print(f"ended {clusters.down(clusters.state_folder())} processes; the token is deleted")
    return 0
