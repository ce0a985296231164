"""`stoker deploy quantise`, from a user's files to a package."""

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.package.folder import read_package

pytestmark = pytest.mark.integration

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

def loader():
    chance = torch.Generator().manual_seed(1)
    for _ in range(10):
        yield torch.randn(32, 6, generator=chance), torch.randint(0, 3, (32,), generator=chance)

def number():
    return 3

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.towns, self.kinds, self.head = nn.Embedding(100, 8), nn.Embedding(10, 4), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(torch.cat([self.towns(x[:, 0]), self.kinds(x[:, 1])], 1)), self.kinds(x[:, 1]).sum(1)

def wide():
    torch.manual_seed(0)
    return Wide()

def columns(most=10):
    chance = torch.Generator().manual_seed(1)
    for _ in range(4):
        parts = [torch.randint(0, each, (32,), generator=chance) for each in (100, most)]
        yield torch.stack(parts, 1)

def too_many():
    return columns(11)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "deployed_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return ["deploy", "quantise", "deployed_model.py:make", "--data", "deployed_model.py:loader", "--out", "out.pkg"]


def test_a_package_is_written_and_compared(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["accept"]["samples"] == 80
    assert answer["accept"]["error"] < 0.03
    assert answer["calibrated_on"] == 160
    assert answer["weight_bits"] == 8 * (6 * 8 + 8 * 3)
    package = read_package(Path("out.pkg"))
    assert package.digest == answer["digest"]
    assert package.accuracy is not None
    assert package.accuracy.accept.flips == answer["accept"]["flips"]
    assert NumpyEngine(package.graph).outputs[0].shape == (3,)


def test_the_answer_says_how_it_compares_and_twice_the_same(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[str] = []
    for _ in range(2):
        assert main([*command, "--weights", "4", "--width", "0=8/6"]) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    for said in (
        "Integer model of deployed_model.py:make",
        "flips",
        "float",
        "Ranges tried",
        "proven from the weights",
    ):
        assert said in pages[0]
    assert read_package(Path("out.pkg")).graph.operations[0].weight_bits == 8  # type: ignore[union-attr]


def test_widths_become_narrower_within_a_loss(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--json", "--loss", "2%", "--width", "0=8/8"]) == 0
    answer = json.loads(capsys.readouterr().out)
    mixed = answer["mixed"]
    costs = [each["cost"] for each in mixed["steps"]]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == 8 * (6 * 8 + 8 * 3)
    assert answer["weight_bits"] == costs[mixed["taken"]] < costs[0]
    assert all(each["search"] <= 0.02 for each in mixed["steps"])
    assert mixed["steps"][mixed["taken"]]["accept"] <= 0.02
    assert {each["layer"] for each in mixed["widths"]} == {"linear_1"}  # the other one was given
    package = read_package(Path("out.pkg"))
    assert [each.weight_bits for each in package.graph.operations] == [8, mixed["widths"][0]["bits"]]  # type: ignore[union-attr]
    assert package.accuracy is not None
    assert package.accuracy.mixed is not None
    assert main([*command, "--loss", "2%", "--save", "multipliers", "--steps", "widths"]) == 0
    page = capsys.readouterr().out
    assert "Widths that save multipliers" in page
    assert "activations" in page


def test_columns_of_several_tables_and_several_outputs(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command[2], command[4] = "deployed_model.py:wide", "deployed_model.py:columns"
    assert main([*command, "--json", "--weights", "6"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["flips"] is None) for each in answer["accept"]["outputs"]] == [
        ("output_0", False),
        ("output_1", True),
    ]
    assert answer["weight_bits"] == 6 * (100 * 8 + 2 * 10 * 4 + 12 * 3)  # the second table is read twice
    graph = read_package(Path("out.pkg")).graph
    assert graph.value(graph.inputs[0]).highs == (99, 9)
    command[4] = "deployed_model.py:too_many"
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "`x[:, 1]` must hold row numbers of `kinds`, which has 10 rows, 0 to 9, and sample" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("loss", [[], ["--loss", "2%"]])
def test_names_without_widths_are_one_line(
    command: list[str], loss: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--width", "linaer=2", *loss]) == 2
    error = capsys.readouterr().err
    assert "`linaer` must be a module or a result of the model, such as linear" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {2: "deployed_model.py:none"},
            "`none` must be a function of `deployed_model.py`, which has make, loader, number",
        ),
        ({2: "deployed_model.py:number"}, "must return a torch.nn.Module, got int"),
        ({2: "none.py:make"}, "`none.py` must be a Python file, and is none"),
        ({6: "."}, "holds something else"),
    ],
)
def test_mistakes_are_one_line(
    command: list[str], changes: dict[int, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([changes.get(at, word) for at, word in enumerate(command)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--loss", "0.5"], "`--loss` must be a share in percent such as 0.5%, got '0.5'"),
        (["--loss", "0%"], "`--loss` must be above 0% and below 100%, such as 0.5%, got '0%'"),
        (["--save", "memory"], "`--save` must go with `--loss`"),
        (["--steps", "widths"], "`--steps` must go with `--loss`"),
        (["--weights", "1"], "`weights` must have 2 to 8 bits, got 1"),
        (["--width", "head"], "`--width` must be LAYER=WEIGHTS or LAYER=WEIGHTS/ACTIVATIONS in bits, got `head`"),
    ],
)
def test_options_are_checked_before_anything_runs(
    command: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *options]) == 2
    assert said in capsys.readouterr().err
