"""`stoker cache ls` and `stoker cache stat`: what is cached, object by object."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.cache.filesystem.resolve_url import open_place
from stoker.cache.inspection import Look, endpoint_of, folder_prefix, look, url_of_name
from stoker.cache.names import DESCRIPTION, ObjectName
from stoker.cache.policies import DEFAULT_RULES, PageLife
from stoker.cache.rules_text import write_rule
from stoker.cache.settings import CacheSettings
from stoker.cache.store.contents import HeldPage
from stoker.cli.cache.arguments import checked, open_existing, parser, print_json, settings_of, show, stdout_style
from stoker.core.errors import ConfigError
from stoker.core.units import format_bytes, format_seconds
from stoker.ui.figures import write_count, write_percent
from stoker.ui.tables import render_facts, render_table


@dataclass(slots=True)
class _Line:
    """An object, or all those of a folder."""

    objects: int = 0
    size: int = 0
    cached_bytes: int = 0
    pinned: int = 0


def ls(argv: list[str]) -> int:
    """Lists what is cached."""
    made = parser("ls", "Lists what is cached below a URL, or everything: objects and folders of one level.")
    made.add_argument(
        "url", type=checked, metavar="URL", nargs="?", help="folder or object (default: all that is cached)"
    )
    made.add_argument("-r", "--recursive", action="store_true", help="every object")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    settings = settings_of(arguments)
    pages = open_existing(settings)
    prefix = _prefix(arguments.url, settings)
    objects = _objects(pages.names(prefix), prefix)
    lines = _lines(objects, prefix, recursive=arguments.recursive)
    if arguments.json:
        print_json(
            {"entries": [{"url": url, "endpoint": endpoint, **_as_json(line)} for (url, endpoint), line in lines]}
        )
        return 0
    if not lines:
        show(["Nothing is cached" + (f" below {arguments.url}." if arguments.url else ".")])
        return 0
    several = len({endpoint for (_, endpoint), _ in lines}) > 1
    rows = [
        [
            write_count(line.objects) if url.endswith("/") else "",
            format_bytes(line.cached_bytes),
            write_percent(line.cached_bytes / line.size) if line.size else "100.0 %",
            "pinned" if line.pinned == line.objects else f"{write_count(line.pinned)} pinned" if line.pinned else "",
            url + (f"  at {endpoint}" if several and endpoint else ""),
        ]
        for (url, endpoint), line in lines
    ]
    shown = [number for number in range(5) if any(row[number] for row in rows)]
    heading = ["objects", "cached", "of it", "", "url"]
    table = [[row[number] for number in shown] for row in [heading, *rows]]
    right = range(len(shown) - 1)
    show(render_table(table[0], table[1:], stdout_style(), right=right))
    return 0


def _as_json(line: _Line) -> dict[str, object]:
    return {
        "objects": line.objects, "size": line.size, "cached_bytes": line.cached_bytes,
        "pinned": line.pinned > 0,
    }  # fmt: skip


def _prefix(url: str | None, settings: CacheSettings) -> ObjectName | None:
    if url is None:
        return None
    filesystem, path = open_place(url, settings)
    return filesystem.reader.name(path)


def _objects(found: Iterable[HeldPage], prefix: ObjectName | None) -> dict[ObjectName, _Line]:
    objects: dict[ObjectName, _Line] = {}
    for held in found:
        if prefix is not None and not _is_below(held.name.path, prefix.path):
            continue
        line = objects.setdefault(held.name, _Line(objects=1, size=held.version.size))
        if held.page != DESCRIPTION:
            line.cached_bytes += held.entry.length
        line.pinned |= held.life == PageLife.PINNED
    return objects


def _is_below(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _lines(
    objects: dict[ObjectName, _Line], prefix: ObjectName | None, *, recursive: bool
) -> list[tuple[tuple[str, str], _Line]]:
    """Rows to show, by URL and endpoint."""
    lines: dict[tuple[str, str], _Line] = {}
    for name, line in objects.items():
        shown = name if recursive else _level(name, prefix)
        total = lines.setdefault((url_of_name(shown), endpoint_of(shown)), _Line())
        total.objects += 1
        total.size += line.size
        total.cached_bytes += line.cached_bytes
        total.pinned += line.pinned
    return sorted(lines.items())


def _level(name: ObjectName, prefix: ObjectName | None) -> ObjectName:
    """The folder just below the prefix that an object is in, or the object."""
    base = "" if prefix is None else prefix.path.rstrip("/")
    if name.path == base:
        return name
    root = "/" if not base and name.path.startswith("/") else ""
    start = len(base) + 1 if base else len(root)
    head, slash, _ = name.path[start:].partition("/")
    return ObjectName(name.namespace, name.path[:start] + head + slash)


def stat(argv: list[str]) -> int:
    """Shows one object; 1 if nothing of it is cached."""
    made = parser("stat", "Shows one object: its version, how much of it is cached, under which rule.")
    made.add_argument("url", type=checked, metavar="URL")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    settings = settings_of(arguments)
    open_existing(settings)
    found = look_at(arguments.url, settings)
    if arguments.json:
        print_json(facts_json(found))
    else:
        show(render_facts(facts_of(found), stdout_style()))
    return 0 if found.digest is not None else 1


def look_at(url: str, settings: CacheSettings) -> Look:
    """The cached objects of a URL.

    Raises:
        ConfigError: it is a folder.
    """
    filesystem, path = open_place(url, settings)
    number, rule = filesystem.reader.rules.of(path)
    name = filesystem.reader.name(path)
    found = look(filesystem.pages, name, number, rule)
    below = name._replace(path=folder_prefix(path, is_object=False))
    if found.digest is None and next(filesystem.pages.names(below), None) is not None:
        raise ConfigError(f"`{url}` must be an object, and it is a folder; see stoker cache ls {url}")
    return found


def facts_of(found: Look) -> list[tuple[str, str]]:
    """An object in labelled lines."""
    whose = "the cache's own" if found.rule in DEFAULT_RULES else f"rule {found.rule_number + 1}"
    rule = f"{write_rule(found.rule)}  ({whose})"
    facts = [("Object", url_of_name(found.name))]
    if endpoint := endpoint_of(found.name):
        facts.append(("Store", endpoint))
    if found.digest is None:
        return [*facts, ("Cached", "nothing"), ("Rule", rule)]
    size = found.size or 0
    share = write_percent(found.cached_bytes / size) if size else "100.0 %"
    version = (
        f"{found.version.strength.name.lower()} {found.version.token}" if found.version else f"{found.digest:016x}"
    )
    kept = ["a separate file" if found.is_large else "segments with others"] + ["pinned"] * found.is_pinned
    return [
        *facts,
        ("Size", format_bytes(size)),
        ("Cached", f"{format_bytes(found.cached_bytes)} ({share}), {found.pages} of {found.num_pages} pages"),
        ("Version", version),
        ("Checked", f"{format_seconds(max(0.0, time.time() - found.checked_at))} ago"),
        ("Kept in", ", ".join(kept)),
        ("Rule", rule),
    ]


def facts_json(found: Look) -> dict[str, object]:
    """An object as JSON."""
    return {
        "url": url_of_name(found.name),
        "endpoint": endpoint_of(found.name),
        "size": found.size,
        "cached_bytes": found.cached_bytes,
        "pages": found.pages,
        "num_pages": found.num_pages,
        "version": found.version.token if found.version else None,
        "strength": found.version.strength.name.lower() if found.version else None,
        "checked_at": found.checked_at or None,
        "pinned": found.is_pinned,
        "own_file": found.is_large,
        "rule": write_rule(found.rule),
    }
