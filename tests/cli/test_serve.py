"""`stoker serve`: what it refuses, and its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.core.errors import ConfigError
from stoker.run.serving.sources import chosen_forms, forms_of, split_name


def test_the_plan_names_engines(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "plan", "--costs", "1=1.1ms,32=4.2ms", "--p99", "20ms"]
    assert main([*words, "--rate", "5000", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["count"] == 1
    assert one["p99_s"] <= 0.02
    assert main([*words, "--rate", "20000"]) == 0
    assert "3 engines, as given" in capsys.readouterr().out
    assert main([*words, "--rate", "20000", "--most", "2"]) == 1
    told = capsys.readouterr().out
    assert "not with 2 engines" in told
    assert "allow more engines with --most" in told


def test_fewer_engines_in_all_are_better(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two services with an engine each are more than one with one."""
    two = {"slow": ((1, 9e-3), (32, 9e-3)), "fast": ((1, 1e-3), (32, 9.1e-3))}
    monkeypatch.setattr("stoker.cli.serve.plan._costs", lambda _: (two, 9e-3, ""))
    assert main(["serve", "plan", "--costs", "1=1ms", "--rate", "30", "--p99", "20ms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    needed = [each["services"] * each["count"] for each in found if each["count"]]
    assert len({each["services"] for each in found}) == 2
    assert needed == sorted(needed)
    assert found[0]["engine"] == "fast"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--costs", "1=30ms,32=40ms", "--rate", "10"],
            "takes 30.0 ms alone, and 80% of the 99th percentile is 16",
        ),
        (["--costs", "1=1ms", "--samples", "64", "--rate", "10"], "a request of 64 samples takes 64.0 ms alone"),
        (
            ["--costs", "1=1ms,32=4ms", "--rate", "20000", "--most", "1"],
            "compute at most 8,000 samples/s in batches of 32",
        ),
        (["--costs", "1=7ms", "--rate", "140", "--most", "1"], "are refused or dropped when many come at once"),
    ],
)
def test_a_plan_that_fails_says_why(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "plan", "--p99", "20ms", *words]) == 1
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "`MODEL` must be given"),
        (["run", "m.onnx", "--slo", "0"], "must be a positive time such as 20ms"),
        (["run", "m.onnx", "--host", "0.0.0.0"], "`--host` must be of this machine alone without a token"),
        (["run", "a=m.onnx", "a=n.onnx"], "must have names that differ"),
        (["run", "m.onnx", "--max-body", "10Q"], "must be a size"),
        (["plan", "--rate", "1", "--p99", "1s"], "`MODEL` or `--costs` must be given"),
        (["plan", "--rate", "1", "--p99", "1s", "--costs", "1"], "must be samples and times"),
        (["plan", "--rate", "1", "--p99", "1s", "--costs", "1=5ms,32=4ms"], "got 5.00 ms for 1 and 4.00 ms for 32"),
        (["plan", "--rate", "1", "--p99", "1s", "--costs", "1=1ms,1=2ms"], "got two for 1"),
        (["swap", "m", "n.onnx", "--canary", "200%"], "must be above 0% and at most 100%, such as 10%, got '200%'"),
        (["swap", "m", "n.onnx", "--canary", "0.1"], "must be a share in percent such as 10%, got '0.1'"),
        (["swap", "m", "n.onnx", "--url", "http://127.0.0.1:1"], "`--url` must be that of `stoker serve run`"),
        (["rnu"], "did you mean `stoker serve run`"),
    ],
)
def test_what_it_refuses(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert told in capsys.readouterr().err


def test_names_of_models() -> None:
    assert split_name("digits=/a/b.onnx") == ("digits", "/a/b.onnx")
    assert split_name("/a/b.onnx") == ("b", "/a/b.onnx")
    assert split_name("model.py:make@w.safetensors") == ("make", "model.py:make@w.safetensors")
    assert split_name("/a=b/c.pt2") == ("c", "/a=b/c.pt2")
    with pytest.raises(ConfigError, match="must have a name"):
        split_name("-=m.onnx")


def test_forms_of_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got neither"):
        forms_of(str(tmp_path), 1)
    for name in ("m.onnx", "m.pt2"):
        (tmp_path / name).touch()
    forms = forms_of(str(tmp_path), 2)
    assert sorted(form.engine for form in forms) == ["onnx", "torch"]
    assert [form.engine for form in chosen_forms(forms, "onnx")] == ["onnx"]
    (tmp_path / "n.onnx").touch()
    with pytest.raises(ConfigError, match=r"must have one \.onnx file"):
        forms_of(str(tmp_path), 1)
    (made,) = forms_of("package.module:make", 1)
    assert (made.module, made.function, made.weights) == ("package.module", "make", "")
    for source, words in (
        ("nothing.onnx", "must be a file"),
        ("m.txt", r"must be a \.pt2 or"),
        ("m.py:make@w.bin", "must be a file of safetensors"),
        ("m.py:make@nowhere.safetensors", "must be a file, got none"),
    ):
        with pytest.raises(ConfigError, match=words):
            forms_of(source, 1)
    (only,) = forms_of(str(tmp_path / "m.onnx"), 1)
    with pytest.raises(ConfigError, match="`--engine` must be auto or onnx"):
        chosen_forms([only], "torch")
