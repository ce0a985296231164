"""What a person installs: the wheel's content, its dependencies, and the pinned versions."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import stoker

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {match[0].lower() for match in found if match}


@pytest.mark.integration
def test_the_wheel_holds_the_whole_package_and_nothing_else(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"stoker-{stoker.__version__}-py3-none-any.whl"
    members = set(zipfile.ZipFile(wheel).namelist())
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/stoker").rglob("*.py")}
    package = {member for member in members if member.startswith("stoker/")}
    # The one that starts stoker in every child interpreter; a wheel without it looks whole and does nothing.
    assert "stoker/run/site/sitecustomize.py" in package
    assert source | {"stoker/py.typed"} <= package
    assert all(member.startswith(("stoker/", "stoker-")) for member in members)


def test_the_core_needs_numpy_and_msgspec_only() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy", "msgspec"}


def test_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    product = {"torch", "s3", "cache", "cluster", "ray", "plan", "deploy", "hw", "serve"}
    assert extras.keys() == product | {"bench", "all", "dev"}
    source = "\n".join(path.read_text() for path in (ROOT / "src/stoker").rglob("*.py"))
    installed = {name for extra in product for name in names(extras[extra])}
    imported = {"pyyaml": "yaml", "prometheus-client": "prometheus_client", "grpcio": "grpc"}
    unused = {name for name in installed if not re.search(rf"\b{imported.get(name, name)}", source)}
    assert unused == set(), "installed for nobody"


def test_what_the_checks_install_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    pinned = {name.lower() for name in pins}
    needed = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["dev"]) - {"stoker"}
    assert needed <= pinned, f"not in constraints.txt: {needed - pinned}; run `make lock`"
    assert not re.search(r"https?:|@|\+", "".join(pins.values()))
