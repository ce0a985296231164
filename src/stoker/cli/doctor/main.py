"""``stoker doctor``: whether this machine is fit for stoker, each line with its consequence and remedy."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from stoker._version import __version__
from stoker.cli.arguments import Parser
from stoker.cli.doctor.check import Check
from stoker.cli.doctor.settings import check_settings
from stoker.core.host import HostResources, read_host
from stoker.core.units import format_bytes

GIB = 2**30
LEAST_PYTHON, LAST_TESTED_PYTHON = (3, 11), (3, 14)
LEAST_TORCH = (2, 6)
# A data worker costs three descriptors, a slot one, and torch's own loader one a tensor in flight.
FEW_OPEN_FILES, TOO_FEW_OPEN_FILES = 1024, 128
# The first import of torch from a cold disk took 20 s at worst; beyond a minute something hangs.
TORCH_PROBE_TIMEOUT_S = 60.0
_TORCH_PROBE = """
import json, torch
try:
    from stoker.run.replaced import replace_all
    replaced = replace_all()
except Exception as error:
    replaced = f"{type(error).__name__}: {error}"
cuda = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda,
                  "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
                  "threads": torch.get_num_threads(), "replaced": replaced}))
"""


class TorchProbe(TypedDict):
    """What the probe prints."""

    version: str
    cuda: str | None
    """Version that torch is built for."""
    devices: list[str]
    threads: int
    replaced: dict[str, list[str]] | str
    """Names by purpose, or why they cannot be replaced."""


def main(argv: list[str]) -> int:
    """Runs ``stoker doctor`` with these arguments; returns 1 when a check fails, else 0."""
    parser = Parser(prog="stoker doctor", description="Checks whether this machine is fit for stoker.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    arguments = parser.parse_args(argv)
    checks = examine()
    healthy = all(check.status != "fail" for check in checks)
    if arguments.json:
        print(json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print("\n".join(line for check in checks for line in _lines(check)))
    return 0 if healthy else 1


def examine() -> list[Check]:
    """Every check of this machine, in the order in which they are shown."""
    host = read_host()
    by_host: tuple[Callable[[HostResources], Check], ...] = (check_cores, check_memory, check_shm, check_open_files)
    return [
        Check(name="stoker", status="ok", found=__version__),
        check_python(sys.version_info[:2]),
        *check_settings(),
        *(check(host) for check in by_host),
        check_slots(),
        check_start_method(host),
        *check_torch(probe_torch(), host, gpu_driver=Path("/proc/driver/nvidia/version").exists()),
    ]


def check_python(version: tuple[int, int]) -> Check:
    """Whether this is a Python that stoker is tested with."""
    found = f"{platform.python_version()} ({sys.executable})"
    if version < LEAST_PYTHON:
        return Check(
            name="python",
            status="fail",
            found=found,
            consequence="stoker does not run on it",
            remedy="use Python 3.11 or newer",
        )
    if version > LAST_TESTED_PYTHON:
        return Check(
            name="python",
            status="warn",
            found=found,
            consequence="newer than what stoker is tested with",
            remedy="if something fails, try Python 3.14",
        )
    return Check(name="python", status="ok", found=found)


def check_cores(host: HostResources) -> Check:
    """Whether there are cores for data workers besides the training process."""
    found = f"{host.cores:g} of {host.cores_of_machine} for this process (affinity and cgroup)"
    if host.cores < 2:
        return Check(
            name="cores",
            status="warn",
            found=found,
            consequence="data workers and the training process share one core: only waiting can overlap",
            remedy="grant the container or job at least 2 cores",
        )
    return Check(name="cores", status="ok", found=found)


def check_memory(host: HostResources) -> Check:
    """Whether memory is left for workers and slots."""
    found = f"{format_bytes(host.memory_available_bytes)} available of {format_bytes(host.memory_limit_bytes)}"
    if host.memory_available_bytes < GIB:
        return Check(
            name="memory",
            status="warn",
            found=found,
            consequence="few workers and slots will fit; the kernel may kill the job",
            remedy="free memory, raise the container's limit, or set STOKER_SLOT_MEMORY",
        )
    return Check(name="memory", status="ok", found=found)


def check_shm(host: HostResources) -> Check:
    """Whether torch's own loaders, where stoker leaves them alone, have shared memory."""
    found = f"{format_bytes(host.shm_free_bytes)} free in /dev/shm"
    if host.shm_free_bytes < GIB:
        return Check(
            name="shm",
            status="warn",
            found=found,
            consequence="stoker's slots do not use it, but loaders left to torch (`--off`) fail with bus errors",
            remedy="docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir of medium Memory at /dev/shm",
        )
    return Check(name="shm", status="ok", found=found)


def check_open_files(host: HostResources) -> Check:
    """Whether the descriptor limit leaves room for workers and slots."""
    found = f"{host.open_files} open files (hard limit {host.open_files_max})"
    if host.open_files >= FEW_OPEN_FILES:
        return Check(name="descriptors", status="ok", found=found)
    return Check(
        name="descriptors",
        status="fail" if host.open_files < TOO_FEW_OPEN_FILES else "warn",
        found=found,
        consequence="few workers and slots can be open at a time; programs fail with `Too many open files`",
        remedy=f"ulimit -n {min(65536, host.open_files_max)}"
        + ("" if host.open_files_max >= FEW_OPEN_FILES else ", after raising the hard limit"),
    )


