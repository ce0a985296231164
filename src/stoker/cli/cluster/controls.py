"""`stoker cluster set`, and the same options of `up`: what all jobs of a cluster are allocated by."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from stoker.backends.ray import joining
from stoker.cli.arguments import INSECURE, Parser, amount, duration
from stoker.core.errors import ConfigError
from stoker.core.texts import escaped
from stoker.core.units import format_seconds
from stoker.scale.cluster.controls import LIVE_OBJECTIVES, ClusterControls, ControlChange

_V = TypeVar("_V", int, float)
_EPILOG = """\
examples:
  stoker cluster set --objective fair
  stoker cluster set --quota ann=16 --quota bob=8 --priority ann=1
  stoker cluster set --quota bob=none"""


def main(argv: list[str]) -> int:
    """Changes what is named, and shows all of it.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: an option is invalid, there is no cluster, or it can't be joined.
        ClusterStartError: the allocator does not answer.
    """
    made = Parser(
        prog="stoker cluster set",
        description="Changes by what the running cluster divides its CPUs among jobs, and shows it; kept while the "
        "cluster is up.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(made)
    made.add_argument("--insecure", action="store_true", help=INSECURE)
    arguments = made.parse_args(argv)
    change = change_of(arguments)
    joining.connect(insecure=arguments.insecure)
    print(sentence(put(change)))
    return 0


def put(change: ControlChange) -> ClusterControls:
    """Tells the allocator of the cluster that this process has joined; returns what holds then."""
    # Imported here: Ray finds its variables only after joining.
    jobs = importlib.import_module("stoker.backends.ray.allocator.jobs")
    return jobs.Jobs().control(change)


def add_options(made: argparse.ArgumentParser) -> None:
    """The options of both commands."""
    made.add_argument(
        "--objective", choices=LIVE_OBJECTIVES,
        help="short completion times, most computing GPUs, or equal slow-down (default: jct)",
    )  # fmt: skip
    made.add_argument(
        "--grace",
        type=duration("10s"),
        metavar="TIME",
        help="to finish items on CPUs that are taken back (default: 5s)",
    )
    made.add_argument(
        "--floor", type=amount(0.0, 1.0), metavar="FRAC",
        help="part of its node's own share of CPUs that each job keeps, 0 to 1 (default: 0)",
    )  # fmt: skip
    for name, value, text in (
        ("quota", "N", "CPUs that are the user's first, and lent while not used; `none` takes it away"),
        ("weight", "W", "what the user's jobs gain counts so many times"),
        ("priority", "P", "class of the user's jobs: a higher one goes first; added to that of `stoker submit`"),
    ):
        made.add_argument(f"--{name}", action="append", default=[], metavar=f"USER={value}", help=text)


def change_of(arguments: argparse.Namespace) -> ControlChange:
    """What the options say.

    Raises:
        ConfigError: one is invalid.
    """
    try:
        change = ControlChange(
            objective=arguments.objective, grace_s=arguments.grace, floor_frac=arguments.floor,
            quotas=_by_user("quota", arguments.quota, int, "a whole number of CPUs"),
            weights=_by_user("weight", arguments.weight, float, "a number above 0"),
            priorities=_by_user("priority", arguments.priority, int, "a whole number"),
        )  # fmt: skip
        change.of(ClusterControls())
    except ValueError as error:
        raise ConfigError(f"{error}; see `stoker cluster set --help`") from None
    return change


def _by_user(name: str, words: Sequence[str], kind: Callable[[str], _V], what: str) -> dict[str, _V | None]:
    found: dict[str, _V | None] = {}
    for word in words:
        user, _, text = word.partition("=")
        try:
            found[user] = None if text == "none" else kind(text)
        except ValueError:
            user = ""
        if not user:
            raise ConfigError(
                f"`--{name}` must be USER= and {what} or `none`, got {word!r}; see `stoker cluster set --help`"
            )
    return found


def sentence(controls: ClusterControls) -> str:
    """What holds, in a line."""
    parts = [f"CPUs are divided by {controls.objective or 'jct'}"]
    if controls.grace_s is not None:
        parts.append(f"grace {format_seconds(controls.grace_s)}")
    if controls.floor_frac is not None:
        parts.append(f"each keeps {controls.floor_frac:.0%} of its node's share")
    for name, values in (("quota", controls.quotas), ("weight", controls.weights), ("priority", controls.priorities)):
        if values:
            parts.append(f"{name} {_shown(values)}")
    return "; ".join(parts)


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{escaped(user)} {value:g}" for user, value in sorted(values.items()))
