"""An explanation as text: each loader, how it is (or would be) served, and why."""

from __future__ import annotations

import shlex
import textwrap

from stoker.core.units import format_count
from stoker.records.events import LoaderOpened
from stoker.records.explanation import Explanation
from stoker.ui.blocks import wrap
from stoker.ui.report_text import Style

MEANINGS = {
    "elastic": "any number of data workers, as many as pay",
    "pinned": "as many data workers as declared, each with torch's own share and seeds",
    "process": "in the training process, as torch does without workers",
    "stock": "left to torch",
}
"""What a tier is, by its name in the records."""
_COLOURS = {"elastic": 32, "pinned": 33, "process": 33, "stock": 90}


def render_explanation(found: Explanation, style: Style | None = None) -> str:
    """The text, lines joined by newlines, the last one ended by one."""
    style = style or Style()
    blocks = [_heading(found, style)]
    blocks += [_loader(loader, found, style) for loader in found.loaders]
    blocks.append([line for text in (*found.exchanges, *found.fits) for line in wrap(text, style, indent="  ")])
    blocks.append(_closing(found, style))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _heading(found: Explanation, style: Style) -> list[str]:
    count = format_count(len(found.loaders), "loader")
    program = shlex.join(found.program)
    if not found.at:
        rank = f", rank {found.rank} of {found.world_size}" if found.world_size > 1 else ""
        return [style.clean(f"{program}: {count} used{rank}")]
    return [style.clean(f"{program}: {count} when the program first iterates over one, at {found.at}")]


def _loader(loader: LoaderOpened, found: Explanation, style: Style) -> list[str]:
    name = f"loader {loader.loader}" if not found.at else "loader"
    first = "  (iterated first)" if loader.loader == found.first else ""
    lines = [style.clean(f"{name} made at {loader.site}: {_shape(loader)}{first}")]
    tier = f"  {loader.tier}".ljust(11)
    lines.append(style.paint(tier, _COLOURS.get(loader.tier, 0)) + style.clean(MEANINGS.get(loader.tier, "")))
    lines += _wrapped(f"why:  {loader.reason}", style)
    for finding in loader.evidence:
        lines += _wrapped(f"also: {finding}", style)
    if loader.loader in found.cuts:
        lines += _wrapped(f"cut:  {found.cuts[loader.loader]}", style)
    return lines


def _shape(loader: LoaderOpened) -> str:
    length = "" if loader.length is None else format_count(loader.length, "batch", "batches")
    size = "" if loader.batch_size is None else f"of {loader.batch_size}"
    batches = " ".join(part for part in (length or ("batches" if size else ""), size) if part)
    workers = f"{format_count(loader.declared_workers, 'worker')} declared"
    return ", ".join(part for part in (loader.dataset, batches, workers) if part)


def _wrapped(text: str, style: Style) -> list[str]:
    # Paths and code stay whole, to be clicked and copied.
    return textwrap.wrap(
        style.clean(text),
        max(40, style.width),
        initial_indent=" " * 11,
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _closing(found: Explanation, style: Style) -> list[str]:
    if not found.at:
        return [] if found.loaders else ["The run has no record of a loader: none was iterated over."]
    text = (
        "The program was ended there. Loaders that it makes later are not seen; `stoker explain RUN` has them "
        "after `stoker run`."
    )
    return textwrap.wrap(text, style.width)
