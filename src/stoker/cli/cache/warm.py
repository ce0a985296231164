"""`stoker cache warm`: fills the cache beforehand, and reports the outcome for each object."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from stoker.cache.filesystem.resolve_url import open_place, plain_url
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.peer_clients import peer_client
from stoker.cache.reading.reader import Reader
from stoker.cache.settings import CacheSettings
from stoker.cache.warm.preloading import JOBS, Listing, Warming, list_items
from stoker.cache.warm.replicating import TIMEOUT_S, Replicating
from stoker.cache.warm.warm_plan import Account, Tally, WarmObject, has_magic, manifest_urls
from stoker.cli.arguments import Parser, whole
from stoker.cli.cache.arguments import (
    add_cluster,
    checked,
    joined,
    parser,
    print_json,
    settings_of,
    show,
    stdout_style,
)
from stoker.core.errors import ConfigError
from stoker.core.progress import ProgressLine
from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_EPILOG = """\
WHAT is a URL of a folder or an object, a pattern, or a file that lists such URLs, one a line (`-`: standard input).
Objects that are cached in the store's version are not fetched again: after an interruption, run it again.
exit status: 0 everything is in the cache, 1 something is not, 130 interrupted
examples:
  stoker cache warm s3://bucket/train
  stoker cache warm 's3://bucket/train/*.parquet' --jobs 64
  stoker cache warm files.txt
  stoker cache warm s3://bucket/train --replicas 2 --join etcd://etcd-1:2379/training"""
_SHOWN_FAILURES = 5
MOST_JOBS = 1024
"""Each is a thread."""


def main(argv: list[str]) -> int:
    """Warms the cache.

    Raises:
        ConfigError: the objects to warm cannot be parsed, or do not exist.
    """
    arguments = _parser().parse_args(argv)
    urls = _urls(arguments.what)
    settings = joined(arguments, settings_of(arguments))
    if arguments.replicas and not settings.cluster.join:
        raise ConfigError("`--replicas` must come with the cluster whose workers hold the pages; add --join RING")
    account, began_s = Account(), time.monotonic()
    status = _warm(urls, settings, account, arguments.jobs, arguments.replicas, quiet=arguments.quiet)
    lasted_s = time.monotonic() - began_s
    if arguments.json:
        print_json(_as_json(account, lasted_s))
    elif not arguments.quiet or status:
        where = f" --dir {arguments.dir}" if arguments.dir else ""
        show(render_account(account, lasted_s, stdout_style(), " ".join(arguments.what), where, arguments.replicas))
    return status or (0 if account.is_complete else 1)


def _parser() -> Parser:
    made = parser("warm", "Fills the cache with objects before they are needed.", _EPILOG)
    made.add_argument("what", metavar="WHAT", nargs="+", help="URL, pattern, or file of URLs")
    made.add_argument(
        "--jobs", type=whole(1, MOST_JOBS), default=JOBS, metavar="N", help=f"parallel requests (default: {JOBS})"
    )
    made.add_argument("--size", metavar="SIZE", help="most bytes of the cache, if it has to be created")
    add_cluster(made, "a cluster that is asked before the store (default: as set)")
    made.add_argument(
        "--replicas",
        type=whole(1),
        default=0,
        metavar="N",
        help="have N workers of the cluster hold each page, not this cache",
    )
    made.add_argument("--json", action="store_true", help="print the summary as JSON")
    made.add_argument("--quiet", action="store_true", help="print nothing if all is well")
    return made


def _urls(words: list[str]) -> list[str]:
    urls: list[str] = []
    for word in words:
        if word == "-":
            urls += manifest_urls(sys.stdin)
        elif "://" in word:
            urls.append(checked(word))
        else:
            urls += _manifest(word)
    if not urls:
        raise ConfigError(f"`{' '.join(words)}` must name objects, and lists none")
    return urls


def _manifest(word: str) -> list[str]:
    try:
        found = manifest_urls(Path(word).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"`{word}` must be a URL such as s3://bucket/folder, or a file that lists URLs: {reason}"
        ) from None
    wrong = next((line for line in found if "://" not in line), None)
    if wrong is not None:
        raise ConfigError(f"`{word}` must list URLs, one a line, got {wrong[:80]!r}")
    return found


def _warm(urls: list[str], settings: CacheSettings, account: Account, jobs: int, replicas: int, *, quiet: bool) -> int:
    """Warms, adding to the account; 130 after an interruption."""
    warmings: list[Warming | Replicating] = []
    with ProgressLine("warming", 0, sys.stderr, quiet=quiet) as line:
        account.is_listed = False
        try:
            for filesystem, listings in _listings(urls, settings, jobs, line):
                account.is_listed = True
                for listing in listings:
                    account.plan(listing.items)
                line.total, line.note = account.planned.num_bytes, ""
                warming = _warming(filesystem.reader, settings, account, replicas, line)
                warmings.append(warming)
                for listing in listings:
                    warming.run(listing, jobs)
        except KeyboardInterrupt:
            return 130
        finally:
            for warming in warmings:
                warming.check()
    return 0


def _warming(
    reader: Reader, settings: CacheSettings, account: Account, replicas: int, line: ProgressLine
) -> Warming | Replicating:
    """The warmer of one store's objects: for this cache, or for the workers of a cluster."""

    def report(num_bytes: int, moved: bool) -> None:
        line.advance(num_bytes, moved=moved)

    if not replicas or settings.cluster.join is None:
        return Warming(reader, account, report)
    client = peer_client(settings)
    client.check()
    client = client.patient(TIMEOUT_S)
    return Replicating(reader, client, replicas, account, report)


