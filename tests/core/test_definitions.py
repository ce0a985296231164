"""Functions that a user names: a misspelt one is told from those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.core.code.definitions import load_function
from stoker.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("make_modle", r"which has 40 functions, such as make_model_\d+, make_model_\d+, make_model_\d+$"),
        ("zzz", r"which has 40 functions, none with such a name$"),
    ],
)
def test_of_many_functions_the_closest_are_named(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / "many_functions.py"
    path.write_text("".join(f"def make_model_{at}():\n    pass\n" for at in range(40)))
    with pytest.raises(ConfigError) as found:
        load_function(str(path), name)
    assert re.search(said, found.value.args[0])
