"""What the pages about memory add to those of fleets: layers of a picture, its peak, the limit."""

MOST_DRAWN = 8
"""Remedies that can be drawn over a picture."""
_DASHES = ("none", "9 4", "2 3", "12 3 3 3")
"""Strokes of the remedies, so that two of them can be told apart."""
_REMEDIES = "\n".join(
    f"#remedy{place}:checked ~ .canvas .r{place} {{ display: inline; }}"
    f"\n.canvas .r{place}:not(.halo) {{ stroke-dasharray: {_DASHES[place % len(_DASHES)]}; }}"
    for place in range(MOST_DRAWN)
)

MEMORY_STYLE = (
    """
:root { --c6: #b8860b; --c7: #d3578f; }
@media (prefers-color-scheme: dark) { :root { --c6: #e0b84a; --c7: #f08fbb; } }
.c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
i.c6, i.c7, i.even { background: var(--c); }
.canvas.tall { height: 380px; margin: 18px 10px 34px 54px; }
.canvas.tall .area { fill: var(--c); opacity: .86; }
.line.edge { stroke: var(--card); stroke-width: 1.5; opacity: .75; }
.line.reserve { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }
.line.device { stroke: var(--bad); stroke-width: 2; }
.legend i.reserve, .legend i.device { width: 14px; height: 0; background: none; border-radius: 0;
  border-top: 2px dashed var(--ink); vertical-align: middle; }
.legend i.device { border-top: 2px solid var(--bad); }
.line.remedy { display: none; stroke: var(--ink); stroke-width: 2; }
.line.remedy.halo { stroke: var(--card); stroke-width: 5; opacity: .8; }
.line.remedy.taken:not(.halo) { stroke: var(--good); stroke-width: 2; }
.line.remedy.taken.halo { display: none !important; }
.tick { margin: 0 16px 0 5px; font-size: 13px; cursor: pointer; }
.note circle { fill: var(--card); stroke: var(--ink); stroke-width: 2.5; }
.note text { fill: var(--ink); font-weight: 600; font-size: 13px; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; pointer-events: none; }
svg text.x { font-size: 13px; }
.verdict.fails { border-left-color: var(--bad); } .verdict.fits { border-left-color: var(--good); }
.two { display: grid; gap: 14px; grid-template-columns: repeat(2, minmax(0, 1fr)); align-items: start; }
.two h3 { margin-bottom: 8px; }
.two th.n, .two td.n { width: 1%; } .two td { padding-top: 6px; padding-bottom: 6px; overflow-wrap: anywhere; }
@media (max-width: 800px) { .two { grid-template-columns: minmax(0, 1fr); } .canvas.tall { height: 300px; } }
"""
    + _REMEDIES
)
"""The style sheet."""
