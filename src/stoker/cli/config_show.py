"""``stoker config show``: every setting, its value here, and where the value comes from."""

from __future__ import annotations

import json

from stoker.cli.arguments import Parser
from stoker.core.settings_sources import PRECEDENCE, Resolved
from stoker.core.units import format_bytes
from stoker.run.settings import KEYS, RunSettings, resolve


def main(argv: list[str]) -> int:
    """Runs ``stoker config`` with these arguments; returns the exit status."""
    parser = Parser(prog="stoker config", description="Settings of stoker as this folder sees them.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="show")
    show = actions.add_parser("show", help="every setting, its value and its origin")
    show.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args(argv)
    resolved = resolve()
    print(_as_json(resolved) if arguments.json else _as_table(resolved))
    return 0


def _as_json(resolved: Resolved[RunSettings]) -> str:
    settings = [
        {
            "key": key.name,
            "value": key.of(resolved.settings),
            "origin": resolved.origins[key.field],
        }
        for key in KEYS
    ]
    return json.dumps({"settings": settings, "precedence": list(PRECEDENCE)}, indent=2)


def _as_table(resolved: Resolved[RunSettings]) -> str:
    rows = [("key", "value", "origin")]
    rows += [(k.name, _shown(k.field, k.of(resolved.settings)), resolved.origins[k.field]) for k in KEYS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for key, value, origin in rows]
    lines += ["", "The first of these that names a key wins:"]
    lines += [f"  {number}. {source}" for number, source in enumerate(PRECEDENCE, 1)]
    return "\n".join(lines)


def _shown(field: str, value: object) -> str:
    """The value as a person would write it in a file."""
    if value is None:
        return "none" if field == "replay" else "auto"
    if isinstance(value, bool):
        return "true" if value else "false"
    if field.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return f"{value:g} s" if field.endswith("_s") and isinstance(value, float) else str(value)
