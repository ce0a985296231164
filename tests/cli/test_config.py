import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import config_show
from stoker.cli.main import COMMANDS, main
from stoker.run.settings import KEYS


def test_show_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.stoker]\nslot-memory = "2GiB"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKERS", "3")
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1 : len(KEYS) + 1]}
    assert rows["workers"].split(maxsplit=1) == ["3", "environment STOKER_WORKERS"]
    assert rows["slot-memory"].endswith(f"{tmp_path}/pyproject.toml [tool.stoker]")
    assert rows["slot-memory"].startswith("2.00 GiB")
    assert list(rows) == [key.name for key in KEYS]


def test_show_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_show.main(["show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"][0] == {"key": "workers", "value": None, "origin": "default"}
    assert len(shown["precedence"]) == 5


def test_a_mistake_is_one_line_and_status_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKRS", "3")
    assert main(["config", "show"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("stoker: error: `STOKER_WORKRS` is not a setting")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu"], "did you mean `run`?"),
        (["train.py"], "stoker run train.py"),
        (["zzz"], "known are demo, run, profile, explain"),
    ],
)
def test_a_word_that_is_no_command(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert hint in capsys.readouterr().err


def test_help_names_every_command_and_loads_none() -> None:
    probe = (
        "import sys; from stoker.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'subprocess'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"  {command.name} " in done.stdout for command in COMMANDS)


def test_a_pipe_that_closes_early_is_no_error() -> None:
    # The command waits for a line, so that the reading end is closed before anything is written.
    program = "import sys; sys.stdin.readline(); from stoker.cli.main import main; sys.exit(main(['config', 'show']))"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate("go\n", timeout=30)
    assert (process.returncode, errors) == (141, "")
