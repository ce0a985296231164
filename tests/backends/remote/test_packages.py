"""Packages that a program names for its hosts: real pip, wheels made here, no network."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from stoker.backends.remote.host import packages
from stoker.backends.remote.host.packages import PackageInstall, PackageOrder, PackageWord, options_among
from stoker.backends.remote.settings import RemoteSettings
from stoker.core.errors import ConfigError
from tests.backends.remote.hosts import Slow, Taking, opened
from tests.faults.serve import loader_of, served
from tests.waiting import await_that


def wheel(folder: Path, name: str, version: str, *, requires: str = "") -> Path:
    """A wheel with one module, whose VALUE is its version."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    facts = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f'VALUE = "{version}"\n')
        archive.writestr(f"{facts}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        archive.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{facts}/RECORD", f"{name}.py,,\n{facts}/METADATA,,\n{facts}/WHEEL,,\n{facts}/RECORD,,\n")
    return path


def order(home: Path, wheels: Path, *names: str, **versions: str) -> PackageOrder:
    wanted = ("--no-index", "--find-links", str(wheels), *names)
    return PackageOrder(wanted=wanted, versions=versions, folder=str(home))


def heard(install: PackageInstall) -> list[PackageWord]:
    """All that it says."""
    words: list[PackageWord] = []

    def is_over() -> bool:
        words.extend(install.hear())
        return any(word.folder or word.error for word in words)

    await_that("pip ends", is_over, 60.0)
    return words


@pytest.mark.parametrize("text", ["", "--no-index", "'half"])
def test_no_packages_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="`remote-pip` must be packages as pip takes them"):
        RemoteSettings(pip=text)


def test_options_keep_their_values_apart_from_packages() -> None:
    words = RemoteSettings(pip="--no-index -f '/some where' first==1 --pre second").packages
    assert options_among(words) == ["--no-index", "-f", "/some where", "--pre"]


def test_another_version_of_the_program_is_another_folder(tmp_path: Path) -> None:
    first, same, other = (order(tmp_path, tmp_path, "stoker_one", stoker_one=version) for version in ("1", "1", "2"))
    assert packages.fingerprint(first) == packages.fingerprint(same) != packages.fingerprint(other)


def test_folders_used_longest_ago_go(tmp_path: Path) -> None:
    folders = [tmp_path / f"folder-{number}" for number in range(packages.MOST_FOLDERS + 3)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        subprocess.run(["touch", "-d", f"@{number}", str(folder)], check=True)
    packages._prune(tmp_path, folders[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        folder.name for folder in (folders[0], *folders[-(packages.MOST_FOLDERS - 1) :])
    )


@pytest.mark.integration
@pytest.mark.slow("pip runs three times")
def test_the_programs_version_is_installed_with_what_it_needs_beside_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(wheels, "stoker_one", version, requires="stoker_two")
    wheel(wheels, "stoker_two", "3.0")
    wanted = ("--no-index", "--find-links", str(wheels), "stoker_one")
    words = heard(PackageInstall(wanted, {"stoker_one": "1.0"}))
    assert words[-1].folder, words
    assert words[1].text == "pip installs stoker_one==1.0 stoker_two==3.0"
    shown = subprocess.run(
        [sys.executable, "-c", "import stoker_one, stoker_two; print(stoker_one.VALUE, stoker_two.VALUE)"],
        cwd=words[-1].folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert shown == "1.0 3.0\n"
    (again,) = heard(PackageInstall(wanted, {"stoker_one": "1.0"}))
    assert again.folder == words[-1].folder, "kept, and pip is not asked"
    assert [path.name for path in Path(again.folder).parent.iterdir()] == [Path(again.folder).name]


@pytest.mark.integration
@pytest.mark.slow("pip runs")
def test_what_pip_cannot_find_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = heard(PackageInstall(("--no-index", "stoker_absent"), {}))
    assert words[-1].error == "pip says: No matching distribution found for stoker_absent"
    assert not list((tmp_path / "stoker" / "packages").iterdir())


def test_one_that_is_loaded_in_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel(tmp_path / "wheels", "stoker_one", "2.0")) as archive:
        archive.extractall(tmp_path / "folder")
    monkeypatch.setitem(sys.modules, "stoker_one", pytest)
    before = list(sys.path)
    why = packages.use(str(tmp_path / "folder"))
    assert why == ("has loaded other versions already than stoker_one 2.0; there: pip install stoker_one==2.0")
    assert sys.path == before


class NeedsOne(Slow):
    """Imports a package where a sample is made."""

    def __getitem__(self, index: int) -> torch.Tensor:
        import stoker_one  # pyright: ignore[reportMissingImports]

        assert stoker_one.VALUE == "1.0"
        return super().__getitem__(index)


@pytest.mark.integration
@pytest.mark.slow("a host starts, and pip runs there")
@pytest.mark.timeout(110)
def test_a_host_installs_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheels, site = tmp_path / "wheels", tmp_path / "site-packages"
    for version in ("1.0", "2.0"):
        wheel(wheels, "stoker_one", version)
    with opened(tmp_path) as host:
        with zipfile.ZipFile(wheels / "stoker_one-1.0-py3-none-any.whl") as archive:
            archive.extractall(site)
        monkeypatch.syspath_prepend(str(site))
        importlib.import_module("stoker_one")
        try:
            with served(**host.settings) as record:
                taking = Taking(loader_of(NeedsOne(), num_workers=1))
                await_that("it is refused", lambda: taking.take(1) or record.notices(), 40)
                assert "there: pip install stoker_one==1.0, or for this run: --remote-pip " in record.notices()[0]
                del taking
            pip = f"--no-index --find-links {wheels} stoker_one"
            with served(**host.settings, remote_pip=pip) as record:
                taking = Taking(loader_of(NeedsOne(), num_workers=1))
                taking.until_away(timeout_s=60)
                assert f"`{host.address}`: pip installs stoker_one==1.0" in record.notices()
                del taking.iterator
        finally:
            del sys.modules["stoker_one"]
        await_that("nothing is left on the host", host.is_empty)
