"""`stoker cache status`: the cache's size, hit ratio and current rates."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import NamedTuple

from stoker.cache.inspection import url_of_name
from stoker.cache.names import PAGE_BYTES
from stoker.cache.protocols import Reads
from stoker.cache.store.maintenance import StoreStats
from stoker.cache.store.page_store import PageStore
from stoker.cli.cache.arguments import (
    add_cluster,
    directory_of,
    joined,
    open_existing,
    parser,
    print_json,
    settings_of,
    show,
    stdout_style,
)
from stoker.cli.cache.ring import show_ring
from stoker.core.progress import draw_bar
from stoker.core.units import format_bytes, format_count, parse_seconds
from stoker.ui.figures import write_count, write_percent, write_rate
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts

_LEAST_OVER_S, _MOST_OVER_S = 0.001, 3600.0


class CacheRates(NamedTuple):
    """Rates during the measurement.

    Attributes:
        hits: reads of pages.
        puts: pages stored.
        evicted: pages that went.
    """

    hits: float
    puts: float
    evicted: float


def main(argv: list[str]) -> int:
    """Shows the state of the cache."""
    description = "Shows the cache's size, its hit ratio and its current rates."
    made = parser("status", description, several=True)
    made.add_argument(
        "--over", type=_over_s, default="500ms", metavar="TIME", help="how long to measure rates (default: 500ms)"
    )
    add_cluster(made, "show the workers of a cluster instead")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    paths: list[str | None] = arguments.dir or [None]
    all_settings = [settings_of(argparse.Namespace(dir=path)) for path in paths]
    if arguments.join:
        return show_ring(joined(arguments, all_settings[0]), as_json=arguments.json)
    opened = [(str(directory_of(settings)), open_existing(settings)) for settings in all_settings]
    over_s = arguments.over / len(opened)
    found = [(*_measure(pages, over_s), [url_of_name(name) for name in pages.pinned()], path) for path, pages in opened]
    if arguments.json:
        told = [_as_json(*each) for each in found]
        print_json(told[0] if len(told) == 1 else {"directories": told})
        return 0
    for number, each in enumerate(found):
        show([*([""] if number else []), *render_status(*each, stdout_style())])
    return 0


def _over_s(text: str) -> float:
    try:
        found_s = parse_seconds(text)
    except ValueError:
        found_s = 0.0
    if not _LEAST_OVER_S <= found_s <= _MOST_OVER_S:
        raise argparse.ArgumentTypeError(f"must be a time from `1ms` to `1h`, such as `500ms`, got {text!r}")
    return found_s


def _measure(pages: PageStore, over_s: float) -> tuple[StoreStats, CacheRates]:
    before, began_s = pages.stats(), time.monotonic()
    time.sleep(over_s)
    stats, lasted_s = pages.stats(), time.monotonic() - began_s
    rates = CacheRates(
        (stats.hits - before.hits) / lasted_s,
        (stats.puts - before.puts) / lasted_s,
        (stats.evicted.pages - before.evicted.pages) / lasted_s,
    )
    return stats, rates


def hit_frac(stats: StoreStats) -> float | None:
    """Hit ratio; None before the first read."""
    return Reads(stats.hits, stats.puts + stats.refused).hit_frac


def render_status(stats: StoreStats, rates: CacheRates, pins: list[str], directory: str, style: Style) -> list[str]:
    """The state as lines.

    Args:
        stats: of the store.
        rates: at the moment.
        pins: pinned URLs.
        directory: of the cache.
        style: what the terminal shows.
    """
    full = stats.used_bytes / stats.limit_bytes
    bar = style.paint(draw_bar(full, 30, unicode=style.unicode), 33 if full > 0.95 else 32)
    edges = ("▕", "▏") if style.unicode else ("[", "]")
    fill = f"{format_bytes(stats.used_bytes)} of {format_bytes(stats.limit_bytes)} ({write_percent(full)})"
    files = f"{format_count(stats.segments, 'segment')}, {format_count(stats.large, 'file')} of large objects"
    ratio = hit_frac(stats)
    worth = "nothing was read yet"
    if ratio is not None:
        worth = f"{write_percent(ratio)} of reads were hits ({write_count(stats.hits)} since it was created)"
    evicted = f"{format_count(stats.evicted.pages, 'page')}, {format_bytes(stats.evicted.num_bytes)}"
    facts = [
        ("Content", f"{format_count(stats.live.pages, 'page')}, {format_bytes(stats.live.num_bytes)}, in {files}"),
        ("Hits", worth),
        ("Now", _write_rates(rates)),
    ]
    if stats.pinned.pages or pins:
        listed = ", ".join(pins[:4]) + (f" and {len(pins) - 4} more" if len(pins) > 4 else "")
        facts.append(("Pinned", f"{format_bytes(stats.pinned.num_bytes)} below {listed}"))
    if stats.evicted.pages:
        facts.append(("Evicted", f"{evicted}, since it was created"))
    if stats.refused:
        facts.append(
            ("Refused", f"{format_count(stats.refused, 'page')}: what was cached was in use, or the disk was full")
        )
    if stats.doomed_bytes:
        facts.append(
            ("Leaving", f"{format_bytes(stats.doomed_bytes)} of evicted files that processes still have mapped")
        )
    if stats.damaged:
        facts.append(("Damaged", f"{format_count(stats.damaged, 'page')} failed their checksum and were evicted"))
    lines = [
        style.paint(f"Cache in {directory}", 1),
        "",
        f"{style.paint('Fill   ', 1)}  {edges[0]}{bar}{edges[1]}  {fill}",
    ]
    lines += render_facts(facts, style)
    if stats.disk_spare_bytes < PAGE_BYTES:
        lines += [
            "",
            "Its disk is full, so it takes nothing new. Next: free some space, or stoker cache evict URL",
        ]
    elif full > 0.95 and stats.refused:
        lines += [
            "",
            "It is full and all of it is in use: it takes nothing new. Next: a larger one, or stoker cache evict URL",
        ]
    return lines


def _write_rates(rates: CacheRates) -> str:
    if not any(rates):
        return "idle"
    found = (f"{write_rate(rates.hits)} hits/s", f"{write_rate(rates.puts)} pages stored/s")
    return ", ".join([*found, f"{write_rate(rates.evicted)} evicted/s"])


def _as_json(stats: StoreStats, rates: CacheRates, pins: list[str], directory: str) -> dict[str, object]:
    content = asdict(stats)
    for name in ("live", "pinned", "evicted"):
        content[name] = getattr(stats, name)._asdict()
    return {
        "directory": directory,
        **content,
        "hit_ratio": hit_frac(stats),
        "per_s": rates._asdict(),
        "pins": pins,
    }
