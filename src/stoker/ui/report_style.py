"""The style sheet of the HTML report: light and dark, narrow and wide, on paper. Colours are named once each."""

from __future__ import annotations

LIGHT = {
    "page": "#f6f6f4",
    "card": "#ffffff",
    "ink": "#1b1d21",
    "soft": "#5d636d",
    "rule": "#e3e3df",
    "grid": "#ecece8",
    "s0": "#d97a06",
    "s1": "#3a6fd8",
    "s2": "#12857a",
    "s3": "#a3a8b1",
    "bad": "#c0362c",
    "good": "#12857a",
    "code": "#f1f1ee",
}
"""Colours on light ground, for drawings that stand alone too."""

_ROOT = ":root { color-scheme: light dark; " + " ".join(f"--{name}: {value};" for name, value in LIGHT.items()) + " }"

STYLE_SHEET = (
    f"""
{_ROOT}"""
    + """
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121417; --card: #1b1e23; --ink: #e8e9eb; --soft: #9aa1ac; --rule: #2c3037; --grid: #262a30;
    --s0: #f0a43a; --s1: #7aa5f7; --s2: #35b8a8; --s3: #6b727e; --bad: #f0766c; --good: #35b8a8; --code: #23272d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
header { margin-bottom: 20px; }
.brand { color: var(--soft); font-size: 13px; letter-spacing: .02em; }
h1 { margin: 4px 0; overflow-wrap: anywhere; }
h1 { font: 600 22px/1.3 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
h2 { overflow-wrap: anywhere; font-size: 17px; font-weight: 600; margin: 32px 0 12px; }
h3 { font-size: 14px; font-weight: 600; margin: 0; }
p { margin: 0; }
.soft { color: var(--soft); }
.small { font-size: 13px; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
.tiles { display: grid; gap: 14px; grid-template-columns: repeat(4, minmax(0, 1fr)); margin-top: 14px; }
.tile .name { color: var(--soft); font-size: 13px; }
.tile .value { white-space: nowrap; }
.tile .value { font-size: 27px; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile .value small { margin-left: -.15em; font-size: 14px; font-weight: 400; color: var(--soft); }
.verdict { border-left: 4px solid var(--s1); display: grid; gap: 8px 28px; grid-template-columns: 3fr 2fr; }
.verdict.input { border-left-color: var(--s0); }
.verdict.compute, .verdict.copy { border-left-color: var(--good); }
.verdict .text { font-size: 17px; font-weight: 600; line-height: 1.4; }
.verdict code { display: block; background: var(--code); border-radius: 6px; padding: 7px 10px; margin: 3px 0; }
.caveat { margin-top: 14px; border-left: 4px solid var(--s0); }
.bars { display: grid; gap: 8px 14px; align-items: center; }
.bars { grid-template-columns: max-content minmax(0, 1fr); }
.bar { display: flex; height: 26px; border-radius: 5px; overflow: hidden; gap: 1px; background: var(--card); }
.bar span { display: block; min-width: 0; overflow: hidden; white-space: nowrap; color: #fff; text-align: center; }
.bar span { font-size: 12px; line-height: 26px; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .bar span { color: #121417; } }
.legend { min-height: 20px; display: flex; flex-wrap: wrap; gap: 2px 16px; color: var(--soft); font-size: 13px; }
.legend i, .split i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
i.s0, .bar .s0 { background: var(--s0); } i.s1, .bar .s1 { background: var(--s1); }
i.s2, .bar .s2 { background: var(--s2); } i.s3, .bar .s3 { background: var(--s3); }
.legend i.limit { width: 14px; height: 0; }
.legend i.limit { border-top: 2px dashed var(--soft); border-radius: 0; vertical-align: middle; }
.legend i.m-change { border-radius: 50%; background: var(--s1); }
.legend i.m-lost { border-radius: 50%; background: var(--bad); }
figure { margin: 0; }
h3 .unit { color: var(--soft); font-weight: 400; }
.foot { margin-top: 10px; }
.tiles + .grid { margin-top: 14px; }
details.course { margin-top: 14px; } details.course > .grid { margin-top: 12px; }
.canvas { height: 190px; margin: 14px 6px 26px 44px; }
svg { display: block; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg text.y { text-anchor: end; }
line.grid { stroke: var(--grid); stroke-width: 1; }
line.axis { stroke: var(--soft); stroke-width: 1; opacity: .6; }
.line { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.line.s1 { stroke: var(--s1); } .line.s2 { stroke: var(--s2); }
.line.limit { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.area.s0 { fill: var(--s0); } .area.s1 { fill: var(--s1); } .area.s2 { fill: var(--s2); } .area.s3 { fill: var(--s3); }
.area.faint { opacity: .16; }
.hover { fill: var(--ink); opacity: 0; } .hover:hover { opacity: .12; }
.mark line { stroke-width: 1; opacity: .45; }
.mark.change line { stroke: var(--s1); stroke-dasharray: 2 3; } .mark.change circle { fill: var(--s1); }
.mark.lost line { stroke: var(--bad); } .mark.lost circle { fill: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; padding: 0 14px 6px 0; }
td { border-top: 1px solid var(--rule); padding: 9px 14px 9px 0; vertical-align: top; }
th.n, td.n { text-align: right; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
table.split { table-layout: fixed; width: min(100%, 620px); margin: 12px 0; font-size: 14px; }
table.split td { padding-top: 3px; padding-bottom: 3px; }
td.why { border-top: 0; padding-top: 0; color: var(--soft); font-size: 13.5px; }
td.t { white-space: nowrap; color: var(--soft); }
.tier { display: inline-block; border: 1px solid var(--rule); border-radius: 20px; padding: 0 9px; font-size: 12.5px; }
.tier.elastic { color: var(--good); border-color: currentColor; }
.tier.stock, .tier.process { color: var(--s0); border-color: currentColor; }
.cuts .card + .card { margin-top: 14px; }
.exchange > .card { margin-top: 14px; overflow-x: auto; } .exchange > .verdict { display: block; }
.fit > .card { margin-top: 14px; overflow-x: auto; } .fit h3 { margin-bottom: 8px; }
.fit > .verdict { display: block; } .fit .bar .saved { background: var(--rule); } .fit .bar .none { background: none; }
.exchange h3 { margin-bottom: 8px; } .exchange .bars { margin: 6px 0 12px; }
.exchange table { font-size: 14px; } .exchange td { padding-top: 6px; padding-bottom: 6px; }
.layers td.bytes { width: 26%; vertical-align: middle; } .layers .bar { height: 12px; border-radius: 3px; }
.layers td.why { padding-top: 0; font-size: 12.5px; } .layers .rest { background: var(--rule); }
.picture { overflow-x: auto; margin-top: 10px; } .picture svg { margin: 0 auto; flex: none; }
details { margin-top: 4px; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
ul { margin: 4px 0 0; padding-left: 18px; }
pre { font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-x: auto; margin: 6px 0 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 1000px) { .tile .value { font-size: 22px; } }
@media (max-width: 800px) {
  h1 { font-size: 17px; }
  main { padding: 18px 12px 32px; }
  .grid { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .card { padding: 13px 14px; }
  table.split th { white-space: normal; font-size: 12px; line-height: 1.25; padding-right: 8px; }
  table.split td { padding-right: 8px; }
  table.split i { display: block; margin: 0 0 3px auto; }
  .verdict { grid-template-columns: minmax(0, 1fr); }
  table.loaders, table.loaders tbody, table.loaders tr { display: block; }
  table.loaders thead { display: none; }
  table.loaders tr.head { display: flex; flex-wrap: wrap; gap: 0 14px; padding: 8px 0 3px; }
  table.loaders tbody + tbody { border-top: 1px solid var(--rule); }
  table.loaders td { display: block; border: 0; padding: 0; text-align: left; min-width: 0; }
  table.loaders td.n::before { content: attr(data-name) " "; color: var(--soft); }
  table.loaders td.why { padding-bottom: 10px; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: 8px; }
}
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""
)
