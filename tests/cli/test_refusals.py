"""What a wrong command line gets, of every command: one line with the rule, the value found, what to do, and a code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.main import main

REFUSALS = [
    (["--nonsense"], "`--nonsense` is not an option of `stoker`; see `stoker --help`"),
    (["report", "--jsn"], "`--jsn` is not an option of `stoker report`, did you mean `--json`?; see `stoker report"),
    (["report", "a", "b"], "`b` is one argument too many for `stoker report`; see `stoker report --help`"),
    (["report", "--html"], "`--html` must be followed by FILE, got nothing; see `stoker report --help`"),
    (["report", "--json=x"], "`--json` takes no value, got 'x'; see"),
    (["report", "--json", "--html", "x"], "`--html` must not go with `--json`; see"),
    (["report", "--rank", "-1"], "`--rank` must be a whole number of at least 0, got '-1'; see"),
    (["graph", "--format", "png"], "`--format` must be one of text, svg, json, got 'png'; see"),
    (["graph", "--loader", "one"], "`--loader` must be a whole number of at least 0, got 'one'; see"),
    (["graph", "--r", "0", "--l", "x"], "`--loader` must be a whole number"),
    (
        ["memory", "t.py", "--epochs", "1"],
        "of `stoker memory`; arguments of the program go behind `--`; see `stoker memory",
    ),
    (["doctor", "--fix"], "`--fix` is not an option of `stoker doctor`; see"),
    (["config"], "`show` must be given, got nothing; see `stoker config --help`"),
    (["config", "shw"], "`show` must be one of show, got 'shw'; see"),
    (["plan", "x.json"], "`--samples` must be given, got nothing; see `stoker plan --help`"),
    (["plan", "x.json", "--samples", "nan"], "`--samples` must be a whole number of at least 1, such as"),
    (["plan", "x.json", "--samples", "1", "--max-gpus", "0"], "`--max-gpus` must be a whole number of at least 1"),
    (["plan", "x.json", "--samples", "1", "--budget", "inf"], "`--budget` must be a positive amount, got 'inf'"),
    (["plan", "x.json", "--samples", "1", "--deadline", "1.2.3d"], "`--deadline` must be a positive time such as 12h"),
    (["plan", "x.json", "--samples", "1", "--cpu-seconds-per-sample", "0"], "must be a positive time such as 20ms"),
    (
        ["plan", "x.json", "--samples", "1", "--precision", "int3"],
        "`--precision` must be one of fp32, tf32, fp16, bf16",
    ),
    (["exchange", "x.json", "--ranks", "0", "--link", "1Gbit,1ms"], "`--ranks` must be a whole number of at least 1"),
    (["exchange", "x.json", "--ranks", "8"], "`--link` must be given, got nothing; see `stoker exchange --help`"),
    (
        ["exchange", "x.json", "--ranks", "8", "--link", "10"],
        "`--link` must be a rate and a latency such as 10Gbit,50us, got '10'; see `stoker exchange --help`",
    ),
    (["exchange", "x.json", "--ranks", "8", "--link", "10Gbit,50"], "such as 10Gbit,50us, got '10Gbit,50'; see"),
    (["exchange", "x.json", "--ranks", "8", "--link", "0Gbit,50us"], "such as 10Gbit,50us, got '0Gbit,50us'; see"),
    (
        ["exchange", "x.json", "--ranks", "8", "--link", "1Gbit,1ms", "--comm-allow", "splits"],
        "`--comm-allow` must be split, compress or both, got 'splits'; see `stoker exchange --help`",
    ),
    (
        ["exchange", "x.json", "--ranks", "8", "--link", "1Gbit,1ms", "--hosts", "3"],
        "`--hosts` must divide the 8 ranks evenly, got 3; see `stoker exchange --help`",
    ),
    (
        ["exchange", "x.json", "--ranks", "8", "--link", "1Gbit,1ms", "--gpu", "M1"],
        "`--gpu` must be one of M40, P100-SXM",
    ),
    (
        ["exchange", "x.json", "--ranks", "8", "--link", "1Gbit,1ms", "--cpu", "--gpu", "T4"],
        "`--gpu` must not go with `--cpu`; see",
    ),
    (["perf", "calibrate", "--seconds", "nan"], "`--seconds` must be seconds from 1 to 600, got 'nan'; see"),
    (["perf", "calibrate", "--threads", "0"], "`--threads` must be a whole number of at least 1, got '0'; see"),
    (["perf", "features"], "`script.py` or `-m module` must be given, got nothing; see `stoker perf features --help`"),
    (["perf", "features", "--gpus", "0", "t.py"], "`--gpus` must be a whole number of at least 1, got '0'; see"),
    (["perf", "fleet", "--synthetic", "0"], "`--synthetic` must be a whole number of at least 1, got '0'; see"),
    (["perf", "fleet", "--synthetic", "5", "--seed", "-2"], "`--seed` must be a whole number of at least 0, got '-2'"),
    (["submit"], "`script.py` or `-m module` must follow the options, got nothing; see `stoker submit --help`"),
    (["submit", "--gpu", "2", "--", "t.py"], "`--gpu` is not an option of `stoker submit`; did you mean `--gpus`?"),
    (["submit", "--gpus", "0", "--", "-m", "t"], "`--gpus` must be a whole number of at least 1, got '0'"),
    (["submit", "--cpus", "nan", "--", "-m", "t"], "`--cpus` must be a number of at least 0, got 'nan'"),
    (["submit", "--policy", "lifo", "--", "-m", "t"], "`--policy` must be one of fifo, srtf, 2d-las, fair, got 'lifo'"),
    (["submit", "--duration", "-1h", "--", "-m", "t"], "`--duration` must be a positive time such as 2h, got '-1h'"),
    (["submit", "--", "python", "t.py"], "`script.py` or `-m module` must follow `--`, got `python`: this Python runs"),
    (["submit", "--", "t.py"], "`t.py` must be a script in this folder, got none; see `stoker submit --help`"),
    (["cancel", "one"], "`JOB` must be a whole number of at least 1, got 'one'; see `stoker cancel --help`"),
    (["logs"], "`JOB` must be given, got nothing; see `stoker logs --help`"),
    (["perf", "fleat"], "`fleat` is not a command of `stoker perf`; did you mean `stoker perf fleet`?"),
    (["reprot"], "`reprot` is not a command; did you mean `report`?"),
    (["cache", "warm"], "`WHAT` must be given, got nothing; see `stoker cache warm --help`"),
    (["cache", "warm", "s3://b/x", "--jobs", "0"], "`--jobs` must be a whole number from 1 to 1,024, got '0'; see"),
    (["cache", "warm", "s3://b/x", "--replicas", "0"], "`--replicas` must be a whole number of at least 1, got '0'"),
    (["cache", "warm", "s3://b/x", "--size", "5"], "`--size` must be at least 1.00 MiB, got '5'"),
    (["cache", "bench", "s3://b/x", "--rounds", "0"], "`--rounds` must be a whole number of at least 1, got '0'; see"),
    (["cache", "status", "--over", "0"], "`--over` must be a time from `1ms` to `1h`, such as `500ms`, got '0'"),
    (["cache", "start", "--weight", "nan"], "`--weight` must be a number from 0.001 to 100, got 'nan'; see"),
    (["cache", "explain"], "`URL` must be given, got nothing; see `stoker cache explain --help`"),
    (["profile", "--samples", "0", "t.py"], "`--samples` must be at least 1, got 0"),
    (["profile", "--steps", "1e3", "t.py"], "`--steps` must be a whole number, got '1e3'"),
    (["profile", "--price-per-hour", "nan", "t.py"], "`--price-per-hour` must be a positive number, got 'nan'"),
    (["run", "--worker-memory", "5", "t.py"], "`worker-memory` must be a size of at least 1 MiB, such as `2GiB`, or"),
    (["run", "--slot-memory", "1KB", "t.py"], "`slot-memory` must be a size of at least 1 MiB, such as `2GiB`, or"),
    (["run", "--cpu-budget", "nan", "t.py"], "`cpu-budget` must be a number of cores of at least 0.1, or `auto`"),
    (["run", "--comm", "sometimes", "t.py"], "`comm` must be one of `off`, `auto`, `average`, got 'sometimes'"),
    (
        ["run", "--comm-allow", "splits", "t.py"],
        "`comm-allow` must be `split`, `compress`, `split,compress` or `auto`, got",
    ),
    (["run", "--stall-timeout", "1us", "t.py"], "`stall-timeout` must be a time of at least `0.1s`, such as `60s`"),
    (["run", "--workers", "-1", "t.py"], "`workers` must be a whole number of at least 0 or `auto`, got -1"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS, ids=[" ".join(words) for words, _ in REFUSALS])
def test_refusal_is_one_line_with_a_code(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "pages"))
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("stoker: error: `")
    assert message in line
    assert re.search(r" \[STOKER\d{4}\]$", line)


@pytest.mark.parametrize("command", ["warm", "ls", "stat", "bench", "pin", "evict"])
@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://", "nothing behind `s3://`"),
        ("s3:///", "nothing behind `s3://`"),
        ("s3:///key", "no bucket or host"),
        ("https://", "nothing behind `https://`"),
        ("file://", "nothing behind `file://`"),
        ("://x", "no protocol"),
    ],
)
def test_url_of_no_place_is_refused(
    command: str, url: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", command, url, "--dir", str(tmp_path / "pages")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{url}` must be a URL such as `s3://bucket/folder`, got {found}" in line


@pytest.mark.integration
def test_wrong_option_of_profile_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from stoker.cli.main import main; status = main(['profile', '--samples', '0', 'train.py']); "
        "assert not {'torch', 'numpy'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert "`--samples` must be at least 1" in done.stderr
