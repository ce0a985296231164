"""Predictions of published steps from a definition, and from one measured step: families, sources, cards left out.

Arithmetic on published rows: the figures are the same on every machine. The terms of the step were chosen with the
whole table at hand; what is held out are the rows from which coefficients come. Families whose definition leaves open
what limits them are not judged; the scoreboard lists them with the reason.
"""

from __future__ import annotations

import sys

from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.study.cross_validation import Judge
from stoker.perf.study.scoreboard import Score, anchored_scores, definition_scores

BAR = Bar(
    "perf_accuracy",
    "published steps by predictors that have not seen their family, source or card",
    headline=("families", "worst_family", "sources", "other_card", "unseen_card"),
)


def measure(_: Options) -> Report:
    """Errors of each question, by family."""
    report = Report()
    judge = Judge()
    alone, every, sources_alone, sources = definition_scores(judge)
    other, unseen, several = anchored_scores(judge)
    scores = (alone, every, sources_alone, sources, other, unseen, several)
    report.table(["question", "steps", "median", "mean", "mean of groups", "FLOPs alone"], [_row(s) for s in scores])
    for score in (alone, every, other, unseen):
        report.table([score.name, "median error"], [[name, number(error)] for name, error in score.groups.items()])
    report.at_most("families", "one family left out, any number of GPUs: mean of medians", [every.by_group], 0.18, 3)
    report.at_most("families_alone", "the same on one GPU", [alone.by_group], 0.18, 3)
    report.at_most("worst_family", "the same, any number of GPUs: worst family", [max(every.groups.values())], 0.35, 3)
    report.at_least("families_judged", "families of which that is the mean", [len(every.groups)], 8, 0)
    report.at_most("sources_alone", "one source left out, on one GPU: median error", [sources_alone.median], 0.17, 3)
    report.at_most("sources", "one source left out, any number of GPUs: median error", [sources.median], 0.17, 3)
    report.at_most("other_card", "measured on another card: median error", [other.median], 0.11, 3)
    report.at_most("unseen_card", "the same, on a card left out: median error", [unseen.median], 0.15, 3)
    report.at_most("several_gpus", "measured on several GPUs, predicted on one: median", [several.median], 0.10, 3)
    return report


def _row(score: Score) -> list[str]:
    figures = (score.median, score.mean, score.by_group, score.constant)
    return [score.name, str(score.rows), *(number(figure, 3) for figure in figures)]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
