"""`stoker cache pin`, `unpin`, `evict`, `verify`: keep pages, drop pages, and verify checksums."""

from __future__ import annotations

import argparse

from stoker.cache.filesystem.resolve_url import open_place
from stoker.cache.inspection import folder_prefix
from stoker.cache.names import ObjectName
from stoker.cache.settings import CacheSettings
from stoker.cache.store.maintenance import PageCount
from stoker.cache.store.page_store import PageStore
from stoker.cli.arguments import Parser
from stoker.cli.cache.arguments import checked, open_existing, parser, print_json, settings_of, show, stdout_style
from stoker.core.errors import ConfigError
from stoker.core.units import format_bytes, format_count


def pin(argv: list[str]) -> int:
    """Pins everything below a URL, now and later."""
    arguments, settings, pages = _opened(
        "pin", "Pins everything below a URL, now and later: it is not evicted until it is unpinned.", argv
    )
    done = pages.pin(_prefix(arguments.url, settings, pages))
    return _say(arguments, f"Pinned {arguments.url}", done, " of it in the cache now")


def unpin(argv: list[str]) -> int:
    """Ends pins."""
    arguments, settings, pages = _opened(
        "unpin", "Unpins everything below a URL, so that it can be evicted again.", argv
    )
    done = pages.unpin(_prefix(arguments.url, settings, pages))
    return _say(arguments, f"Unpinned {arguments.url}", done, " of it in the cache")


def evict(argv: list[str]) -> int:
    """Evicts cached objects.

    Raises:
        ConfigError: neither a URL nor ``--all`` was given, or both.
    """
    made = _parser(
        "evict", "Evicts what is cached below a URL. The store keeps it, and the next read fetches it again."
    )
    made.add_argument("--all", action="store_true", help="everything")
    arguments = made.parse_args(argv)
    if bool(arguments.url) == arguments.all:
        raise ConfigError(
            "`stoker cache evict` must be followed by a URL or by --all, got "
            + ("both" if arguments.all else "neither")
        )
    settings = settings_of(arguments)
    pages = open_existing(settings)
    done = pages.evict(None if arguments.all else _prefix(arguments.url, settings, pages))
    pages.compact()  # files that small objects share go once little in them is left
    return _say(arguments, f"Evicted {'everything' if arguments.all else arguments.url}", done)


def verify(argv: list[str]) -> int:
    """Verifies everything; 1 if something was damaged."""
    made = parser("verify", "Verifies the checksums of everything that is cached, and evicts what is damaged.")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    pages = open_existing(settings_of(arguments))
    report = pages.verify()
    pages.compact()
    if arguments.json:
        print_json({"intact": report.intact._asdict(), "damaged": report.damaged._asdict()})
        return 1 if report.damaged.pages else 0
    style = stdout_style()
    lines = [f"{style.paint('intact ', 32)}  {_count(report.intact)}"]
    if report.damaged.pages:
        lines += [
            f"{style.paint('damaged', 31)}  {_count(report.damaged)}: evicted, the next read fetches them again",
            "The disk returned other bytes than were written, and may do so again: check the kernel's log.",
        ]
    show(lines)
    return 1 if report.damaged.pages else 0


def _parser(name: str, text: str) -> Parser:
    made = parser(name, text)
    made.add_argument("url", type=checked, metavar="URL", nargs="?", help="of an object or a folder")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def _opened(name: str, text: str, argv: list[str]) -> tuple[argparse.Namespace, CacheSettings, PageStore]:
    arguments = _parser(name, text).parse_args(argv)
    if not arguments.url:
        raise ConfigError(f"`stoker cache {name}` must be followed by a URL such as s3://bucket/folder, got nothing")
    settings = settings_of(arguments)
    return arguments, settings, open_existing(settings)


def _prefix(url: str, settings: CacheSettings, pages: PageStore) -> ObjectName:
    """What names below a URL begin with; an object is its own."""
    filesystem, path = open_place(url, settings)
    name = filesystem.reader.name(path)
    is_object = not url.endswith("/") and any(held.name.path == path for held in pages.names(name))
    return name._replace(path=folder_prefix(path, is_object=is_object))


def _say(arguments: argparse.Namespace, what: str, done: PageCount, where: str = "") -> int:
    if arguments.json:
        print_json(done._asdict())
    else:
        show([f"{what}: {_count(done)}{where}"])
    return 0


def _count(pages: PageCount) -> str:
    return f"{format_count(pages.pages, 'page')}, {format_bytes(pages.num_bytes)}"
