import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.doctor import main
from stoker.cli.doctor.check import Check
from stoker.cli.doctor.settings import check_settings
from stoker.cli.main import main as stoker
from stoker.core.host import HostResources, read_host

HEALTHY = dataclasses.replace(
    read_host(),
    cores=4.0,
    cores_of_machine=64,
    memory_limit_bytes=16 << 30,
    memory_available_bytes=8 << 30,
    open_files=65536,
    open_files_max=65536,
    shm_free_bytes=8 << 30,
)
TORCH = {"version": "2.13.0+cpu", "cuda": None, "devices": [], "threads": 4, "replaced": {"a purpose": ["torch.save"]}}


@pytest.mark.slow("each check starts what it is about")
@pytest.mark.integration
def test_the_command_examines_this_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    result = json.loads(done.stdout)
    assert result["healthy"] is (done.returncode == 0)
    by_name = {check["name"]: check for check in result["checks"]}
    assert by_name["torch"]["status"] == "ok"
    assert by_name["slots"]["status"] == "ok"
    assert {"python", "cores", "memory", "shm", "descriptors", "start method", "accelerator"} <= by_name.keys()
    replaced = " ".join(by_name["replaced"]["details"])
    for name in ("DataLoader.__init__", "DataLoader._get_iterator", "torch.to_dlpack", "pyarrow.fs.FileSystem", "'s3'"):
        assert name in replaced


@pytest.mark.slow("each check starts what it is about")
@pytest.mark.integration
def test_it_fails_in_lines_that_say_what_to_do(tmp_path: Path) -> None:
    command = f"ulimit -n 100 && {shlex.quote(sys.executable)} -m stoker doctor"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    index = next(number for number, line in enumerate(lines) if line.startswith("fail  descriptors"))
    assert "100 open files" in lines[index]
    assert lines[index + 1].strip().startswith("so: ")
    assert lines[index + 2].strip().startswith("do: ulimit -n 100")


@pytest.mark.parametrize(
    ("change", "check", "status", "remedy"),
    [
        ({"cores": 1.0}, main.check_cores, "warn", "2 cores"),
        ({"memory_available_bytes": 1 << 20}, main.check_memory, "warn", "STOKER_SLOT_MEMORY"),
        ({"shm_free_bytes": 64 << 20}, main.check_shm, "warn", "--shm-size"),
        ({"open_files": 256}, main.check_open_files, "warn", "ulimit -n 65536"),
        ({"open_files": 64, "open_files_max": 64}, main.check_open_files, "fail", "raising the hard limit"),
    ],
)
def test_each_shortage_has_its_remedy(change: dict[str, object], check: object, status: str, remedy: str) -> None:
    assert callable(check)
    assert check(HEALTHY).status == "ok"
    found = check(dataclasses.replace(HEALTHY, **change))
    assert found.status == status
    assert remedy in found.remedy
    assert found.consequence


def statuses(
    probe: dict[str, object] | str, *, gpu_driver: bool = False, host: HostResources = HEALTHY
) -> dict[str, str]:
    return {check.name: check.status for check in main.check_torch(probe, host, gpu_driver=gpu_driver)}


def test_torch() -> None:
    assert statuses(TORCH) == {"torch": "ok", "accelerator": "ok", "threads": "ok", "replaced": "ok"}
    assert statuses(TORCH | {"version": "2.5.1"})["torch"] == "fail"
    assert statuses(TORCH | {"version": "3.0.0a0+git12"})["torch"] == "ok"
    assert statuses(TORCH, gpu_driver=True)["accelerator"] == "warn"
    assert statuses(TORCH | {"devices": ["H200"], "cuda": "13.0"}, gpu_driver=True)["accelerator"] == "ok"
    assert statuses(TORCH | {"threads": 64})["threads"] == "warn"


def test_names_that_are_replaced() -> None:
    *_, listed = main.check_torch(TORCH, HEALTHY, gpu_driver=False)
    assert listed.details == ("a purpose: torch.save",)
    *_, gone = main.check_torch(TORCH | {"replaced": "AttributeError: `torch.save`"}, HEALTHY, gpu_driver=False)
    assert (gone.status, "`torch.save`" in gone.found, "constraints.txt" in gone.remedy) == ("fail", True, True)


def test_torch_that_is_missing_or_broken() -> None:
    (missing,) = main.check_torch("ModuleNotFoundError: No module named 'torch'", HEALTHY, gpu_driver=False)
    assert (missing.status, "stoker[torch]" in missing.remedy) == ("fail", True)
    (broken,) = main.check_torch("OSError: libcudart.so.13: cannot open", HEALTHY, gpu_driver=False)
    assert (broken.status, "import torch" in broken.remedy) == ("fail", True)


def test_the_probe_reports_why_python_failed(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ImportError: libfoo.so: not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    assert main.probe_torch(str(fake)) == "ImportError: libfoo.so: not found"


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 14), "ok"), ((3, 15), "warn")]
)
def test_python(version: tuple[int, int], status: str) -> None:
    assert main.check_python(version).status == status


def found_by_name() -> dict[str, Check]:
    return {check.name: check for check in check_settings()}


REFUSED = {
    "wrong file": (("stoker.toml", "workers = 1.5"), {}, "settings", "`workers` must be a whole number"),
    "broken file": (("stoker.toml", "workers ="), {}, "settings", "must be readable TOML"),
    "unknown setting": (("pyproject.toml", "[tool.stoker]\nworkrs = 1"), {}, "settings", "`workrs` is not a setting"),
    "wrong variable": (None, {"STOKER_WORKER_MEMORY": "5"}, "settings", "from environment STOKER_WORKER_MEMORY"),
    "unknown variable": (None, {"STOKER_WRKERS": "5"}, "settings", "`STOKER_WRKERS` is not a setting"),
    "cache in a file": (("pages", ""), {"STOKER_CACHE": "./pages"}, "cache", "pages"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_tells_what_run_refuses(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, environ, name, said = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / file[0]).write_text(file[1])
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    check = found_by_name()[name]
    assert check.status == "fail"
    assert said in check.found
    assert check.remedy
    assert stoker(["run", "train.py"]) == 2
    refusal = capsys.readouterr().err
    code = check.found.rpartition(" [")[2]
    assert f"[{code}" in refusal
    assert check.found.rpartition(" [")[0] in refusal


def test_it_tells_where_records_cannot_go_and_what_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {check.status for check in check_settings()} == {"ok"}
    (tmp_path / "stoker-runs").write_text("")
    check = found_by_name()["run folder"]
    assert (check.status, "is no folder" in check.found) == ("warn", True)
    monkeypatch.setenv("STOKER_OFF", "1")
    check = found_by_name()["settings"]
    assert (check.status, check.found) == ("warn", "`off` is set by environment STOKER_OFF")
