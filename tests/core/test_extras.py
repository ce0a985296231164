import json
import pickle
import sys
from pathlib import Path

import pytest

from stoker.core.errors import MissingExtraError
from stoker.core.extras import require, require_in_child


def test_an_installed_module_is_returned() -> None:
    assert require("json", extra="bench") is json
    assert require("os.path", extra="bench").join("a", "b") == "a/b"


@pytest.mark.parametrize("module", ["stoker_not_there", "stoker_not_there.inner", "json.not_there"])
def test_a_missing_one_says_the_pip_line(module: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        require(module, extra="bench")
    assert f"`{module}`" in str(caught.value)
    assert str(caught.value).endswith('pip install "stoker[bench]" [STOKER1002]')
    assert isinstance(caught.value, ImportError)


def test_the_error_crosses_processes_with_its_fields() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("stoker_not_there", extra="s3")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.fields) == (str(caught.value), {"module": "stoker_not_there", "extra": "s3"})


def test_a_broken_package_keeps_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stoker_broken.py").write_text("import stoker_needs_this\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match="stoker_needs_this") as caught:
        require("stoker_broken", extra="bench")
    assert not isinstance(caught.value, MissingExtraError)


def test_what_children_import_is_looked_for_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stoker_of_children.py").write_text("raise AssertionError\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    require_in_child("stoker_of_children", extra="torch")
    with pytest.raises(MissingExtraError, match=r'`stoker_not_there` .* pip install "stoker\[torch\]"'):
        require_in_child("stoker_not_there", extra="torch")
