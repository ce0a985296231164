"""A process that loads a version again loads what the first one did, or nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from stoker.core.errors import ModelChangedError, ServingError
from stoker.run.serving import identity
from stoker.run.serving.identity import SourceIdentity, changed, identity_of, imported_files
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


def project(path: Path, factor: int) -> Path:
    """A function in one file, what it imports in two others, and one that it does not import."""
    package = path / "stoker_test_parts"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "times.py").write_text(
        f"import torch\n\nclass Times(torch.nn.Module):\n    def forward(self, x):\n        return {factor}.0 * x\n"
    )
    (path / "unread.py").write_text("")
    code = path / "stoker_test_model.py"
    code.write_text(
        "import torch\nfrom stoker_test_parts.times import Times\n\n"
        "def make():\n    return Times(), (torch.zeros(2, 4),)\n"
    )
    return code


@pytest.fixture
def own_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("stoker_test_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("own_imports")
def test_what_a_function_imports_of_its_project_is_part_of_it(tmp_path: Path) -> None:
    found = form(f"{project(tmp_path, 2)}:make")
    _, known = load_known(found, b"")
    was = msgspec.json.decode(known, type=SourceIdentity)
    parts = [str(tmp_path / "stoker_test_parts" / name) for name in ("__init__.py", "times.py")]
    assert was.imported == parts
    (tmp_path / "unread.py").write_text("other")
    assert changed(found, was) is None
    project(tmp_path, 2)  # written again, as it was
    assert changed(found, was) is None
    was = identity_of(found, was.imported)
    times = Path(parts[1])
    times.write_text(times.read_text().replace("2.0", "3.0"))
    said = f"`{parts[1]}`, which its source `{found.text}` imports, has changed since it was loaded"
    assert said in (changed(found, was) or "")
    with pytest.raises(ModelChangedError, match="has changed since it was loaded"):
        load_known(found, known)
    times.unlink()
    assert changed(found, was) == (
        f"`{parts[1]}`, which its source `{found.text}` imports, is gone; `stoker serve swap` takes another one"
    )


@pytest.mark.usefixtures("own_imports")
def test_a_module_of_a_package_has_the_packages_folder_as_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, 2)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stoker_test_parts" / "made.py").write_text("from stoker_test_model import make\n")
    found = form("stoker_test_parts.made:make")
    load_known(found, b"")
    names = [str(Path(each).relative_to(tmp_path)) for each in imported_files(found)]
    assert names == ["stoker_test_model.py", "stoker_test_parts/__init__.py", "stoker_test_parts/times.py"]


def writing(path: Path, before: str, after: str = "") -> Path:
    """A function whose file writes another one and imports it, or the other way round."""
    made = path / "stoker_test_made.py"
    code = path / "stoker_test_model.py"
    code.write_text(
        f"import torch, pathlib\n{before}\nimport stoker_test_made\n{after}\n"
        "def make():\n    return torch.nn.Identity(), (torch.zeros(2, 4),)\n"
    )
    return made


@pytest.mark.usefixtures("own_imports")
@pytest.mark.parametrize("there", [None, "FACTOR = 2\n", "FACTOR = 33\n"])
def test_a_module_that_the_import_itself_writes_counts_as_it_was_imported(tmp_path: Path, there: str | None) -> None:
    made = tmp_path / "stoker_test_made.py"
    writing(tmp_path, f"pathlib.Path({str(made)!r}).write_text('FACTOR = 2\\n')")
    if there is not None:
        made.write_text(there)
    found = form(f"{tmp_path / 'stoker_test_model.py'}:make")
    _, known = load_known(found, b"")
    assert msgspec.json.decode(known, type=SourceIdentity).imported == [str(made)]
    load_known(found, known)  # writes it again, as it was
    made.write_text("FACTOR = 3\n")
    with pytest.raises(ModelChangedError, match="has changed since it was loaded"):
        load_known(found, known)


@pytest.mark.usefixtures("own_imports")
def test_a_module_that_is_written_behind_its_import_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "stoker_test_made.py"
    made.write_text("FACTOR = 2\n")
    finders = list(sys.meta_path)
    for text, refused in (("FACTOR = 2", False), ("FACTOR = 3", True)):
        writing(tmp_path, "", f"pathlib.Path({str(made)!r}).write_text('{text}\\n')")
        sys.modules.pop("stoker_test_made", None)
        found = form(f"{tmp_path / 'stoker_test_model.py'}:make")
        if refused:
            with pytest.raises(ServingError, match=r"stoker_test_made.py`, which .* was written while it was loaded"):
                load_known(found, b"")
        else:
            load_known(found, b"")
        assert sys.meta_path == finders


def import_from(folder: Path, name: str) -> str:
    """As if a module had been imported from there."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text("")
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(file)
    return str(file)


@pytest.mark.usefixtures("own_imports")
def test_a_project_has_the_current_folder_and_no_hidden_or_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, current = tmp_path / "home", tmp_path / "current"
    (home / "models").mkdir(parents=True)
    (home / "models" / "stoker_test_model.py").write_text("")
    found = form(f"{home / 'models' / 'stoker_test_model.py'}:make")
    own = import_from(home / "models" / "parts", "stoker_test_own")
    import_from(home / "models" / ".hidden", "stoker_test_hidden")
    import_from(home / "models" / "temporary", "stoker_test_temporary")
    here = import_from(current, "stoker_test_here")
    import_from(home / "other", "stoker_test_other")
    monkeypatch.setattr(tempfile, "tempdir", str(home / "models" / "temporary"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(current)
    assert imported_files(found) == sorted([here, own])
    monkeypatch.chdir(home)
    assert imported_files(found) == [own]
    monkeypatch.chdir("/")
    assert imported_files(found) == [own]


@pytest.mark.usefixtures("own_imports")
def test_a_project_may_be_the_root_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = import_from(tmp_path / "parts", "stoker_test_part")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir("/")
    assert file in imported_files(ModelForm(engine="torch", module="/model.py", function="make"))
    monkeypatch.setattr(identity, "_own_file", lambda _: Path("/a.py"))  # fewer folders than its module has dots
    assert file in imported_files(ModelForm(engine="torch", module="a.b.c.d", function="make"))
