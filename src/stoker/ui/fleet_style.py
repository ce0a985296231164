"""What the pages of fleets and plans add to the style of all pages: colours of parts, bars, columns, shaded cells."""

FLEET_STYLE = """
:root { --c0: #d97a06; --c1: #12857a; --c2: #63bd9a; --c3: #8a63d2; --c4: #63aee8; --c5: #2f5fc4; }
@media (prefers-color-scheme: dark) {
  :root { --c0: #f0a43a; --c1: #2fa898; --c2: #90dcb8; --c3: #b497f0; --c4: #93cdf7; --c5: #6b93f0; }
}
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .call { --c: var(--ink); }
.good { --c: var(--good); } .bad { --c: var(--s0); } .even { --c: var(--s3); }
i.c0, i.c1, i.c2, i.c3, i.c4, i.c5, i.good, i.bad { background: var(--c); }
.bar span, .columns b, .track b { background: var(--c); }
.bar span.c2, .bar span.c4 { color: #10231b; }
.line { stroke: var(--c); } .line.call { stroke-width: 1.5; stroke-dasharray: 5 4; }
.legend i.call { width: 14px; height: 0; background: none; border-top: 2px dashed var(--ink); border-radius: 0;
  vertical-align: middle; }
.banner { border-left: 4px solid var(--s0); margin-bottom: 14px; font-weight: 600; }
.verdict.plain { grid-template-columns: minmax(0, 1fr); }
.verdict ul { margin: 0; padding-left: 18px; }
.level { margin: 0 0 10px; } .bars + .level { margin-top: 20px; }
.bars .name { font-size: 13px; color: var(--soft); white-space: nowrap; }
.bars .name b { color: var(--ink); font-weight: 500; }
.card > .legend { margin-bottom: 14px; } figure .legend { margin-top: 4px; }
.pair { display: grid; gap: 14px 32px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
.columns { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: 4px; height: 150px;
  margin-top: 14px; align-items: end; border-bottom: 1px solid var(--soft); }
.columns div { display: flex; flex-direction: column; justify-content: flex-end; height: 100%; text-align: center;
  font-size: 11px; color: var(--soft); font-variant-numeric: tabular-nums; }
.columns b { display: block; border-radius: 3px 3px 0 0; min-height: 1px; }
.ticks { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: 4px; margin-bottom: 12px;
  font-size: 11px; color: var(--soft); text-align: center; white-space: nowrap; }
dl.figures { margin-top: 8px; gap: 0 14px; grid-template-columns: max-content minmax(0, 1fr); align-items: baseline; }
dl.figures { font-size: 13.5px; color: var(--soft); } dl.figures dd { margin: 0; }
dl.figures b { color: var(--ink); font-size: 16px; font-weight: 600; font-variant-numeric: tabular-nums; }
.ticks + .bar { margin-bottom: 8px; } section > .legend { margin-bottom: 12px; } .curves .legend { display: none; }
.tracks { display: grid; gap: 7px 14px; align-items: center; font-variant-numeric: tabular-nums;
  grid-template-columns: max-content max-content minmax(80px, 1fr) repeat(var(--extra), max-content); }
.tracks .head { color: var(--soft); font-size: 13px; }
.tracks .n { text-align: right; }
.track { position: relative; height: 18px; }
.track::before { content: ""; position: absolute; left: var(--zero); top: -4px; bottom: -4px;
  border-left: 1px solid var(--soft); opacity: .6; }
.track b { position: absolute; top: 0; bottom: 0; border-radius: 3px; }
table.heat { border-collapse: separate; border-spacing: 3px; }
table.heat td { border: 0; border-radius: 5px; padding: 7px 10px; }
table.heat td.n { background: color-mix(in srgb, var(--c5) var(--p), transparent); text-align: center; }
table.heat th.n { text-align: center; } table.heat td.first { font-weight: 650; }
.scroll { overflow-x: auto; }
.grid > .card > h3 + .legend { margin-top: 4px; }
.unverified { color: var(--soft); font-size: 12px; white-space: nowrap; }
details.more { margin-top: 14px; } details.more > .scroll { margin-top: 10px; }
@media (max-width: 800px) {
  .pair { grid-template-columns: minmax(0, 1fr); }
  .bars { gap: 3px 14px; grid-template-columns: minmax(0, 1fr); } .bars .bar { margin-bottom: 8px; }
  .tracks { grid-template-columns: minmax(0, 1fr) max-content; gap: 2px 10px; }
  .tracks .head, .tracks .side { display: none; }
  .tracks .track, .tracks .track + .n { margin-bottom: 12px; }
  .tracks .what { color: var(--soft); } .tracks .step { text-align: right; }
  table.heat { font-size: 12.5px; border-spacing: 2px; } table.heat td { padding: 6px 3px; }
  table.heat th { font-size: 11.5px; line-height: 1.25; padding: 0 2px 4px; white-space: normal; }
  .ticks { font-size: 9px; } .columns div { font-size: 10px; }
}
"""
