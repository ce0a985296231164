"""What goes to other machines: the user's own modules, found there in memory."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
PROBE = """
import sys
import msgspec
from stoker.backends.remote.host.program import ShippedModules
from stoker.backends.shipping import Module
modules = msgspec.msgpack.decode(open(sys.argv[1], "rb").read(), type=list[Module])
sys.meta_path.insert(0, ShippedModules(modules))
from spread.inner.numbers import VALUE, __file__ as place
print(VALUE, place)
"""


def test_a_package_without_an_init_file_is_found_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    from stoker.backends import shipping

    inner = tmp_path / "spread" / "inner"
    inner.mkdir(parents=True)
    (inner / "numbers.py").write_text("VALUE = 17\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("spread.inner.numbers")
    try:
        found = [module for module in shipping._own_modules() if module.name.startswith("spread")]
    finally:
        for name in [name for name in sys.modules if name.startswith("spread")]:
            del sys.modules[name]
    assert sorted(module.name for module in found) == ["spread", "spread.inner", "spread.inner.numbers"]
    sent = tmp_path / "sent"
    sent.write_bytes(msgspec.msgpack.encode(found))
    shown = subprocess.run(
        [sys.executable, "-c", PROBE, str(sent)], cwd="/", capture_output=True, text=True, check=True
    ).stdout
    assert shown.split() == ["17", str(inner / "numbers.py")]


def test_what_a_package_brings_along_in_its_folder_is_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.backends import shipping

    for folder in (tmp_path / "outer" / "others", tmp_path / "apart"):
        name = f"brought_{folder.name}"
        facts = folder / f"{name}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "RECORD").write_text(f"{name}.py,,\n")
        (folder / f"{name}.py").touch()
        monkeypatch.syspath_prepend(str(folder))
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, name, sys)
    (tmp_path / "outer" / "__init__.py").touch()
    found = shipping._versions()
    assert "brought_others" not in found, "as Ray's copies of packages, which are there with Ray alone"
    assert found["brought_apart"] == "1.0"