def check_slots() -> Check:
    """Whether an anonymous memory file can be made, sized and written: the material of slots."""
    try:
        descriptor = os.memfd_create("stoker-doctor")
        try:
            os.ftruncate(descriptor, 1 << 16)
            os.pwrite(descriptor, b"1", (1 << 16) - 1)
        finally:
            os.close(descriptor)
    except (AttributeError, OSError) as error:
        return Check(
            name="slots",
            status="fail",
            found=f"memfd_create does not work: {error}",
            consequence="data workers cannot hand over batches",
            remedy="use Linux 3.17 or newer, and a seccomp profile that allows memfd_create",
        )
    return Check(name="slots", status="ok", found="memfd_create works")


def check_start_method(host: HostResources) -> Check:
    """How multiprocessing starts children; stoker's templates always fork."""
    forks = hasattr(os, "fork")
    return Check(
        name="start method",
        status="ok" if forks else "fail",
        found=f"multiprocessing uses {host.start_method}",
        consequence="" if forks else "data workers cannot be forked",
        remedy="" if forks else "use Linux",
    )


def probe_torch(python: str = sys.executable) -> TorchProbe | str:
    """Facts about torch from a separate process, or the last line of its import error.

    A separate process, since a broken driver or library can crash or hang it.
    """
    try:
        done = subprocess.run(
            [python, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=TORCH_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"importing torch took more than {TORCH_PROBE_TIMEOUT_S:g} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"python ended with status {done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def check_torch(probe: TorchProbe | str, host: HostResources, *, gpu_driver: bool) -> list[Check]:
    """Whether torch is installed, new enough, able to use the GPU, and uses no more threads than cores."""
    if isinstance(probe, str):
        missing = "No module named 'torch'" in probe
        return [
            Check(
                name="torch",
                status="fail",
                found=probe,
                consequence="`stoker run` serves PyTorch programs only",
                remedy='pip install "stoker[torch]", or the build for your GPU from pytorch.org'
                if missing
                else f"make this work first: {os.path.basename(sys.executable)} -c 'import torch'",
            )
        ]
    return [
        _check_torch_version(probe["version"]),
        _check_cuda(probe, gpu_driver),
        _check_threads(probe, host),
        _check_replaced(probe["replaced"]),
    ]


def _check_torch_version(version: str) -> Check:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_TORCH:
        return Check(
            name="torch",
            status="fail",
            found=version,
            consequence="stoker is written for torch 2.6 and newer",
            remedy='pip install "torch>=2.6"',
        )
    return Check(name="torch", status="ok", found=version)


def _check_cuda(probe: TorchProbe, gpu_driver: bool) -> Check:
    if probe["devices"]:
        names = ", ".join(probe["devices"])
        return Check(name="accelerator", status="ok", found=f"{names} (CUDA {probe['cuda']})")
    if not gpu_driver:
        return Check(name="accelerator", status="ok", found="none: torch computes on the CPU")
    build = f"built for CUDA {probe['cuda']}" if probe["cuda"] else "built without CUDA"
    return Check(
        name="accelerator",
        status="warn",
        found=f"the machine has an NVIDIA driver, but torch ({build}) sees no GPU",
        consequence="programs compute on the CPU and the GPU stays idle",
        remedy="install the torch build that fits the driver (nvidia-smi shows its CUDA version)",
    )


def _check_threads(probe: TorchProbe, host: HostResources) -> Check:
    found = f"torch computes with {probe['threads']} threads"
    # Half a core of slack: a quota of 1.5 cores and two threads is no mistake.
    if probe["threads"] > host.cores + 1:
        return Check(
            name="threads",
            status="warn",
            found=f"{found} on {host.cores:g} cores",
            consequence="threads wait for each other, and the cgroup stops them all when its quota is spent",
            remedy=f"export OMP_NUM_THREADS={max(1, int(host.cores))}",
        )
    return Check(name="threads", status="ok", found=found)


def _check_replaced(found: dict[str, list[str]] | str) -> Check:
    """Whether all names of other libraries that stoker replaces exist, and which they are."""
    if isinstance(found, str):
        return Check(
            name="replaced",
            status="fail",
            found=f"names of torch, or of the cache's libraries, cannot be replaced: {found}",
            consequence="programs run without the features that replace them",
            remedy="use versions that stoker is tested with (constraints.txt)",
        )
    return Check(
        name="replaced",
        status="ok",
        found=f"{sum(map(len, found.values()))} names of other libraries, each while it is needed",
        details=tuple(f"{purpose}: {', '.join(names)}" for purpose, names in found.items()),
    )


def _lines(check: Check) -> list[str]:
    lines = [f"{check.status:<4}  {check.name:<12}  {check.found}"]
    lines += [f"{'':<20}{detail}" for detail in check.details]
    if check.status != "ok":
        lines += [f"{'':<20}so: {check.consequence}", f"{'':<20}do: {check.remedy}"]
    return lines
