"""The name of one sample: what is written reads back, and the command is one that a shell takes."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import ConfigError
from stoker.feed.replay import Replay, launcher_of, replay_command
from stoker.run.settings import RunSettings

scalars = st.none() | st.integers() | st.text() | st.booleans() | st.binary()
indices = st.recursive(scalars, lambda part: st.tuples(part, part) | st.lists(part, max_size=3), max_leaves=5)


@given(loader=st.integers(0, 99), index=indices, seed=st.integers(0, (1 << 63) - 1))
def test_what_is_written_reads_back(loader: int, index: object, seed: int) -> None:
    replay = Replay(loader=loader, index=index, seed=seed)
    assert Replay.parse(str(replay)) == replay


@given(index=indices.filter(lambda index: index is not None), program=st.lists(st.text(), min_size=1, max_size=4))
def test_a_shell_splits_the_command_as_it_was_meant(index: object, program: list[str]) -> None:
    words = shlex.split(replay_command(3, index, 5, program))
    assert words[:3] == ["stoker", "run", "--replay"]
    assert Replay.parse(words[3]) == Replay(loader=3, index=index, seed=5)
    assert words[4:] == program


def test_an_index_of_numpy_becomes_a_number() -> None:
    assert replay_command(0, np.int64(7), 5, ["a b.py"]) == "stoker run --replay 0:7:5 'a b.py'"


def test_a_rank_of_torchrun_is_started_by_torchrun() -> None:
    launcher = launcher_of({"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "RANK": "9"})
    command = replay_command(0, 7, 5, ["train.py"], launcher)
    assert command == "torchrun --standalone --nproc-per-node 1 -m stoker run --replay 0:7:5 train.py"
    assert launcher_of({"RANK": "1"}) == ()


def test_an_index_that_cannot_be_written_gives_no_command() -> None:
    assert replay_command(0, object(), 5, ["train.py"]) == ""
    assert replay_command(0, None, 5, ["train.py"]) == ""


@pytest.mark.parametrize(
    "text", ["", "0", "0:1", "0:1:", ":1:2", "x:1:2", "0:x:2", "0:1:x", "-1:1:2", f"0:1:{1 << 63}"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="`replay` must be `LOADER:INDEX:SEED`"):
        Replay.parse(text)
    with pytest.raises(ConfigError, match="`replay` must be `LOADER:INDEX:SEED`"):
        RunSettings.of(replay=text)
