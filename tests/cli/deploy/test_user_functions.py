"""A user's functions: their own frames when they raise, batches of anything, nothing on standard output."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.deploy.user_functions import UserFunction, printing_aside
from stoker.core.errors import ConfigError

FUNCTIONS = """
def breaks():
    raise FileNotFoundError("weights.pt is missing")

def stops():
    yield 1
    raise ValueError("disk died")

def nothing():
    return None

def says():
    print("hello")
    return [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "user_functions_own.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "said"), [("breaks", "weights.pt is missing"), ("stops", "disk died")])
def test_what_a_user_raises_has_the_users_frames_alone(
    folder: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"`user_functions_own.py:{name}` must not raise.*{said}"):
        list(UserFunction(f"user_functions_own.py:{name}").batches())
    shown = capsys.readouterr().err
    assert shown.count('File "') == 1
    assert f'File "{folder}/user_functions_own.py"' in shown


def test_a_module_that_cannot_be_imported_is_shown_as_its_users(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "user_functions_wrong.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(ConfigError, match=r"must not raise.*No module named 'there_is_no_such_module'"):
        UserFunction("user_functions_wrong.py:make")
    assert capsys.readouterr().err.count('File "') == 1


@pytest.mark.usefixtures("folder")
def test_batches_are_something_to_go_through() -> None:
    with pytest.raises(ConfigError, match=r"must return batches, .*, got NoneType"):
        list(UserFunction("user_functions_own.py:nothing").batches())


@pytest.mark.usefixtures("folder")
def test_what_a_user_prints_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with printing_aside(True):
        assert list(UserFunction("user_functions_own.py:says").batches()) == [1, 2]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")
