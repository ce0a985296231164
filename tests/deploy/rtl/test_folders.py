"""A folder holds one design: what stoker wrote before goes, of whatever structure; files of others stay."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.errors import ConfigError
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


@pytest.mark.parametrize("write", [dataflow, engine])
@pytest.mark.parametrize("name", ["registers.sv", "accelerator.sv", "design.json", "engine.json", "program.bin"])
def test_a_file_of_someone_else_is_never_written_over(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    """Not in a folder without a design, nor in one with a design that has no such file."""
    own = tmp_path / "own"
    own.mkdir()
    (own / name).write_text("// mine")
    with pytest.raises(ValueError, match=f"{name}` must be what `stoker deploy rtl` wrote|holds something else"):
        write(own)
    assert {each.name: each.read_text() for each in own.iterdir()} == {name: "// mine"}

    both = tmp_path / "both"
    other, wrote = (engine, "program.bin") if write is dataflow else (dataflow, "window.sv")
    other(both)
    write(tmp_path / "new")
    added = sorted(set(os.listdir(tmp_path / "new")) - set(os.listdir(both)) - {"design.json", "engine.json"})[0]
    (both / added).write_text("// mine")
    before = {each.name: each.read_bytes() for each in both.iterdir()}
    assert wrote in before
    with pytest.raises(ValueError, match=f"{added}` must be what `stoker deploy rtl` wrote"):
        write(both)
    assert {each.name: each.read_bytes() for each in both.iterdir()} == before


@pytest.mark.parametrize("write", [dataflow, engine])
def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "one.pkg").mkdir()
    with pytest.raises(ValueError, match=r"must be a new folder or one with a design, .* else: `one\.pkg`; write into"):
        write(tmp_path)
    assert os.listdir(tmp_path) == ["one.pkg"]
    file = tmp_path / "one.pkg" / "models.py"
    file.write_text("pass")
    with pytest.raises(ValueError, match=r"models\.py` must be a folder or not be there, got a file; write into"):
        write(file)
    assert file.read_text() == "pass"


@pytest.mark.parametrize("write", [dataflow, engine])
@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], there: bool
) -> None:
    folder = tmp_path / "design"
    if there:
        in_the_circuit(folder)
    before = {each.name: each.read_bytes() for each in folder.iterdir()} if there else {}
    put, written = Path.write_bytes, list[Path]()

    def until_full(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(path, data)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    with pytest.raises(ConfigError, match=r"design` must be a folder that can be written, got: No space left on dev"):
        write(folder)
    assert len(written) == 5
    assert ({each.name: each.read_bytes() for each in folder.iterdir()} if folder.exists() else {}) == before
    assert [each.name for each in tmp_path.iterdir()] == (["design"] if there else [])


@pytest.mark.parametrize("write", [dataflow, engine])
def test_a_folder_in_which_it_ended_early_is_no_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    folder = tmp_path / "design"
    in_the_circuit(folder)
    put, moved = Path.replace, list[Path]()

    def until_the_end(path: Path, target: Path) -> Path:
        moved.append(path)
        if len(moved) == 5:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return put(path, target)

    monkeypatch.setattr(Path, "replace", until_the_end)
    with pytest.raises(ConfigError, match=r"design` must be a folder that can be written"):
        write(folder)
    assert not is_engine(folder)
    with pytest.raises(ValueError, match="must hold a design"):
        read_design(folder)


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
