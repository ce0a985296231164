"""What can be rented: servers with their GPUs and their price. Prices are the user's own, from a TOML file."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stoker.core.errors import ConfigError
from stoker.perf.catalogue import Gpu, catalogue, gpus_of

GPU_HOURS = "GPU-hours"
"""The currency of plans without prices."""
GBPS = 1e9 / 8
_DEFAULT_GPUS = 8
_DEFAULT_GBPS = 100.0
_MOST = 1e9
"""Largest figure of an offer; a larger one is a typing error, or overflows a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kind of server that can be rented for a price.

    Attributes:
        gpus: of a server; the whole server is paid for, unless GPUs are paid ``by_gpu``.
        per_hour: price of a server, or of a GPU, in the currency of its list.
        cores: CPU cores (or hardware threads, as the seller counts) of a server; None if not known.
        network: bytes/s of a server's links to the others, one direction.
        max_servers: most that can be rented and connected at once; None for no limit.
        source: where the price is from.
    """

    name: str
    gpu: Gpu
    gpus: int = _DEFAULT_GPUS
    per_hour: float
    by_gpu: bool = False
    cores: float | None = None
    network: float = _DEFAULT_GBPS * GBPS
    max_servers: int | None = None
    source: str = ""

    def servers(self, gpus: int) -> int:
        """Servers that a job with so many GPUs takes."""
        return -(-gpus // self.gpus)

    def counts(self, most: int) -> list[int]:
        """GPUs that a job may take: part of a server by powers of two, then whole servers: 1, 2, 3, 4, 6, 8, 12, ..."""
        parts = [2**power for power in range(self.gpus.bit_length()) if 2**power < self.gpus]
        servers = [size for power in range(most.bit_length()) for size in {2**power, 3 * 2**power // 2}]
        full = [self.gpus * size for size in servers if self.max_servers is None or size <= self.max_servers]
        return sorted({count for count in (*parts, *full) if count <= most})


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """A list of offers in one currency.

    Attributes:
        currency: as shown.
        date: of the prices, from the list; empty without one.
        source: the list's name.
    """

    offers: tuple[Offer, ...]
    currency: str
    date: str = ""
    source: str = ""

    @property
    def is_money(self) -> bool:
        """Whether there are prices at all."""
        return self.currency != GPU_HOURS


def without_prices(gpus: Mapping[str, Gpu] | None = None) -> PriceList:
    """All known GPUs in servers of eight, at one GPU-hour per GPU and hour."""
    known = (catalogue() if gpus is None else gpus).values()
    offers = tuple(Offer(name=gpu.name, gpu=gpu, per_hour=1.0, by_gpu=True) for gpu in known)
    return PriceList(offers=offers, currency=GPU_HOURS)


def only(prices: PriceList, names: Iterable[str]) -> PriceList:
    """The offers of some GPUs.

    Raises:
        ValueError: no offer has one of them.
    """
    wanted = tuple(names)
    offered = dict.fromkeys(offer.gpu.name for offer in prices.offers)
    for name in wanted:
        if name not in offered:
            raise ValueError(f"`--gpu` must be one of {', '.join(offered)}, got {name!r}")
    offers = tuple(offer for offer in prices.offers if offer.gpu.name in wanted)
    return PriceList(offers=offers, currency=prices.currency, date=prices.date, source=prices.source)


def read_gpus(path: Path) -> dict[str, Gpu]:
    """The catalogue with a user's own GPUs, in the form of ``catalogue.toml``.

    Raises:
        ConfigError: the file cannot be read, or an entry lacks a figure.
    """
    try:
        return {**catalogue(), **gpus_of(_table_of(path))}
    except ValueError as error:
        raise ConfigError(f"{error} ({path})") from None


def read_prices(path: Path, gpus: Mapping[str, Gpu] | None = None) -> PriceList:
    """Offers of a price list.

    Args:
        path: a TOML file with ``currency``, ``date``, ``source`` and an ``[[offer]]`` for each kind of server.
        gpus: that the list may name; the catalogue's by default.

    Raises:
        ConfigError: the file cannot be read, or a value breaks its rule; names the offer and the key.
    """
    content, known = _table_of(path), catalogue() if gpus is None else gpus
    try:
        return prices_of(content, path.name, known)
    except ValueError as error:
        raise ConfigError(f"{error} ({path})") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file that can be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` must be TOML in UTF-8: {error.reason} at byte {error.start}") from None


def _table_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"`{path}` must be TOML: {error}; docs/guide/plan.md has an example") from None


def prices_of(content: Mapping[str, Any], name: str, gpus: Mapping[str, Gpu]) -> PriceList:
    """Like :func:`read_prices`, for the list's content.

    Raises:
        ValueError: a value breaks its rule.
    """
    _check_keys(content, ("currency", "date", "source", "offer"), "the list")
    rows = content.get("offer", [])
    if not isinstance(rows, list) or not rows:
        found = "none" if "offer" not in content else repr(cast("object", rows))[:60]
        raise ValueError(f"`offer` of the list must be one [[offer]] or more, got {found}")
    tables = cast("list[object]", rows)
    source = _word(content, "source", "the list", name)
    offers = tuple(_offer(number, row, gpus, source) for number, row in enumerate(tables, start=1))
    date = content.get("date", "")
    if not isinstance(date, str | datetime.date):
        raise ValueError(f"`date` of the list must be a date, got {date!r}")
    return PriceList(
        offers=offers, currency=_word(content, "currency", "the list", "USD"), date=str(date), source=source
    )


_KEYS = ("name", "gpu", "gpus", "per_hour", "cores", "network_gbps", "max_servers", "source")


def _offer(number: int, row: object, gpus: Mapping[str, Gpu], source: str) -> Offer:
    where = f"offer {number}"
    if not isinstance(row, dict):
        raise ValueError(f"{where} must be a table with `gpu` and `per_hour`, got {row!r}")
    found = cast("dict[str, Any]", row)
    where += f" ({found['name']})" if isinstance(found.get("name"), str) else ""
    _check_keys(found, _KEYS, where)
    for key in ("gpu", "per_hour"):
        if key not in found:
            raise ValueError(f"`{key}` of {where} is missing")
    gpu = _word(found, "gpu", where)
    if gpu not in gpus:
        raise ValueError(
            f"`gpu` of {where} must be one of {', '.join(gpus)}, got {gpu!r}; "
            f"another is added with --gpus FILE: a table [{gpu}] with its data sheet's figures (docs/guide/plan.md)"
        )
    cores = _positive(found, "cores", where)
    servers = _whole(found, "max_servers", where)
    size = _whole(found, "gpus", where) or _DEFAULT_GPUS
    network = _positive(found, "network_gbps", where) or _DEFAULT_GBPS
    price = _positive(found, "per_hour", where)
    assert price is not None
    return Offer(
        name=_word(found, "name", where, f"{size}x {gpu}"), gpu=gpus[gpu], gpus=size, per_hour=price, cores=cores,
        network=network * GBPS, max_servers=servers, source=_word(found, "source", where, source),
    )  # fmt: skip


def _check_keys(found: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in found if key not in known), None)
    if unknown is not None:
        raise ValueError(f"`{unknown}` of {where} must be one of {', '.join(known)}")


def _word(found: Mapping[str, object], key: str, where: str, default: str = "") -> str:
    value = found.get(key, default)
    if not isinstance(value, str) or (not value and not default and key == "gpu"):
        raise ValueError(f"`{key}` of {where} must be a text, got {value!r}")
    return value


def _positive(found: Mapping[str, object], key: str, where: str) -> float | None:
    if key not in found:
        return None
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise ValueError(f"`{key}` of {where} must be a positive number of at most {_MOST:g}, got {repr(value)[:60]}")
    return float(value)


def _whole(found: Mapping[str, object], key: str, where: str) -> int | None:
    value = _positive(found, key, where)
    if value is not None and value != int(value):
        raise ValueError(f"`{key}` of {where} must be a whole number, got {found[key]!r}")
    return None if value is None else int(value)