def _listings(
    urls: list[str], settings: CacheSettings, jobs: int, line: ProgressLine
) -> Iterator[tuple[StokerFileSystem, list[Listing]]]:
    """The objects of the URLs, grouped by store, each once."""
    stores: dict[str, tuple[StokerFileSystem, list[Listing], set[str]]] = {}
    for number, (filesystem, listing) in enumerate(_listed(urls, settings, jobs), 1):
        _, listings, seen = stores.setdefault(filesystem.fsid, (filesystem, [], set()))
        fresh = [item for item in listing.items if item.path not in seen]
        seen.update(item.path for item in fresh)
        listings.append(Listing(fresh, listing.versions, listing.listed_at))
        line.note = f"{number:,} of {len(urls):,} listed"
        line.advance(0)
    for filesystem, listings, _ in stores.values():
        yield filesystem, listings


def _listed(urls: list[str], settings: CacheSettings, jobs: int) -> Iterator[tuple[StokerFileSystem, Listing]]:
    """The objects of each URL; a list may have one URL per object, so the requests run in parallel."""
    places = [open_place(url, settings) for url in urls]
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="stoker-list")
    try:
        futures = [
            pool.submit(list_items, *place, is_pattern=has_magic(plain_url(url)))
            for url, place in zip(urls, places, strict=True)
        ]
        for url, (filesystem, path), future in zip(urls, places, futures, strict=True):
            try:
                listing = future.result()
            except FileNotFoundError as error:
                if len(urls) == 1:
                    why = f": {error.__cause__}" if error.__cause__ is not None else ""
                    raise ConfigError(f"`{url}` must name objects, and nothing is there{why}") from None
                # One of many that is not there is a line of the account, and stops none of the others.
                listing = Listing([WarmObject(path, 0)], {}, 0.0)
            yield filesystem, listing
    finally:
        pool.shutdown(cancel_futures=True)


def render_account(
    account: Account, lasted_s: float, style: Style, what: str, where: str, replicas: int = 0
) -> list[str]:
    """The account as lines.

    Args:
        account: of the warming.
        lasted_s: how long it took (seconds).
        style: what the terminal shows.
        what: was to be warmed.
        where: option that says which cache it was, if one did.
        replicas: workers that hold each page; 0 for this machine's cache.
    """
    rate = f"{format_bytes(account.fetched.num_bytes / lasted_s)}/s over {format_seconds(lasted_s)}"
    rows = [
        _row("planned", account.planned, what),
        _row("  present", account.present, "already cached, in the store's version"),
        _row("  fetched", account.fetched, rate),
        _row("  refused", account.refused, "no room: what is cached is in use, or the disk is full"),
        _row("  uncached", account.uncached, "excluded by rules"),
        _row("  failed", account.failed, "could not be read"),
        _row("evicted", account.evicted, "evicted since, by what came later"),
    ]
    rows = [row for number, row in enumerate(rows) if not number or row[1] != "0"]
    if account.unfinished:
        rows.append(["  left", f"{account.unfinished:,}", "", "interrupted before them"])
    lines = render_table(["", "objects", "size", ""], rows, style, right=(1, 2))
    for path, reason in account.failures[:_SHOWN_FAILURES]:
        lines.append(style.paint(style.cut(f"failed: {path}: {reason}", style.width), 33))
    if account.failed.objects > _SHOWN_FAILURES:
        lines.append(
            f"and {format_count(account.failed.objects - _SHOWN_FAILURES, 'more failure')} (`--json` lists them)"
        )
    return [*lines, "", *_verdict(account, style, where, replicas)]


def _row(label: str, tally: Tally, text: str) -> list[str]:
    return [label, f"{tally.objects:,}", format_bytes(tally.num_bytes), text]


def _verdict(account: Account, style: Style, where: str, replicas: int) -> list[str]:
    """What follows, and the next command."""
    if account.is_complete and replicas:
        return [style.paint(f"Every page is on {format_count(replicas, 'worker')}.", 32)]
    if account.is_complete:
        return [style.paint("Everything is in the cache.", 32) + f" Next: stoker cache status{where}"]
    if not account.is_listed:
        return ["Interrupted while it listed what to fetch."]
    if account.unfinished:
        return ["Interrupted. Run the same command again to resume: what is cached is not fetched again."]
    if account.refused.objects or account.evicted.objects:
        return [
            style.paint("Not everything fits.", 33)
            + " stoker cache status says why. Make room (stoker cache evict URL), or make a larger one (--dir, --size)"
        ]
    if account.uncached.objects:
        return [
            style.paint("Not everything is cached.", 33)
            + " Rules exclude some paths: stoker cache explain URL shows which"
        ]
    return [style.paint("Not everything could be read.", 33) + " Run the same command again to retry what failed"]


def _as_json(account: Account, lasted_s: float) -> dict[str, object]:
    names = ("planned", "present", "fetched", "refused", "uncached", "failed", "evicted")
    tallies = {name: asdict(getattr(account, name)) for name in names}
    failures = [{"path": path, "reason": reason} for path, reason in account.failures]
    return {
        **tallies,
        "unfinished": account.unfinished,
        "complete": account.is_complete,
        "lasted_s": lasted_s,
        "failures": failures,
    }
