"""What the simulator's build says where something that it needs is missing."""

from pathlib import Path

import pytest

from stoker.cli.deploy import verify
from stoker.core.errors import ToolError
from stoker.deploy.package.folder import write_package
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.tools.verilator import simulator
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.nets import random_foldings, residual_digits

pytestmark = [pytest.mark.integration, needs_verilator]
SAID = r"`the simulator of stoker deploy` needs a C\+\+ compiler, found none of .*; install g\+\+ or set CXX"


@pytest.fixture(autouse=True)
def without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    graph = residual_digits()
    write_design(lower(graph, random_foldings(graph, 1)), tmp_path / "design")
    with pytest.raises(ToolError, match=SAID):
        simulator(tmp_path / "design")
    assert not list(tmp_path.glob("cache/stoker/hardware/*"))


@pytest.mark.parametrize("structure", ["dataflow", "engine"])
def test_so_does_the_command(tmp_path: Path, structure: str) -> None:
    """After the design was checked, which needs none."""
    write_package(tmp_path / "digits.pkg", residual_digits(), "digits")
    with pytest.raises(ToolError, match=SAID):
        verify.main([str(tmp_path / "digits.pkg"), "--samples", "2", "--structure", structure])


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'cc1plus: no such file'\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    graph = residual_digits()
    write_design(lower(graph, random_foldings(graph, 1)), tmp_path / "design")
    with pytest.raises(ToolError, match=r"for compiling Verilator's runtime, once, got 1:\ncc1plus: no such file"):
        simulator(tmp_path / "design")
