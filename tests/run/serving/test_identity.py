"""A process that loads a version again loads what the first one did, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from stoker.core.errors import ModelChangedError, ServingError
from stoker.run.serving.identity import changed, identity_of
from stoker.run.serving.loading import load_known
from stoker.run.serving.sources import ModelForm, forms_of
from tests.serve.service import scaling_model


def form(source: Path | str) -> ModelForm:
    return forms_of(str(source), 1)[0]


def package(path: Path, digest: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "manifest.json").write_text("{}")
    (path / "digest").write_text(digest + "\n")
    return path


def test_another_package_under_the_same_name_is_told_by_its_digest(tmp_path: Path) -> None:
    found = form(package(tmp_path / "live.pkg", "aaaaaaaaaaaabbbb"))
    known = identity_of(found)
    assert known.digest == "aaaaaaaaaaaabbbb"
    assert changed(found, known) is None
    package(tmp_path / "live.pkg", "ccccccccccccdddd")
    assert changed(found, known) == (
        f"its source `{found.text}` has changed since it was loaded (digest aaaaaaaaaaaa, now cccccccccccc); "
        "`stoker serve swap` takes the new one"
    )


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2", "m.py"])
def test_a_file_is_known_by_what_it_holds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"one")
    found = form(f"{path}:make" if name == "m.py" else path)
    known = identity_of(found)
    path.unlink()
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))  # written again, as by a copy of the same model
    assert changed(found, known) is None
    path.write_bytes(b"two")
    assert "has changed since it was loaded" in (changed(found, known) or "")


def test_what_is_gone_is_said_to_be(tmp_path: Path) -> None:
    path = package(tmp_path / "live.pkg", "a")
    found = form(path)
    known = identity_of(found)
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    assert changed(found, known) == f"its source `{found.text}` is gone; `stoker serve swap` takes another one"
    with pytest.raises(ServingError, match="is gone"):
        identity_of(found)
    with pytest.raises(ModelChangedError, match="is gone"):
        load_known(found, msgspec.json.encode(known))


def test_an_engine_that_reads_its_file_again_refuses_another_model(tmp_path: Path) -> None:
    path = scaling_model(tmp_path / "m.onnx", 2.0)
    model, known = load_known(form(path), b"")
    model.engine()
    scaling_model(path, 3.0)
    with pytest.raises(ModelChangedError, match="has changed since it was loaded"):
        model.engine()
    with pytest.raises(ModelChangedError, match="has changed since it was loaded"):
        load_known(form(path), known)
