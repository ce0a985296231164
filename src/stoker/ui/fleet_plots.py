"""The drawings of a fleet's page: stacked bars, distributions, columns of gains, bars of savings, a shaded table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from stoker.records.fleet import Curve, Port, Sensitivity, Upgrade
from stoker.ui.figures import write_percent
from stoker.ui.fleet_words import ALL, write_gain
from stoker.ui.html_page import BarPart, Figure, draw_bar
from stoker.ui.svg import Plot

COLOURS = {
    "input": "c0",
    "compute": "c1",
    "computation": "c1",
    "memory": "c2",
    "pcie": "c3",
    "nvlink": "c4",
    "ethernet": "c5",
    "communication": "c5",
}
"""Class of each part and resource."""
_CLASSES = ("c1", "c3", "c5", "c0", "c4", "c2")
"""Classes of lines, by place of the class of jobs."""


def _class_colour(names: Sequence[str], name: str) -> str:
    """Class of the line of a class of jobs."""
    return "call" if name == ALL else _CLASSES[list(names).index(name) % len(_CLASSES)]


def draw_stack(parts: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Shares as one bar."""
    return draw_bar(
        BarPart(
            COLOURS.get(name, "even"), frac, f"{labels.get(name, name)} {write_percent(frac)}", f"{100 * frac:.0f} %"
        )
        for name, frac in parts.items()
    )


def curve_legend(curves: Sequence[Curve]) -> list[tuple[str, str]]:
    """Colour and name of each class that :func:`draw_curves` draws."""
    names = _class_names(curves)
    return [(_class_colour(names, name), name) for name in (*names, ALL)]


def _class_names(curves: Sequence[Curve]) -> list[str]:
    return [name for name in dict.fromkeys(curve.group for curve in curves) if name != ALL]


def draw_curves(curves: Sequence[Curve], labels: Mapping[str, str]) -> list[Figure]:
    """A figure for each part: its share of the time, and how many of a class's jobs have at most that."""
    parts = list(dict.fromkeys(curve.part for curve in curves))
    names = _class_names(curves)
    return [_curves_of(part, [each for each in curves if each.part == part], names, labels) for part in parts]


def _curves_of(part: str, curves: Sequence[Curve], names: Sequence[str], labels: Mapping[str, str]) -> Figure:
    title = labels.get(part, part)
    plot = Plot(
        title=f"Jobs that spend at most so much of their time on {title}, by class",
        begin_s=0.0,
        end_s=100.0,
        ticks=[0, 0.25, 0.5, 0.75, 1.0],
        write_value=lambda value: f"{100 * value:.0f}",
        write_time=lambda percent: f"{percent:.0f} %",
        places=(0, 20, 40, 60, 80, 100),
    )
    for curve in curves:
        points = [(float(percent), frac) for percent, frac in enumerate(curve.jobs_frac)]
        plot.line([(0.0, 0.0), *points], _class_colour(names, curve.group))
    for percent in range(0, 100, 4):
        words = ", ".join(f"{curve.group} {100 * curve.jobs_frac[percent]:.0f} %" for curve in curves)
        plot.explain(percent - 2, percent + 2, f"jobs with at most {percent} % of their time in {title}: {words}")
    return Figure(title=title[:1].upper() + title[1:], unit="% of jobs", legend=[], drawing=plot.render())


def draw_columns(port: Port) -> str:
    """How many jobs have which gain."""
    top = max(frac for _, frac in port.bins) or 1.0
    columns = "".join(_column(name, frac, top) for name, frac in port.bins)
    ticks = "".join(f"<span>{escape(name.replace('-', '–'))}</span>" for name, _ in port.bins)
    return f'<div class="columns">{columns}</div><div class="ticks">{ticks}</div>'


def _column(name: str, frac: float, top: float) -> str:
    if not frac:
        return "<div></div>"
    figure = f"{100 * frac:.0f} %" if frac >= 0.005 else ""
    bar = f'<b class="{_kind(name)}" style="height:{78 * frac / top:.1f}%"></b>'
    return f'<div title="{write_percent(frac)} of the jobs: {escape(name)} times as fast">{figure}{bar}</div>'


def _kind(name: str) -> str:
    return "bad" if name.startswith("<") or name.endswith("-0.9") or name.endswith("-1") else "good"


def draw_upgrades(upgrades: Sequence[Upgrade], groups: Sequence[str]) -> str:
    """GPU time that each upgrade saves, as bars from a common zero, next to the mean speed-ups."""
    low = min(0.0, *(each.gpu_time_saved_frac for each in upgrades))
    high = max(0.0, *(each.gpu_time_saved_frac for each in upgrades))
    span = (high - low) or 1.0
    zero = 100 * -low / span
    head = "".join(f'<span class="head n">{escape(name)}</span>' for name in ("saved", ALL, *groups))
    rows = "".join(_upgrade_row(each, groups, zero, span) for each in upgrades)
    return (
        f'<div class="tracks" style="--zero:{zero:.2f}%;--extra:{len(groups) + 2}"><span class="head">resource</span>'
        f'<span class="head">now → then</span><span class="head">GPU time saved</span>{head}{rows}</div>'
    )


def _upgrade_row(upgrade: Upgrade, groups: Sequence[str], zero: float, span: float) -> str:
    saved = upgrade.gpu_time_saved_frac
    width = 100 * abs(saved) / span
    left = zero - width if saved < 0 else zero
    gains = "".join(f'<span class="n side">{write_gain(upgrade.speedup[name])}</span>' for name in (ALL, *groups))
    mark = f' <span class="unverified">{escape(upgrade.mark.strip(" ()"))}</span>' if upgrade.mark else ""
    kind = "bad" if saved < 0 else "good"
    figure = f"{100 * saved:.1f} %".replace("-", "−")
    return (
        f'<span class="what">{escape(upgrade.resource)}</span>'
        f'<span class="step">{escape(upgrade.before)} → {escape(upgrade.after)}{mark}</span>'
        f'<span class="track"><b class="{kind}" style="left:{left:.2f}%;width:{width:.2f}%"></b></span>'
        f'<span class="n">{figure}</span>{gains}'
    )


def draw_sensitivities(sensitivities: Sequence[Sensitivity], names: Sequence[str]) -> str:
    """Mean speed-ups by class and resource; the darker, the more telling."""
    top = max(gain for each in sensitivities for _, gain in each.speedup) - 1 or 1.0
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    rows = "".join(
        f"<tr><td>{escape(each.group)}</td>{_cells(dict(each.speedup), names, each.speedup[0][0], top)}</tr>"
        for each in sensitivities
    )
    return f'<table class="heat"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(gains: Mapping[str, float], names: Sequence[str], first: str, top: float) -> str:
    return "".join(
        f'<td class="n{" first" if name == first else ""}" style="--p:{65 * (gains[name] - 1) / top:.0f}%">'
        f"{write_gain(gains[name]) if gains[name] > 1.0005 else '–'}</td>"
        for name in names
    )
