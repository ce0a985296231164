"""A folder holds one design: what stoker wrote before goes, of whatever structure; files of others stay."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.deploy.hardware.engines import write_model
from stoker.deploy.rtl.engine.files import is_engine, read_engine
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.rtl.folding import constant_folding, works_of
from stoker.deploy.rtl.generate import read_design, write_design
from stoker.deploy.rtl.mapping import lower
from tests.deploy.rtl.nets import random_foldings, residual_digits

GRAPH = residual_digits()


def dataflow(folder: Path) -> None:
    write_design(lower(GRAPH, random_foldings(GRAPH, 1)), folder)
    assert not is_engine(folder)
    read_design(folder)


def in_the_circuit(folder: Path) -> None:
    """With files that other designs have not, and without some of theirs."""
    works = works_of(GRAPH)
    first = next(iter(works))
    foldings = random_foldings(GRAPH, 1) | {first: constant_folding(first, works[first], 4)}
    write_design(lower(GRAPH, foldings, constant=[first]), folder)
    read_design(folder)


def engine(folder: Path) -> None:
    write_model(GRAPH, EngineShape(), folder)
    assert is_engine(folder)
    read_engine(folder)


KINDS = (dataflow, in_the_circuit, engine)


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_design_takes_the_place_of_another(
    tmp_path: Path, first: Callable[[Path], None], second: Callable[[Path], None]
) -> None:
    first(tmp_path / "design")
    (tmp_path / "design" / "fit.json").write_text('{"digest": "another", "found": {}}')
    users = {"notes.txt": "a", "tb.sv": "module tb; endmodule", "own.hex": "00"}
    for name, text in users.items():
        (tmp_path / "design" / name).write_text(text)
    second(tmp_path / "design")
    second(tmp_path / "new")
    names = {each.name for each in (tmp_path / "new").iterdir()}
    assert {each.name for each in (tmp_path / "design").iterdir()} == names | users.keys()
    assert all((tmp_path / "design" / name).read_text() == text for name, text in users.items())


def test_what_was_found_of_the_same_design_stays(tmp_path: Path) -> None:
    dataflow(tmp_path)
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps({"digest": read_design(tmp_path).digest, "found": {}}))
    dataflow(tmp_path)
    assert fit.exists()


def test_a_description_of_someone_else_is_not_taken_for_a_design(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"cylinders": 4}')
    with pytest.raises(ValueError, match=r"engine\.json` must be what `stoker deploy rtl` wrote, or not be there"):
        dataflow(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["engine.json"]


def test_names_that_lead_out_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.sv"
    other.write_text("")
    folder = tmp_path / "design"
    folder.mkdir()
    (folder / "design.json").write_text(json.dumps({"digest": "", "files": ["../other.sv", str(other)]}))
    engine(folder)
    assert other.exists()
    assert not (folder / "design.json").exists()
