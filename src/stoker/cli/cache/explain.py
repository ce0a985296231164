"""`stoker cache explain`: what the next read of an object does, why, and which workers of a cluster are asked."""

from __future__ import annotations

import time

from stoker.cache.inspection import next_read
from stoker.cli.cache.arguments import (
    add_cluster,
    checked,
    directory_of,
    joined,
    parser,
    print_json,
    settings_of,
    show,
    stdout_style,
)
from stoker.cli.cache.content import facts_json, facts_of, look_at
from stoker.cli.cache.ring import owners_of
from stoker.ui.tables import render_facts

_COLOURS = {"hits": 32, "misses": 33}


def main(argv: list[str]) -> int:
    """Explains; asks no store."""
    made = parser("explain", "Shows what the next read of an object does, and why. Asks no store.")
    made.add_argument("url", type=checked, metavar="URL")
    add_cluster(made, "a cluster whose workers are asked before the store")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    settings = joined(arguments, settings_of(arguments))
    found = look_at(arguments.url, settings)
    does, why = next_read(found, time.time())
    owners = owners_of(settings, found.name, found.num_pages) if settings.cluster.join else []
    if arguments.json:
        print_json({**facts_json(found), "next_read": does, "why": why, "where": str(directory_of(settings)),
                    "owners": [owner._asdict() for owner in owners]})  # fmt: skip
        return 0
    style = stdout_style()
    facts = [*facts_of(found), ("Where", f"this machine, {directory_of(settings)}")]
    facts += [("Owner" if not number else "", owner.words(len(owners))) for number, owner in enumerate(owners)]
    verdict = style.paint(f"The next read {does}", _COLOURS.get(does, 36))
    show([*render_facts(facts, style), "", f"{verdict}: {why}."])
    return 0
