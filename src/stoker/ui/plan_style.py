"""What a plan's page adds to that of a fleet: the plot of hours and cost, cards of picked plans."""

PLAN_STYLE = """
.canvas.tall { height: 440px; margin: 14px 10px 30px 62px; }
.canvas.tall svg { overflow: visible; }
.plans .allowed { fill: var(--good); opacity: .09; }
.plans .limit { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.plans .stairs { stroke: var(--ink); stroke-width: 1.5; opacity: .55; }
.plans .dot { fill: var(--c); opacity: .38; } .plans .dot:hover { opacity: 1; }
.plans .best { fill: var(--c); stroke: var(--card); stroke-width: 1.5; }
.plans .best.open { fill: var(--card); stroke: var(--c); stroke-width: 3; }
.plans .span { stroke: var(--c); stroke-width: 2; opacity: .5; }
.plans text.label { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
i.even { background: var(--c); }
.plans text.rank { fill: #fff; font-size: 11px; font-weight: 700; pointer-events: none; }
.plans .open + text.rank { fill: var(--ink); }
.plans text.name { fill: var(--ink); font-weight: 600; font-size: 12.5px; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; }
.picks { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); margin-top: 14px; }
.pick .role { color: var(--soft); font-size: 13px; } .pick .role b { color: var(--ink); margin-right: 6px; }
.pick .what { font-size: 19px; font-weight: 650; line-height: 1.3; margin: 2px 0 0; }
.pick .how { color: var(--soft); font-size: 13.5px; margin-bottom: 12px; }
.pick .big { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; margin-bottom: 12px; }
.pick .big b { display: block; font-size: 24px; font-weight: 600; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.pick .big span { color: var(--soft); font-size: 12.5px; }
.pick dl { margin-top: 12px; font-size: 13.5px; gap: 2px 14px; }
.pick .bar { height: 22px; } .pick .bar span { line-height: 22px; }
.pick .remark { margin-top: 10px; border-left: 3px solid var(--s0); padding-left: 9px; font-size: 13.5px; }
.pick.keeps { border-top: 3px solid var(--good); } .pick.breaks { border-top: 3px solid var(--bad); }
.tag { display: inline-block; border: 1px solid currentColor; border-radius: 20px; padding: 0 8px; font-size: 12px; }
.tag.calibrated { color: var(--good); } .tag.extrapolated { color: var(--s0); }
ul.advice { margin: 0; padding-left: 18px; } ul.advice li { margin: 4px 0; }
td.nowrap { white-space: nowrap; }
@media (max-width: 800px) { .canvas.tall { height: 340px; margin-left: 54px; } }
"""
"""The style sheet."""
