"""Bytes, seconds, hours and money as people write and read them; inside stoker they are plain numbers."""

from __future__ import annotations

import math
import re

_BYTE_UNITS = {
    **{"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
_SECOND_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(text: str) -> int:
    """Number of bytes in ``"2GiB"``, ``"500 MB"`` or ``"4096"``; fractions of a byte are dropped.

    Raises:
        ValueError: No such quantity. A bare ``K``, ``M`` or ``G`` is refused: it means two things.
    """
    number, unit = _split(text, "a size such as `2GiB` or `500MB`")
    if unit in ("k", "m", "g", "t"):
        capital = unit.upper()
        raise ValueError(f"`{text}` is ambiguous: write `{capital}iB` (powers of 1024) or `{capital}B` (of 1000)")
    if unit and unit not in _BYTE_UNITS:
        raise ValueError(f"`{text}` has an unknown unit: use B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    # Whole numbers stay exact beyond 2**53.
    return int(number) * _BYTE_UNITS[unit or "b"] if number.isdigit() else int(float(number) * _BYTE_UNITS[unit or "b"])


def format_bytes(num_bytes: float) -> str:
    """A size with three significant digits and a unit of 1024: ``"1.50 GiB"``, ``"512 B"``."""
    if abs(num_bytes) < 1000:
        return f"{num_bytes:.0f} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        # 999.5 of a unit would print as 1000: the next unit keeps three digits.
        if abs(size) < 999.5 or unit == "TiB":
            return f"{_three_digits(size)} {unit}"
    raise AssertionError("unreachable")


def format_count(count: int, noun: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def parse_seconds(text: str) -> float:
    """Number of seconds in ``"60"``, ``"1.5s"``, ``"200ms"``, ``"2min"``, ``"1h"`` or ``"3d"``.

    Raises:
        ValueError: No such quantity.
    """
    number, unit = _split(text, "a time such as `60`, `1.5s`, `200ms` or `2min`")
    if unit and unit not in _SECOND_UNITS:
        raise ValueError(f"`{text}` has an unknown unit: use us, ms, s, min, h or d")
    return float(number) * _SECOND_UNITS[unit or "s"]


def format_seconds(seconds: float) -> str:
    """A duration, three significant digits below a minute: ``"2.10 ms"``, ``"3 min 20 s"``, ``"2 h 05 min"``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{_three_digits(seconds * 1e6)} us"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    if seconds < 3599.5:
        minutes, rest_s = divmod(round(seconds), 60)
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def _three_digits(value: float) -> str:
    """The value with three significant digits, all of them shown, never in powers of ten."""
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"


def _split(text: str, expected: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is not {expected}")
    return match[1], match[2].lower()


def format_hours(hours: float) -> str:
    """A duration as precise as predictions are: ``42 s``, ``3.4 h``, ``12 days``, ``3.1 years``."""
    if hours < 1 / 60:
        return f"{hours * 3600:.3g} s"
    if hours < 1:
        return f"{hours * 60:.1f} min" if hours < 1 / 6 else f"{hours * 60:.0f} min"
    if hours < 72:
        return f"{hours:.1f}".removesuffix(".0") + " h" if hours < 20 else f"{hours:.0f} h"
    days = hours / 24
    if days < 730:
        return f"{days:.1f} days" if days < 20 else f"{days:,.0f} days"
    return f"{days / 365.25:,.1f} years"


def format_cost(amount: float, currency: str) -> str:
    """An amount of money, or of GPU-hours: ``$3.20``, ``$480``, ``1,200 CHF``."""
    digits = f"{amount:,.2f}" if amount < 10 else f"{amount:,.0f}"
    sign = _SIGNS.get(currency)
    return f"{sign}{digits}" if sign else f"{digits} {currency}"
