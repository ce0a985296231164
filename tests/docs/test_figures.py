"""Figures and lists of the documents are those of the code."""

import re
import tomllib
from pathlib import Path

import pytest

from stoker.feed.state import life, trial

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = {
    "trial": ("docs/design/how_it_works.md", "three batches are made here", trial.TRIAL_BATCHES == 3),
    "short batches": ("docs/design/how_it_works.md", f"take at least {trial.MIN_BATCH_S * 1e3:.0f} ms each", True),
    "short rests": ("docs/design/how_it_works.md", "leave at least half a second of work", trial.MIN_REST_S == 0.5),
    "watching": ("docs/design/how_it_works.md", f"at most {trial.MAX_WATCH_FRAC:.0%} of a batch's time", True),
    "watching limit": ("docs/reference/limits.md", f"which may take {trial.MAX_WATCH_FRAC:.0%} of making one", True),
    "made again": ("docs/design/how_it_works.md", f"every {life.RECHECK_EVERY}th batch is made here again", True),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_has_the_figure_of_the_code(name: str) -> None:
    page, sentence, is_so = SENTENCES[name]
    text = " ".join((ROOT / page).read_text().split()).replace(" %", "%")
    assert is_so
    assert sentence in text


def test_layers_are_described_as_they_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    described = re.search(
        r"imports go downwards only: (.*?)\. `make", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    assert described is not None
    assert re.findall(r"`(\w+)`", described[1]) == re.findall(r"\w+", " ".join(layers))
