"""`stoker cache bench URL`: reads an object from its store and from the cache, in alternation."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker.cache.filesystem.resolve_url import open_place
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cli.arguments import whole
from stoker.cli.cache.arguments import checked, parser, print_json, settings_of, show, size_of, stdout_style
from stoker.core.errors import ConfigError
from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.ui.figures import write_rate
from stoker.ui.tables import render_table

_SMALL_BYTES = 4096
_SMALL_READS = 20
_EPILOG = """\
Each figure is the median of the rounds, the store and the cache in alternation; in brackets, the slowest and the
fastest round. The cache's reads are hits: what is missing is fetched before the first round."""


class Compared(NamedTuple):
    """Seconds of one kind of read, by round.

    Attributes:
        what: is read.
        num_bytes: of one read.
        store_s: from the store.
        cache_s: from the cache.
    """

    what: str
    num_bytes: int
    store_s: list[float]
    cache_s: list[float]

    @property
    def ratio(self) -> float:
        """How many times as fast the cache is."""
        return statistics.median(self.store_s) / statistics.median(self.cache_s)


def main(argv: list[str]) -> int:
    """Compares.

    Raises:
        ConfigError: the object is no object, or its rule does not cache it.
    """
    made = parser("bench", "Reads an object from its store and from the cache in turn.", _EPILOG)
    made.add_argument("url", type=checked, metavar="URL", help="of an object")
    made.add_argument("--rounds", type=whole(1), default=5, metavar="N", help="default: 5")
    made.add_argument("--most", default="64MiB", metavar="SIZE", help="read at most this much of it (default: 64MiB)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = made.parse_args(argv)
    filesystem, path = open_place(arguments.url, settings_of(arguments))
    found = _compare(filesystem, path, arguments.url, size_of("--most", arguments.most, least=1), arguments.rounds)
    if arguments.json:
        print_json({"url": arguments.url, "reads": [{**each._asdict(), "ratio": each.ratio} for each in found]})
        return 0
    rows = [
        [each.what, _write(each, each.store_s), _write(each, each.cache_s), f"{write_rate(each.ratio)}x"]
        for each in found
    ]
    note = f"Medians of {format_count(arguments.rounds, 'round')}; in brackets the slowest and the fastest."
    show([*render_table(["", "store", "cache", "ratio"], rows, stdout_style(), right=(1, 2, 3)), "", note])
    return 0


def _compare(filesystem: StokerFileSystem, path: str, url: str, most: int, rounds: int) -> list[Compared]:
    _, rule = filesystem.reader.rules.of(path)
    if not rule.cached:
        raise ConfigError(f"`{url}` must be cached to be compared, and its rule excludes it; see --cache-rules")
    try:
        size = min(most, int(filesystem.info(path)["size"] or 0))
    except FileNotFoundError:
        raise ConfigError(f"`{url}` must be an object, and nothing is there") from None
    if not size:
        raise ConfigError(f"`{url}` must be an object with bytes, got an empty one or a folder")
    source, version = filesystem.reader.holder.get(), filesystem.reader.snapshot(path).version

    def from_store(start: int, end: int) -> float:
        # One request, as any client of the store makes it.
        return _timed(lambda: source.read(path, start, end, version))

    filesystem.cat_file(path, 0, size)
    places = [random.randrange(max(1, size - _SMALL_BYTES)) for _ in range(_SMALL_READS)]
    whole = Compared(f"first {format_bytes(size)}", size, [], [])
    small = Compared("4 KiB anywhere", min(size, _SMALL_BYTES), [], [])
    for number in range(rounds):
        whole.store_s.append(from_store(0, size))
        whole.cache_s.append(_timed(lambda: filesystem.cat_file(path, 0, size)))
        start = places[number % len(places)]
        small.store_s.append(from_store(start, min(size, start + _SMALL_BYTES)))
        reads = [_timed(lambda at=at: filesystem.cat_file(path, at, at + _SMALL_BYTES)) for at in places]
        small.cache_s.append(statistics.median(reads))
    return [whole, small]


def _timed(read: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    read()
    return max(1e-9, time.perf_counter() - began_s)


def _write(each: Compared, seconds: list[float]) -> str:
    if each.num_bytes <= _SMALL_BYTES:
        median_s, slowest_s, fastest_s = statistics.median(seconds), max(seconds), min(seconds)
        return f"{format_seconds(median_s)} ({format_seconds(slowest_s)} to {format_seconds(fastest_s)})"
    rates = [each.num_bytes / second for second in seconds]
    median, low, high = statistics.median(rates), min(rates), max(rates)
    return f"{format_bytes(median)}/s ({format_bytes(low)} to {format_bytes(high)})"
