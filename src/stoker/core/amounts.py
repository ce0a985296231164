"""Hours and amounts of money as people write them; inside stoker they are plain numbers."""

from __future__ import annotations

_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


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
