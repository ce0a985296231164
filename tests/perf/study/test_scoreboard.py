import json

import pytest

from stoker.cli.main import main
from stoker.perf.study.scoreboard import scoreboard
from stoker.perf.study.tables.rows import published


@pytest.mark.slow("fits the coefficients anew for each group that is left out")
@pytest.mark.integration
@pytest.mark.timeout(300)  # forty seconds of a processor, which on a busy machine are minutes
def test_better_than_one_efficiency_and_every_row_is_accounted_for() -> None:
    board = scoreboard()
    sizes = next(score for score in board.scores if score.name == "MPT, one size left out")
    families = board.scores[0]
    assert families.by_group < 0.18
    assert len(families.groups) >= 8
    assert set(board.counts) == {"1", "2", "4", "8", "16", "32", "64", "128", "256"}
    assert len(board.cards) == 14
    assert sizes.median < 0.045
    assert max(sizes.groups.values()) < 0.12
    assert all(score.median < score.constant for score in board.scores)
    loose = sum(count for reason, count in board.left_out.items() if "predicted, not judged" in reason)
    assert board.predicted + sum(board.left_out.values()) - loose == len(published())


@pytest.mark.integration
def test_the_command_prints_what_was_found(capsys) -> None:
    assert main(["perf", "scoreboard"]) == 0
    text = capsys.readouterr().out
    assert "MPT, one size left out" in text
    assert "nvidia-dle: QuartzNet" in text
    assert main(["perf", "scoreboard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"] == 139 + 1_314
