"""Command lines that name a program, as every command that runs one reads them."""

from __future__ import annotations

from types import ModuleType

import pytest

from stoker.cli import explain, profile, run
from stoker.cli.command_line import CommandOption, split

OPTIONS = {
    "count": CommandOption("a whole number"),
    "place": CommandOption("a path", default="here"),
    "quiet": CommandOption(),
}


@pytest.mark.parametrize(
    ("words", "chosen", "rest"),
    [
        (["t.py"], {}, ["t.py"]),
        ([], {}, []),
        (["--count", "2", "t.py", "--count", "3"], {"count": "2"}, ["t.py", "--count", "3"]),
        (["--count=2", "--quiet", "-m", "a.b", "--quiet"], {"count": "2", "quiet": "true"}, ["-m", "a.b", "--quiet"]),
        (["--count", "--", "t.py"], {"count": "--"}, ["t.py"]),
        (["--place", "t.py"], {"place": "here"}, ["t.py"]),
        (["--place=there", "t.py"], {"place": "there"}, ["t.py"]),
        (["--quiet", "--", "-odd.py", "--"], {"quiet": "true"}, ["-odd.py", "--"]),
        (["-", "x"], {}, ["-", "x"]),
        (["-ma.b"], {}, ["-ma.b"]),
        (["--quiet", "-h", "t.py"], {"help": ""}, []),
        (["t.py", "--help"], {}, ["t.py", "--help"]),
    ],
)
def test_options_end_where_the_program_begins(words: list[str], chosen: dict[str, str], rest: list[str]) -> None:
    assert split(words, "stoker try", OPTIONS) == (chosen, rest)


@pytest.mark.parametrize("command", [run, profile, explain], ids=["run", "profile", "explain"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run-dir", "x"], "`script.py` or `-m module` must follow the options, got nothing; see `stoker {} --help`"),
        (["-m"], "must follow the options, got `-m` alone; see `stoker {} --help`"),
        (["--run-dir"], "`--run-dir` must be followed by a "),
        (["--run-dri", "x", "t.py"], "`--run-dri` is not an option of `stoker {}`; did you mean `--run-dir`?"),
        (["-u", "t.py"], "options of python go before: `python -u -m stoker {} …`"),
        (["--lr", "1", "t.py"], "options of the program go after the script; `stoker {} --help` lists"),
    ],
)
def test_every_command_refuses_in_the_same_words(
    command: ModuleType, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert message.format(command.__name__.rpartition(".")[2]) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"), [(run, ["--off=1", "t.py"]), (profile, ["--no-prediction=", "t.py"]), (explain, ["--json=x"])]
)
def test_a_switch_takes_no_value(command: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    assert "takes no value" in capsys.readouterr().err
